"""`cachesim list` and `show`: a line for each thing, and files that are whole."""

import json
import tomllib
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_files

KINDS = ("scenarios", "engines", "releases", "patches", "presets")
STALE = "llama.cpp-three-requests"

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("columns", ["0", "1", "40", "80"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_in_a_pipe_has_one_whole_line_for_each_thing(
    kind: str, columns: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", kind, "--format", "json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("COLUMNS", columns)

    assert main(["list", kind]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(entries) == len(lines) > 2
    for entry, line in zip(entries, lines, strict=True):
        assert line.startswith(entry["name"])
        assert entry["about"] in line
        assert entry["upstream"] in line


def test_a_list_on_a_terminal_shows_where_a_line_was_cut(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    assert main(["list", "patches"]) == 0

    out = capsys.readouterr().out
    assert "…" in out


def test_the_list_of_scenarios_says_what_the_files_say(capsys: Capture) -> None:
    assert main(["list", "--format", "json"]) == 0

    entries = json.loads(capsys.readouterr().out)
    read = [load(path) for path in shipped_files()]
    assert [(each.name, each.kind or "", each.source.issue) for each in read] == [
        (each["name"], each["about"], each["upstream"]) for each in entries
    ]


def test_a_shipped_scenario_is_shown_as_toml_that_is_the_same_again(capsys: Capture) -> None:
    file = next(path for path in shipped_files() if path.stem == STALE)

    assert main(["list", STALE]) == 0
    shown = capsys.readouterr().out
    assert main(["list", STALE, "--raw"]) == 0
    raw = capsys.readouterr().out

    assert file.read_text() == raw
    assert tomllib.loads(raw) == tomllib.loads(shown)


def test_raw_is_for_scenarios(capsys: Capture) -> None:
    assert main(["list", "hybrid", "--raw"]) == 2
    assert "--raw prints the file of one" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["0", "1", "19"])
def test_help_is_printed_where_nobody_knows_the_width(
    width: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)

    assert main(["--help"]) == 0
    assert "Commands" in capsys.readouterr().out


def test_every_shipped_file_is_named_after_its_scenario() -> None:
    for path in shipped_files():
        assert path.stem == load(Path(path)).name


def test_a_symptom_finds_the_scenarios_that_sound_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 0 == main(
        ["list", "scenarios", "--symptom", "coming back erases the cached conversation"]
    )

    assert "llama.cpp-24143" in capsys.readouterr().out.splitlines()[0]
