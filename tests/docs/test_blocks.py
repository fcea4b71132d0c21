"""Every block of code in the README and in the documentation is run, with the output shown.

    ```console    lines that begin with `$ cachesim` are run; the text below them is compared,
                  without lines at `...`; CACHESIM_UPDATE_SNAPSHOTS=1 writes what was printed.
                  Where nothing is shown the ring's arithmetic will do, which is faster
    ```python     executed, block after block of one page; `mapping` is the page's last scenario
    ```toml       read; one that is a whole scenario must be a right one

Generated pages are not looked at: the lessons are run by `tests/learn`.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pages import commands as command_pages

from cachesim.cli.app import COMMANDS, real_functions
from cachesim.cli.main import main
from cachesim.play import run
from cachesim.scenario import full_profile, scenario_of
from tests.fixtures import Capture, Patch

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    ROOT / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"_generated", "_build"} & set(path.parts)
    ),
]
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SECTION: Final = re.compile(r"^## cachesim ([\w. -]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLAYS: Final = {"run"}
"""Commands that take an arithmetic."""
SLOW: Final = {"cachesim check llama.cpp@b11549+erase-equal --scope 3"}
"""Commands that `make check` runs."""
IN_ORDER: Final = "docs/quickstart.md"
"""The page whose commands use the files of those before them."""


class Session(NamedTuple):
    """A command, and its output on the page."""

    page: str
    command: str
    shown: str


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def sessions() -> Iterator[Session]:
    for page in PAGES:
        for language, text in blocks(page):
            if language != "console":
                continue
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                if command.startswith("cachesim "):
                    yield Session(str(page.relative_to(ROOT)), command, shown.strip("\n"))


def words_of(session: Session, folder: Path) -> list[str]:
    """A command line with its wildcards filled in, as a shell would."""
    words = []
    for word in shlex.split(session.command, comments=True)[1:]:
        found = (
            sorted(str(path.relative_to(folder)) for path in folder.glob(word))
            if "*" in word
            else []
        )
        words += found or [word]
    if not session.shown and words[0] in PLAYS and "--arithmetic" not in words:
        words += ["--arithmetic", "ring"]
    return words


def is_shown(shown: str, printed: str) -> bool:
    """Check the lines that a page shows; `...` stands for any number of lines."""
    lines = ["(?:.*\n)*" if part == "..." else f"{re.escape(part)}\n" for part in shown.split("\n")]
    return bool(re.fullmatch("".join(lines), f"{printed}\n"))


def refreshed(session: Session, printed: str) -> None:
    """Write a command's current output into its page."""
    page = ROOT / session.page
    before = f"$ {session.command}\n{session.shown}\n"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(before, f"$ {session.command}\n{printed}\n"), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder that looks like a checkout, as wide as a page."""
    for name in ("scenarios", "tests", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def compare(session: Session, folder: Path, capsys: Capture) -> None:
    status = main(words_of(session, folder))
    printed = capsys.readouterr()

    assert status in {0, 1}, printed.err
    assert printed.out or "-o" in session.command
    found = printed.out.strip("\n")
    if session.shown and not is_shown(session.shown, found):
        if os.environ.get("CACHESIM_UPDATE_SNAPSHOTS") and "\n...\n" not in session.shown:
            refreshed(session, found)
        else:
            assert session.shown == found


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "session",
    [
        pytest.param(each, marks=[pytest.mark.thorough] * (each.command in SLOW), id=each.command)
        for each in sessions()
        if not (each.command.startswith("cachesim real") and "vectors" not in each.command)
        and each.page != IN_ORDER
    ],
)
def test_a_command_prints_what_is_shown(session: Session, folder: Path, capsys: Capture) -> None:
    compare(session, folder, capsys)


@pytest.mark.thorough
def test_the_commands_of_the_quick_start_work_one_after_the_other(
    folder: Path, capsys: Capture
) -> None:
    steps = [session for session in sessions() if session.page == IN_ORDER]

    for step in steps:
        compare(step, folder, capsys)

    assert len(steps) > 4
    assert all(step.shown or "-o" in step.command for step in steps)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("a\nb\nc", True),
        ("a\n...\nc", True),
        ("...\nc", True),
        ("a\n...", True),
        ("a\nc", False),
        ("b\n...", False),
        ("a\n...\nd\n...\nc", False),
        ("a\n...\nb", False),
    ],
)
def test_only_lines_at_an_ellipsis_may_be_left_out(shown: str, expected: bool) -> None:
    assert expected == is_shown(shown, "a\nb\nc")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(language == "python" for language, _ in blocks(page))],
    ids=lambda page: page.name,
)
def test_python_runs(page: Path, capsys: Capture) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for language, text in blocks(page):
        if language == "toml":
            names["mapping"] = tomllib.loads(text)
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_is_read_and_scenarios_are_right(page: Path) -> None:
    for language, text in blocks(page):
        if language == "toml" and "format" in tomllib.loads(text):
            scenario_of(tomllib.loads(text))


def test_the_report_of_the_guide_shows_what_the_guide_expects() -> None:
    texts = [
        text for language, text in blocks(ROOT / "docs/howto/from-a-log.md") if language == "toml"
    ]
    scenario = scenario_of(tomllib.loads("\n".join(texts)))

    played = run(scenario, full_profile("llama.cpp", "b9538"), arithmetic="ring")

    assert () == played.mismatches
    assert [0, 0, 184, 184] == [step.cached for step in played.steps]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_a_sentence_have_the_options_they_name(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    sections = commands()
    for command in re.findall(r"`cachesim ([^`]+)`", text):
        words = command.split()
        names = [name for name in (" ".join(words[:2]), words[0]) if name in sections]
        assert names or words[0].isupper(), command
        for option in (word for word in words if word.startswith("--") and word != "--help"):
            assert option in sections[names[0]], command


@cache
def commands() -> dict[str, str]:
    """The help of each command, those of `real` included."""
    lines = [(name,) for name in COMMANDS] + [("real", name) for name in real_functions()]
    return {" ".join(words): command_pages.help_of(*words) for words in lines}


def test_blocks_are_found() -> None:
    assert 5 <= len(
        [session for session in sessions() if session.page not in {"README.md", IN_ORDER}]
    )
    assert any(session.page == "README.md" and session.shown for session in sessions())
