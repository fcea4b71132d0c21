"""Whole terminal pages, 80 columns wide and without colour.

`CACHESIM_UPDATE_SNAPSHOTS=1` writes what is printed now; look at the difference before keeping it.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from cachesim.cli.main import main
from tests.fixtures import Capture, Patch

ROOT = Path(__file__).parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"

PAGES = {
    "first-screen": "run llama.cpp-two-codes",
    "consumed-entry": "run llama.cpp-24143-load-consumes-entry",
    "stale-neighbour": "run llama.cpp-erasure-off-by-one-hybrid --arithmetic ring",
    "window": "run --explain llama.cpp-24411-checkpoint-beyond-divergence --profile b9538",
    "refused": "run llama.cpp-context-limit --arithmetic ring --profile b9538",
    "explain": "run --explain llama.cpp-three-requests --profile b11549",
    "diff": "compare llama.cpp-24143-load-consumes-entry-hybrid -p b9538 -p b9538+24143"
    " --arithmetic ring",
    "many": "run llama.cpp-three-requests-dense llama.cpp-26191-f-keep --arithmetic ring",
    "list-presets": "list presets",
    "show-patch": "list erase-equal",
    "introduction": "",
}


def printed(command: str, capsys: Capture) -> str:
    status = main(command.split())
    captured = capsys.readouterr()
    assert captured.err == ""
    return f"$ cachesim {command}\n{captured.out}exit {status}\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_it_was(name: str, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = SNAPSHOTS / f"{name}.txt"

    page = printed(PAGES[name], capsys)

    if os.environ.get("CACHESIM_UPDATE_SNAPSHOTS"):
        file.write_text(page)
    assert page == file.read_text()
    lines = page.splitlines()[1:]
    if not name.startswith("list"):  # a list in a pipe is for grep: one line each, none cut
        # A command stays on one line, so that it can be pasted.
        whole = [line for line in lines if len(line) > 80]
        assert [] == [line for line in whole if not line.startswith("  prove it cachesim real ")]
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.thorough
def test_wrong_usage_is_refused_in_the_words_it_was(capsys: Capture, monkeypatch: Patch) -> None:
    """A command is added to the file as its line, `$ cachesim ...`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    file = SNAPSHOTS / "refusals.txt"
    commands = [line for line in file.read_text().splitlines() if line.startswith("$ cachesim")]
    found = ""
    for command in commands:
        assert 2 == main(shlex.split(command)[2:]), command
        captured = capsys.readouterr()
        assert "" == captured.out, command
        found += f"{command}\n{captured.err}\n"

    if os.environ.get("CACHESIM_UPDATE_SNAPSHOTS"):
        file.write_text(found)
    assert found == file.read_text()


def test_colour_is_an_addition_and_says_nothing_of_its_own(
    capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)

    coloured = printed(PAGES["first-screen"], capsys)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert coloured != plain
    assert [line.rstrip() for line in plain.splitlines()] == [
        line.rstrip() for line in (SNAPSHOTS / "first-screen.txt").read_text().splitlines()
    ]


def test_no_color_leaves_no_colour(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")

    page = printed(PAGES["first-screen"], capsys)

    assert "\x1b[3" not in page  # foreground colours
    assert "WRONG" in page
