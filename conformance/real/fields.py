"""The fields that a release itself declares, beside the table of those that are known here.

They are read from the release's source, as the installed package has it: nothing of it is run.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cachesim.engines.family import Family
from cachesim.prove.environment import UnpackedWheel
from cachesim.prove.playing import console


def differing_fields(
    family: Family[Any, Any], declared: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """A line for each field without a row, and for each row whose field is gone."""
    rows = {
        (field.owner, field.name) for field in family.upstream_fields() if field.owner in declared
    }
    there = {(owner, name) for owner, names in declared.items() for name in names}
    table = family.configuration
    return (
        *(f"{owner}.{name} has no row in {table}" for owner, name in sorted(there - rows)),
        *(f"{owner}.{name} is gone; its row is in {table}" for owner, name in sorted(rows - there)),
    )


def judge_wheel(family: Family[Any, Any], version: str) -> int:
    """The same as `judge_fields`, of a wheel's files alone: nothing is installed."""
    files = {place.partition(":")[0] for place in _sources(family).values()}
    wheel = UnpackedWheel(
        name=f"{family.name}-{version}-fields",
        requirements=(f"{family.name}=={version}",),
        kept=re.compile("|".join(map(re.escape, sorted(files)))),
    )
    wheel.ready()
    return judge_fields(family, version, wheel.folder)


def judge_fields(family: Family[Any, Any], version: str, root: Path) -> int:
    """Say which fields of a version's configuration are unknown here; 1 if any is."""
    if not family.configuration:
        return 0
    return judge_declared(family, version, fields_in(family, root))


def judge_declared(
    family: Family[Any, Any], version: str, declared: Mapping[str, frozenset[str]]
) -> int:
    """The same for fields that were read otherwise."""
    lines, out = differing_fields(family, declared), console()
    for line in lines:
        out.print(f"{family.name} {version}: {line}", markup=False)
    if not lines:
        count = sum(map(len, declared.values()))
        out.print(f"{family.name} {version}: all {count} fields of its configuration are known")
    return int(bool(lines))


def fields_in(family: Family[Any, Any], root: Path) -> dict[str, frozenset[str]]:
    """The fields of each owner that the files below a folder declare."""
    found = {}
    for owner, place in _sources(family).items():
        file, _, name = place.partition(":")
        found[owner] = declared_in(root / file, name or owner)
    return found


def _sources(family: Family[Any, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = import_module(family.configuration).SOURCES
    return found


def declared_in(file: Path, owner: str) -> frozenset[str]:
    """The fields of a class, the arguments that a function adds to a parser or takes out of its
    keywords, or its parameters.

    There are none where the file or the owner is not there: then each of its rows is gone.
    """
    if not file.is_file():
        return frozenset()
    found: ast.AST | None = ast.parse(file.read_text("utf-8"))
    for part in owner.split("."):
        found = _inside(found, part)
    if isinstance(found, ast.ClassDef):
        return frozenset(_of_class(found))
    if isinstance(found, ast.FunctionDef):
        for read in (_arguments, _popped, _parameters):
            names = frozenset(read(found))
            if names:
                return names
    return frozenset()


def _inside(tree: ast.AST | None, name: str) -> ast.AST | None:
    inside = getattr(tree, "body", ())
    kinds = ast.ClassDef | ast.FunctionDef
    return next((each for each in inside if isinstance(each, kinds) and each.name == name), None)


def _of_class(found: ast.ClassDef) -> Iterator[str]:
    """The annotated names of a class body, without constants of the class and private ones."""
    for each in found.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if "ClassVar" not in ast.unparse(each.annotation) and not each.target.id.startswith("_"):
            yield each.target.id


def _arguments(found: ast.FunctionDef) -> Iterator[str]:
    """The names under which a parser hands over what `add_argument` declares."""
    for call in ast.walk(found):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr != "add_argument":
            continue
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        flags = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
        long = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        dest = named.get("dest")
        name = str(dest.value) if isinstance(dest, ast.Constant) else long.lstrip("-")
        yield name.replace("-", "_")


def _popped(found: ast.FunctionDef) -> Iterator[str]:
    """The names that a function takes out of `kwargs`; a private one is no field."""
    for call in ast.walk(found):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "kwargs.pop":
            name = call.args[0]
            if isinstance(name, ast.Constant) and not str(name.value).startswith("_"):
                yield str(name.value)


def _parameters(found: ast.FunctionDef) -> Iterator[str]:
    given = found.args
    for posonlyarg in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if posonlyarg.arg != "self":
            yield posonlyarg.arg
