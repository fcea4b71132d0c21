"""Reading the package's own source: classes, fields, the comments and docstrings beside them."""

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import cachesim
from cachesim.engines import FAMILIES

PACKAGE = Path(cachesim.__file__).parent


def folders() -> dict[str, Path]:
    """Package of each engine."""
    specs = {name: find_spec(family.package) for name, family in FAMILIES.items()}
    return {
        name: Path(next(iter(spec.submodule_search_locations)))
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a dataclass, with its description."""

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
    """A field's comment follows it; or a string does, on the next line."""
    for index, each in enumerate(node.body):
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)):
            continue
        about = notes.get(each.lineno, "")
        following = node.body[index + 1] if index + 1 < len(node.body) else None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            about = str(following.value.value)
        yield Field(name=each.target.id, kind=ast.unparse(each.annotation), about=about)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _comments(path: Path) -> dict[int, str]:
    """Comments after code, by line."""
    found = {}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and not token.line.lstrip().startswith("#"):
                found[token.start[0]] = re.sub(r"^#\s?", "", token.string)
    return found
