"""The house rules that a machine can watch."""

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cachesim.engines import FAMILIES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cachesim"
WORKBENCH = ROOT / "conformance" / "real"

GROUND = {"units", "errors"}
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "engines": {"model"},
    "verify": {"model", "engines"},
    "scenario": {"model", "engines", "verify"},
    "play": {"model", "engines", "verify", "scenario"},
    "testing": {"model", "engines", "verify", "scenario", "play"},
    "why": {"model", "engines", "verify", "scenario", "play"},
    "traces": {"model", "engines", "verify", "scenario", "play", "why"},
    "prove": {"model", "engines", "verify", "scenario", "play", "testing", "why"},
    "export": {"model", "engines", "verify", "scenario", "play", "testing", "why", "prove"},
    "record": {"model", "engines", "verify", "scenario", "play", "why"},
    "probe": {
        "model",
        "engines",
        "verify",
        "scenario",
        "play",
        "testing",
        "why",
        "record",
        "traces",
    },
    "conform": {
        "model",
        "engines",
        "verify",
        "scenario",
        "play",
        "testing",
        "probe",
        "prove",
    },
    "report": {"model", "engines", "verify", "scenario", "play"},
    "learn": {"model", "engines", "verify", "scenario", "play", "testing", "report", "why"},
    "cli": {
        "model",
        "engines",
        "verify",
        "scenario",
        "play",
        "testing",
        "prove",
        "export",
        "report",
        "learn",
        "why",
        "record",
        "probe",
        "conform",
        "traces",
    },
}
IMPURE = {"datetime", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time"}


@cache
def modules() -> tuple[Path, ...]:
    return tuple(sorted((*PACKAGE.rglob("*.py"), *WORKBENCH.rglob("*.py"))))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that a module is made of; every rule below looks at it."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def broken(found: Callable[[Path], Iterable[Any]]) -> dict[str, list[Any]]:
    """Broken rules, by module."""
    every = {str(path.relative_to(ROOT)): list(found(path)) for path in modules()}
    return {name: each for name, each in every.items() if each}


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def package_of(path: Path) -> str:
    if path.is_relative_to(WORKBENCH):
        return "conformance"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def upward(path: Path) -> set[str]:
    """The packages above its own that a module imports from."""
    package = package_of(path)
    if package not in MAY_IMPORT:
        return set()
    packages = {
        name.removeprefix("cachesim.").split(".")[0]
        for name in imported_names(path)
        if name.startswith("cachesim.")
    }
    return packages & MAY_IMPORT.keys() - MAY_IMPORT[package] - {package}


def of_the_workbench(path: Path) -> set[str]:
    """What the program takes from the workbench; no wheel has it: entry points alone lead there."""
    told = {node.value for node in nodes_of(path) if isinstance(node, ast.Constant)}
    named = {each for each in told if isinstance(each, str) and "conformance." in each}
    return {
        name for name in imported_names(path) if name.split(".")[0] in {"conformance", "tests"}
    } | {each for each in named if not re.search(r"\s|^cachesim\.", each)}


def test_the_program_takes_nothing_from_the_workbench() -> None:
    programs = (*PACKAGE.rglob("*.py"), *ROOT.glob("_cachesim_*.py"))
    taken = {str(path.relative_to(ROOT)): of_the_workbench(path) for path in programs}

    assert {} == {name: names for name, names in taken.items() if names}


def test_imports_point_one_way() -> None:
    assert {} == broken(upward)


STAGES = ("read", "infer", "replay", "rebuild", "explain", "advise")


def backward(path: Path) -> list[str]:
    """The later stages of `why` that a module of an earlier one imports."""
    folder = path.relative_to(ROOT).parts[:-1]
    if folder[:2] != ("cachesim", "why") or len(folder) == 2:
        return []
    later = tuple(f"cachesim.why.{stage}" for stage in STAGES[STAGES.index(folder[2]) + 1 :])
    return [name for name in sorted(imported_names(path)) if name.startswith(later)]


def test_no_stage_of_why_imports_a_later_one() -> None:
    assert {} == broken(backward)


CORE = {"model", "engines", "verify", "scenario", "play", "testing", "report"}


def test_the_core_imports_nothing_of_what_surrounds_it() -> None:
    assert set() == {each for name in CORE for each in MAY_IMPORT[name]} - CORE


def test_every_package_is_watched() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert MAY_IMPORT.keys() == packages


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = graph[ahead.pop()] - seen
        seen |= fresh
        ahead += fresh
    return seen


def test_modules_do_not_import_each_other() -> None:
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules()
    }
    found = {name: imported_names(path) & names.keys() - {name} for name, path in names.items()}
    graph = {
        name: {one for one in imports if not any(each.startswith(f"{one}.") for each in imports)}
        for name, imports in found.items()
    }
    assert set() == {name for name in graph if name in reached(name, graph)}


def careless(path: Path) -> set[str]:
    """Text of a file, a log or a server could steer the terminal on one of Rich's own."""
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    return {call.id for call in calls if isinstance(call, ast.Name)} & {"Console", "print"}


def test_every_console_is_careful_with_what_it_prints() -> None:
    assert {} == broken(careless)


