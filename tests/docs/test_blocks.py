"""Every block of code in the README and in the documentation is run, and prints what it shows.

    ```console    lines that begin with `$ cachesim` are run; what stands below them is compared.
                  Where nothing is shown the ring's arithmetic will do, which is faster
    ```python     executed, block after block of one page; `mapping` is the page's last scenario
    ```toml       read; one that is a whole scenario must be a right one

Generated pages are not looked at: the lessons are run by `tests/lessons`.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pages import commands as command_pages

from cachesim.cli.main import main
from cachesim.scenario import full_profile, run, scenario_of

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
PLAYS: Final = {"run", "explain", "diff"}
"""Commands that take an arithmetic."""


class Session(NamedTuple):
    """A command, and what the page shows below it."""

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


def is_real(session: Session) -> bool:
    """Those need the real engines; `make check` runs them."""
    return session.command.startswith("cachesim real") and "vectors" not in session.command


def words_of(session: Session, folder: Path) -> list[str]:
    """A command line with its wildcards filled in, as a shell would."""
    words = []
    for word in shlex.split(session.command, comments=True)[1:]:
        found = (
            sorted(str(each.relative_to(folder)) for each in folder.glob(word))
            if "*" in word
            else []
        )
        words += found or [word]
    if not session.shown and words[0] in PLAYS and "--arithmetic" not in words:
        words += ["--arithmetic", "ring"]
    return words


@pytest.mark.parametrize(
    "session", [each for each in sessions() if not is_real(each)], ids=lambda each: each.command
)
def test_a_command_prints_what_is_shown(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("scenarios", "tests", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    status = main(words_of(session, tmp_path))
    printed = capsys.readouterr()

    assert status in {0, 1}, printed.err
    assert printed.out
    if session.shown:
        assert session.shown == printed.out.strip("\n")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(language == "python" for language, _ in blocks(page))],
    ids=lambda page: page.name,
)
def test_python_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    sections = dict(
        re.findall(r"^## cachesim ([\w. -]+)\n(.*?)^```$", commands(), re.DOTALL | re.MULTILINE)
    )
    for command in re.findall(r"`cachesim ([^`]+)`", text):
        words = command.split()
        names = [name for name in (" ".join(words[:2]), words[0]) if name in sections]
        assert names or words[0].isupper(), command
        for option in (word for word in words if word.startswith("--") and word != "--help"):
            assert option in sections[names[0]], command


@cache
def commands() -> str:
    return command_pages.page()


def test_blocks_are_found() -> None:
    assert 5 <= len([each for each in sessions() if each.page != "README.md"])
    assert any(each.page == "README.md" and each.shown for each in sessions())
