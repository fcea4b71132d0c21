"""The port can be laid beside upstream: the table is true, functions name what they follow."""

import ast
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cachesim
from conformance.real.ik_llama.orders import mismatch

ROOM: Final = Path(cachesim.__file__).parent / "engines" / "llamacpp"
PAGE: Final = Path(__file__).parents[3] / "docs" / "architecture.md"

PORTED: Final = (
    "update_slots.py", "checkpoints.py", "speculative.py",
    "selection.py", "prompt_cache.py",
)  # fmt: skip
"""Files that upstream has a counterpart of, function by function."""

OURS: Final = {
    "update_slots.py": {"_decode"},
    "checkpoints.py": {"numbers_of", "_drop"},
    "speculative.py": {"_report"},
    "selection.py": {"candidates_of", "_rule_out_slots", "_settle", "emit_state"},
    "prompt_cache.py": {"_drop_oldest"},
}
"""Functions that only say what happened, or hand on."""

NAMES_UPSTREAM: Final = re.compile(r"upstream|`[a-z_]+(::\w+)?\(?\)?`|#\d{4,5}", re.IGNORECASE)


def functions(file: str) -> Iterator[ast.FunctionDef]:
    tree = ast.parse((ROOM / file).read_text())
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def table() -> Iterator[tuple[str, list[str]]]:
    """Each function of the table, and the files it may stand in."""
    for row in rows():
        files = re.findall(r"`(\w+\.py)`", row[-1])
        for name in re.findall(r"`([\w.]+)`", row[-2]) if files else ():
            yield name, files


def source(file: str) -> str:
    """A file of the server or of its memory; no two have one name that a table has."""
    return "".join(
        path.read_text() for path in (ROOM / file, ROOM / "memory" / file) if path.exists()
    )


@pytest.mark.parametrize("file", PORTED)
def test_a_ported_function_of_ten_lines_or_more_names_what_it_follows(file: str) -> None:
    silent = [
        function.name
        for function in functions(file)
        if (function.end_lineno or 0) - function.lineno >= 10
        and function.name not in OURS.get(file, set())
        and not NAMES_UPSTREAM.search(ast.get_docstring(function) or "")
    ]
    assert silent == []


def test_every_function_of_the_table_stands_where_it_says() -> None:
    named = list(table())
    missing = [
        (name, files)
        for name, files in named
        if not any(
            re.search(rf"(def|class) {name.split('.')[-1]}\b", source(file)) for file in files
        )
    ]
    assert len(named) > 70
    assert missing == []


def test_every_function_that_others_may_call_is_in_the_table() -> None:
    named = {name for name, _ in table()}
    public = {
        function.name
        for function in functions("update_slots.py")
        if not function.name.startswith("_")
    }
    assert public - named == set()


MEMORIES: Final = {
    "llama_kv_cache": "AttentionCache",
    "llama_kv_cache_iswa": "WindowPair",
    "llama_memory_recurrent": "RecurrentMemory",
    "llama_memory_hybrid": "HybridMemory",
}
"""Results of `llama_model::create_memory`, and our class of each."""


@pytest.mark.parametrize("upstream", MEMORIES)
def test_every_kind_of_memory_is_in_the_table_and_has_upstreams_operations(upstream: str) -> None:
    named = [
        row for row in rows() if f"`{upstream}`" in row[0] and f"`{MEMORIES[upstream]}`" in row[1]
    ]
    assert len(named) == 1
    (ours,) = (
        node
        for node in ast.walk(ast.parse(source(re.findall(r"`(\w+\.py)`", named[0][-1])[0])))
        if isinstance(node, ast.ClassDef) and node.name == MEMORIES[upstream]
    )
    has = {each.name for each in ours.body if isinstance(each, ast.FunctionDef)}
    operations = {
        "clear", "seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "seq_pos_min", "seq_pos_max",
        "init_batch", "state_write", "state_read",
    }  # fmt: skip
    assert operations - has == set()


@pytest.mark.parametrize("anchor", ["[TAG_PROMPT_LOGITS]", "[TAG_CHECKPOINTS_FIX_POS_MIN]"])
def test_upstreams_anchors_are_found(anchor: str) -> None:
    assert [path.name for path in ROOM.glob("*.py") if anchor in path.read_text()]
    assert anchor in PAGE.read_text()


def test_oddities_are_marked_one_way() -> None:
    other = re.compile(r"\(traps?\b|Traps? of|# trap")
    assert [path.name for path in ROOM.rglob("*.py") if other.search(path.read_text())] == []


# Workloads that were played on the real servers replay with equal counts, slot by slot.

VECTORS = Path(__file__).parents[2] / "vectors"


def workloads(release: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"server-{release}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "release",
    [*(pytest.param(each, marks=pytest.mark.thorough) for each in ("b9093", "b9538")), "b11549"],
)
def test_every_request_of_the_real_server_replays(release: str) -> None:
    lines = workloads(release)

    assert {line["id"]: found for line in lines if (found := mismatch(line)) is not None} == {}
    assert sum(len(line["steps"]) for line in lines) == 1133


def test_a_workload_of_another_release_is_told_apart() -> None:
    """The files differ between releases, so a port that ignored its rules would be seen."""
    june, october = workloads("b9538"), workloads("b11549")
    crossed = [
        dict(line, profile=other["profile"])
        for line, other in zip(june[::5], october[::5], strict=True)
    ]

    assert sum(mismatch(line) is not None for line in crossed) >= 5
