"""Every port can be laid beside upstream: it says which function or class it follows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import cachesim
from cachesim.engines import FAMILIES
from cachesim.engines.facts import shipped

ENGINES: Final = Path(cachesim.__file__).parent / "engines"

NAMES_UPSTREAM: Final = re.compile(
    r"upstream|follows|`[a-z0-9_.]+(::\w+)?\(?\)?`|#\d{3,5}", re.IGNORECASE
)

OUR_FILES: Final = frozenset(
    {
        "held", "integrity", "causes", "options", "family", "rules", "build", "request",
        "search", "recomputed", "stored", "releases", "vocabulary", "observe", "account",
    }
)  # fmt: skip
"""Modules for tools and for a server's content, without a counterpart upstream."""

OURS: Final = frozenset(
    {
        # what is said of a decision
        "numbers_of", "_drop", "_rule_out_slots", "_done", "_describe",
        "candidates_of",
        # the toy network behind the memory, and the stores that it sees
        "network_ubatch", "_draft_network", "Drafter", "AttentionCompanion", "texts",
        "check_tokens", "check_groups", "_check_states", "_stored",
        "Forward", "_Call", "CachedRows", "RecurrentRows", "as_visible", "blank_batch", "family_of",
        "_landed", "MemoryServer",
        "_gather_of_one", "ChunkStore", "Pages", "Contents", "Visibility", "Marconi",
        "_VisibleCells", "_serve",
        # what a server holds, and whether its books agree
        "held", "_cells", "_described", "_holding",
        # saved bytes as values
        "Blob", "_pack_field", "_fields", "_row_block", "_checkpoint",
        # forced replies and options
        "_advance", "_pieces", "_put", "pass_over_replies", "_decode_replies", "context_params",
        # shortcuts; a property holds each to what it stands for
        "_lay_out", "parts_of", "_set_bits", "SequenceView",
        "hash_set_order", "_usable_cells", "fill_straight", "Run",
    }
)  # fmt: skip
"""Classes and functions of ported files that upstream has no counterpart of."""


def files(engine: str) -> list[Path]:
    package = ENGINES / FAMILIES[engine].package.rpartition(".")[2]
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if OUR_FILES.isdisjoint({path.stem, path.relative_to(package).parts[0].removesuffix(".py")})
        and not path.stem.endswith("events")
    ]


def silent(path: Path) -> Iterator[str]:
    """Functions of ten lines or more, by name or by class, that do not say what they follow."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name in OURS:
            continue
        if NAMES_UPSTREAM.search(ast.get_docstring(node) or ""):
            continue
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (
            f"{path.relative_to(ENGINES)}: {node.name}"
            for each in inside
            if isinstance(each, ast.FunctionDef)
            and (isinstance(each, ast.FunctionDef) and (each.end_lineno or 0) - each.lineno >= 10)
            and not NAMES_UPSTREAM.search(ast.get_docstring(each) or "")
        )


@pytest.mark.parametrize("engine", shipped())
def test_what_is_ported_names_what_it_follows(engine: str) -> None:
    assert sorted({each for path in files(engine) for each in silent(path)}) == []


def test_what_is_called_ours_exists() -> None:
    names = {
        node.name
        for engine in shipped()
        for path in files(engine)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert OURS - names == set()
