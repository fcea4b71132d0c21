"""The house rules that a machine can watch."""

import ast
import re
from pathlib import Path

import pytest

from cachesim.engines import FAMILIES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cachesim"

GROUND = {"units", "errors"}
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "engines": {"model"},
    "verify": {"model", "engines"},
    "scenario": {"model", "engines", "verify"},
    "testing": {"model", "engines", "verify", "scenario"},
    "logs": {"model", "engines", "verify", "scenario"},
    "traces": {"model", "engines", "verify", "scenario"},
    "real": {"model", "engines", "verify", "scenario", "testing", "logs"},
    "record": {"model", "engines", "verify", "scenario", "logs"},
    "report": {"model", "engines", "verify", "scenario"},
    "lessons": {"model", "engines", "verify", "scenario", "testing", "report", "logs"},
    "cli": {
        "model",
        "engines",
        "verify",
        "scenario",
        "testing",
        "real",
        "report",
        "lessons",
        "logs",
        "record",
        "traces",
    },
}
IMPURE = {"datetime", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    if room not in MAY_IMPORT:
        return

    rooms = {name.split(".")[1] for name in imported_names(path) if name.startswith("cachesim.")}
    upward = rooms & MAY_IMPORT.keys() - MAY_IMPORT[room] - {room}

    assert upward == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_console_is_careful_with_what_it_prints(path: Path) -> None:
    """Text of a file, a log or a server could steer the terminal on one of Rich's own."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}

    assert names.isdisjoint({"Console", "print"})


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_reads_no_clock_no_file_and_draws_no_chance(path: Path) -> None:
    if room_of(path) not in {"model", "engines", "verify"}:
        return

    roots = {name.split(".")[0] for name in imported_names(path)}

    assert roots & IMPURE == set()


def test_engines_do_not_know_each_other_but_for_those_they_are_built_from() -> None:
    rooms = {each.room.rpartition(".")[2]: each for each in FAMILIES.values()}
    for path in sorted((PACKAGE / "engines").rglob("*.py")):
        room = path.relative_to(PACKAGE / "engines").parts[0]
        names = {name for name in imported_names(path) if name.startswith("cachesim.engines.")}
        others = {name.split(".")[2] for name in names} & rooms.keys() - {room}
        kin = rooms[room].kin if room in rooms else FAMILIES if room == "__init__.py" else ()
        assert others <= {FAMILIES[name].room.rpartition(".")[2] for name in kin}, path


def test_every_engine_is_registered() -> None:
    rooms = {path.parent.name for path in (PACKAGE / "engines").glob("*/family.py")}
    assert rooms == {each.room.rpartition(".")[2] for each in FAMILIES.values()}
    assert list(FAMILIES) == [each.name for each in FAMILIES.values()]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_stay_short_enough_to_read(path: Path) -> None:
    long = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 60
    ]
    assert [] == long


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_exemption_from_a_rule_has_its_reason(path: Path) -> None:
    exempt = [line for line in path.read_text().splitlines() if "# noqa" in line]
    assert [] == [line for line in exempt if not re.search(r"# noqa: [A-Z0-9, ]+ - \w", line)]


NAMES_AN_ENGINE = {"logs", "real", "lessons"}
"""Rooms that are about one engine's logs, its package, or its story."""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_an_engines_own_room_knows_its_name_and_releases(path: Path) -> None:
    """Everybody else asks the families: a list of engines or releases would be a second one."""
    room = room_of(path)
    if room in NAMES_AN_ENGINE or (room == "engines" and path.parent.name != "engines"):
        return
    if path == PACKAGE / "engines" / "__init__.py":  # where each engine's name leads to its room
        return

    told = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    names = {name for family in FAMILIES.values() for name in (family.name, *family.names())}
    assert told & names == set()


def test_no_two_files_of_tests_share_a_name() -> None:
    """Outside of packages pytest tells them apart by name alone, and collects neither."""
    names = [
        path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert [] == sorted({name for name in names if names.count(name) > 1})
