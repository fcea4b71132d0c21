"""Reading the package's own source: classes, fields, the comments and docstrings beside them."""

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import cachesim
from cachesim.engines import FAMILIES

PACKAGE = Path(cachesim.__file__).parent


def folders() -> dict[str, Path]:
    """Where each engine lives."""
    specs = {name: find_spec(family.room) for name, family in FAMILIES.items()}
    return {
        name: Path(next(iter(spec.submodule_search_locations)))
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    }


Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a dataclass, with what is said of it."""

    name: str
    kind: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A class with its fields."""

    name: str
    bases: tuple[str, ...]
    about: str
    fields: tuple[Field, ...]


def classes(path: Path) -> Iterator[Class]:
    """The classes of a file, in order."""
    notes = _comments(path)
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef):
            yield Class(
                name=node.name,
                bases=tuple(ast.unparse(base) for base in node.bases),
                about=ast.get_docstring(node) or "",
                fields=tuple(_fields(node, notes)),
            )


def _fields(node: ast.ClassDef, notes: dict[int, str]) -> Iterator[Field]:
    """A field's comment stands behind it; or a string does, on the next line."""
    for index, each in enumerate(node.body):
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)):
            continue
        about = notes.get(each.lineno, "")
        following = node.body[index + 1] if index + 1 < len(node.body) else None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            about = str(following.value.value)
        yield Field(name=each.target.id, kind=ast.unparse(each.annotation), about=about)


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Every docstring of a file, under the name of what it stands in; its own under none."""
    whole = ast.get_docstring(_tree(path))
    if whole:
        yield "", whole
    yield from _documented(_tree(path), "")


def _documented(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{inside}.{child.name}".strip(".")
            text = ast.get_docstring(child)
            if text:
                yield name, text
            yield from _documented(child, name)


def strings(path: Path) -> Iterator[tuple[str, str]]:
    """The strings that stand below constants, under the constant's name."""
    body = _tree(path).body
    for before, after in pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            target = before.target if isinstance(before, ast.AnnAssign) else None
            if isinstance(target, ast.Name):
                yield target.id, str(after.value.value)


def comments(path: Path) -> Iterator[tuple[str, str]]:
    """Comments under the function they stand in; lines that follow each other are one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, text in _comments(path).items():
        field = re.match(r"\s+(\w+): ", lines[line - 1])
        yield _owner(path, line) + (f".{field[1]}" if field else ""), text
    held: list[str] = []
    last, first = -1, 0
    for line, text in sorted(_comments(path, alone=True).items()):
        if line != last + 1 and held:
            yield _owner(path, first), " ".join(held)
            held = []
        first = first if held else line
        held.append(text)
        last = line
    if held:
        yield _owner(path, first), " ".join(held)


def _owner(path: Path, line: int) -> str:
    found = ""
    for name, start, end in _spans(_tree(path), ""):
        if start <= line <= end:
            found = name
    return found


def _spans(node: ast.AST, inside: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{inside}.{child.name}".strip(".")
            yield name, child.lineno, child.end_lineno or child.lineno
            yield from _spans(child, name)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _comments(path: Path, *, alone: bool = False) -> dict[int, str]:
    found = {}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_alone = token.line.lstrip().startswith("#")
            if token.type == tokenize.COMMENT and is_alone == alone:
                found[token.start[0]] = re.sub(r"^#\s?", "", token.string)
    return found