def impure(path: Path) -> set[str]:
    if package_of(path) not in {"model", "engines", "verify"}:
        return set()
    return {name.split(".")[0] for name in imported_names(path)} & IMPURE


def test_the_core_reads_no_clock_no_file_and_draws_no_chance() -> None:
    assert {} == broken(impure)


def test_engines_do_not_know_each_other_but_for_those_they_are_built_from() -> None:
    packages = {family.package.rpartition(".")[2]: family for family in FAMILIES.values()}
    for path in sorted((PACKAGE / "engines").rglob("*.py")):
        package = path.relative_to(PACKAGE / "engines").parts[0]
        names = {name for name in imported_names(path) if name.startswith("cachesim.engines.")}
        others = {name.split(".")[2] for name in names} & packages.keys() - {package}
        kin = (
            packages[package].kin
            if package in packages
            else FAMILIES
            if package == "__init__.py"
            else ()
        )
        assert others <= {FAMILIES[name].package.rpartition(".")[2] for name in kin}, path


def test_every_engine_is_registered() -> None:
    packages = {path.parent.name for path in (PACKAGE / "engines").glob("*/family.py")}
    assert packages == {family.package.rpartition(".")[2] for family in FAMILIES.values()}
    assert list(FAMILIES) == [family.name for family in FAMILIES.values()]


def test_files_stay_short_enough_to_read() -> None:
    assert {} == broken(lambda path: path.read_text().splitlines()[800:])


def long_functions(path: Path) -> list[str]:
    functions = [
        node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        function.name
        for function in functions
        if (function.end_lineno or 0) - function.lineno >= 100
    ]


def test_functions_stay_short_enough_to_read() -> None:
    assert {} == broken(long_functions)


def without_a_reason(path: Path) -> list[str]:
    exempt = [line for line in path.read_text().splitlines() if "# noqa" in line]
    return [line for line in exempt if not re.search(r"# noqa: [A-Z0-9, ]+ - \w", line)]


def test_every_exemption_from_a_rule_has_its_reason() -> None:
    assert {} == broken(without_a_reason)


NAMES_AN_ENGINE = {"conformance", "export", "learn", "probe", "prove", "why"}
"""Rooms that are about one engine's logs, its package, its tests, or its story."""


def engines_named(path: Path) -> set[Any]:
    """Names and releases of engines; who is not about one asks the families."""
    package = package_of(path)
    if package in NAMES_AN_ENGINE or (package == "engines" and path.parent.name != "engines"):
        return set()
    if path.parent == PACKAGE / "engines" and path.stem in {"__init__", "former"}:
        return set()  # where the name of an engine leads to its package, a former one to today's
    told = {node.value for node in nodes_of(path) if isinstance(node, ast.Constant)}
    return told & {name for family in FAMILIES.values() for name in (family.name, *family.names())}


def test_only_an_engines_own_package_knows_its_name_and_releases() -> None:
    """A list of engines or releases would be a second one."""
    assert {} == broken(engines_named)


def test_no_two_files_of_tests_share_a_name() -> None:
    """Outside of packages pytest tells them apart by name alone, and collects neither."""
    names = [
        path.name
        for folder in ("tests", "conformance/tests")
        for path in (ROOT / folder).rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert [] == sorted({name for name in names if names.count(name) > 1})


PROGRAMS = ("cachesim", "conformance")


def imported_from_the_package(path: Path) -> Iterable[tuple[str, str]]:
    """Modules and names that the imports of a file at its top level name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PROGRAMS):
            yield from ((node.module or "", name.name) for name in node.names)


def names_defined_in(module: str) -> set[str]:
    """Names that a module's file gives at its top level, read without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    names: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                names.add(name)
            case ast.ImportFrom(names=imported):
                names |= {alias.asname or alias.name for alias in imported}
            case ast.Assign() | ast.AnnAssign():
                names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names


def has(module: str, name: str) -> bool:
    """True if a module has a name, which may be a module below it."""
    try:
        found = import_module(module)
    except ModuleNotFoundError as absent:
        # A package that only some users install: the file must still define the name.
        if (absent.name or "").startswith(PROGRAMS):
            raise
        return name in names_defined_in(module)
    below = hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None
    return below or hasattr(found, name)


def test_names_that_programs_beside_the_package_import_exist() -> None:
    programs = [
        path
        for folder in ("conformance", "tests", "docs", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    missing = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in programs
        for module, name in imported_from_the_package(path)
        if not has(module, name)
    ]

    assert [] == missing


BESIDE_A_FILE = re.compile(
    r"""Path\(__file__\)(?:\.resolve\(\))?\.parents?(?:\[(\d)\])?((?:\s*/\s*"[^"]+")+)"""
)


def test_every_path_that_starts_at_a_file_exists() -> None:
    """A file that moves takes its count of parents with it, and the count then names nothing."""
    made = {ROOT / "docs" / "_generated", ROOT / "docs" / "_build"}
    missing = {
        f"{path.relative_to(ROOT)}: {place.relative_to(ROOT)}"
        for folder in ("cachesim", "conformance", "tests", "docs", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for above, below in BESIDE_A_FILE.findall(path.read_text(encoding="utf-8"))
        for place in [path.parents[int(above or 0)].joinpath(*re.findall(r'"([^"]+)"', below))]
        if place not in made and not place.exists()
    }

    assert set() == missing
