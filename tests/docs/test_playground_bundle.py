"""The standard library that the playground leaves out, and the imports of what it packs."""

import ast
from collections.abc import Iterator

import pytest
from make_playground import ROOT, UNUSED_STDLIB

CORE = ("model", "engines", "verify", "scenario", "play", "report")


def imported() -> Iterator[str]:
    """The first part of every module that the core imports."""
    for package in CORE:
        for path in (ROOT / "cachesim" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                yield from (name.partition(".")[0] for name in names)


@pytest.mark.thorough
def test_no_module_that_the_core_imports_is_left_out_of_the_playground() -> None:
    assert set() == set(imported()) & {name.removesuffix(".py") for name in UNUSED_STDLIB}
