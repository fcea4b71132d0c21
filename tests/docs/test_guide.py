"""The guide for contributors names things that exist: files, functions, tests, targets, traps."""

import ast
import re
from pathlib import Path

import pytest

from cachesim.engines.facts import shipped
from cachesim.engines.llamacpp import releases
from tests.test_house import MAY_IMPORT, PACKAGE, ROOT, STAGES

GUIDES = ("CONTRIBUTING.md", "docs/architecture.md")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PORT = PACKAGE / "engines" / "llamacpp"


def section(title: str) -> str:
    return ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip


def test_the_table_of_rooms_is_what_the_house_test_watches() -> None:
    halves = section("Core and surroundings").partition("| around it")
    table = {
        cells[0].strip("`"): cells[2]
        for half in (halves[0], halves[1] + halves[2])
        for cells in rows(half)
    }

    assert MAY_IMPORT.keys() == table.keys()
    for room, allowed in table.items():
        expected = set(MAY_IMPORT) - {"cli"} if allowed == "all of them" else set(named(allowed))
        assert MAY_IMPORT[room] == expected, room


def test_the_table_of_stages_is_what_the_house_test_watches() -> None:
    stages = [cells[0].strip("`") for cells in rows(section("The stages of why"))]
    assert [*STAGES, "beside them"] == stages


def test_every_engine_says_which_files_it_follows_and_at_which_commit() -> None:
    table = rows(section("Which files, at which commit"))

    assert set(shipped()) == {cells[0] for cells in table}
    assert [] == [cells[0] for cells in table if not named(cells[1]) or not cells[2]]


@pytest.mark.parametrize("guide", GUIDES)
def test_every_file_that_a_guide_names_is_there(guide: str) -> None:
    text = (ROOT / guide).read_text()
    paths = [
        each.partition("::")
        for each in named(text)
        if re.match(r"(cachesim|conformance|tests|docs)/", each)
    ]

    assert [] == [path for path, _, _ in paths if not (ROOT / path).exists()]
    for path, _, test in paths:
        assert not test or test in functions(ROOT / path), test


@pytest.mark.parametrize("guide", GUIDES)
def test_every_link_of_a_guide_leads_somewhere(guide: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / guide).read_text())
    local = [target for target in targets if not target.startswith(("http", "_generated/"))]

    assert [] == [each for each in local if not (ROOT / guide).parent.joinpath(each).exists()]


def test_every_target_of_make_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join((ROOT / guide).read_text() for guide in GUIDES)

    assert set(re.findall(r"\bmake ([a-z]+)\b(?=`|\s\s)", text)) <= targets


def test_the_traps_that_tests_refer_to_are_in_the_list() -> None:
    numbers = [int(each) for each in re.findall(r"^(\d+)\. ", section("Traps"), re.MULTILINE)]
    sources = [*(ROOT / "tests").rglob("*.py"), *PACKAGE.rglob("*.py")]
    used = {
        int(number)
        for path in sources
        for number in re.findall(r"def test_(\d\d)_|\b[Tt]rap (\d+)\b", path.read_text())
        for number in number
        if number
    }

    assert list(range(1, len(numbers) + 1)) == numbers
    assert used
    assert used <= set(numbers)


def test_the_patch_of_the_guide_can_be_pasted() -> None:
    guide = (ROOT / "docs" / "howto" / "check-your-patch.md").read_text()
    (text,) = re.findall(r"```text\n(Patch\(.*?)```", guide, re.DOTALL)
    assert "`PROPOSED` of `releases.py`" in guide

    patch, *_ = eval(f"({text})", vars(releases))

    rules = releases.HISTORY.rules("b11549")
    assert "b11549" in patch.fits
    assert ("beyond", "equal") == (rules.reuse.erasure, patch.lay(rules).reuse.erasure)
