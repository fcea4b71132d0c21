"""Streams of KV events: consistent ones, and what does not fit in others."""

import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.traces.audit import Audit
from tests.fixtures import Capture, complaint, output


def stored(hashes: list[Any], parent: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "block_size": 16,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **more}


CLEARED = {"type": "AllBlocksCleared"}


def audit(*batches: Any) -> Audit:
    lines = [
        (
            {"ts": at, "events": batch}
            if (isinstance(batch, list) and not isinstance(batch[0], float))
            else batch,
            f"events:{at}",
        )
        for at, batch in enumerate(batches, 1)
    ]
    return Audit.of(lines)


@pytest.mark.parametrize(
    "batches",
    [
        ([stored(["a", "b"])], [stored(["c"], "b")], [removed("c"), removed("b", "a")]),
        ([stored(["a"])], [removed("a")], [stored(["a"])]),
        ([stored(["a"])], [CLEARED], [stored(["a"])]),
        ([stored(["a"], medium="GPU"), stored(["a"], medium="CPU")], [removed("a", medium="GPU")]),
        ([stored(["a"], cache_salt="s")], [stored(["a"], cache_salt="t")], [removed("a")]),
        ([stored(["a"], group_idx=0), stored(["a"], group_idx=1)],),
        (
            {"ts": 0.0, "events": [stored(["a"])], "data_parallel_rank": 0},
            {"ts": 0.0, "events": [stored(["a"])], "data_parallel_rank": 1},
        ),
        ([0.0, [["BlockStored", ["a"], None, [1], 16, None, "GPU"]], 3],),
    ],
)
def test_streams_without_a_fault(batches: Any) -> None:
    found = audit(*batches)

    assert {} == found.as_dict()["found"]
    assert "The stream is consistent" in found.sentences()[-1]


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        (([removed("a")],), {"unknown": 1}),
        (([stored(["a"])], [removed("a", "a")]), {"unknown": 1}),
        (([stored(["b"], "a")],), {"orphan": 1, "unreachable": 1}),
        (([stored(["a"])], [stored(["a"])]), {"again": 1}),
        (([stored(["a", "b"])], [removed("a")]), {"unreachable": 1}),
        (
            (
                {"ts": 0.0, "events": [], "seq": 4},
                {"ts": 0.0, "events": [], "seq": 7},
                {"ts": 0.0, "events": [], "seq": 5},
            ),
            {"lost": 2, "late": 1},
        ),
        (({"ts": 2.0, "events": []}, {"ts": 1.0, "events": []}), {"late": 1}),
    ],
)
def test_what_does_not_fit_is_counted(batches: Any, found: dict[str, int]) -> None:
    assert found == audit(*batches).as_dict()["found"]


def test_a_router_is_told_which_blocks_it_took_for_held(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "events.jsonl"
    lines = [
        {"ts": 0.0, "events": [stored([11, 12])]},
        {"ts": 1.0, "events": [stored([11, 12])]},  # evicted in between, and nobody was told
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    printed = " ".join(output(capsys, ["why", str(path)], 1).split())
    assert (
        "2 batches of 1 rank: 4 blocks stored, 0 removed, cleared 0 times; at most 2 held"
        in printed
    )
    assert "2 blocks are stored again without a removal in between" in printed
    assert "block 11, rank 0, " in printed
    found = json.loads(output(capsys, ["why", str(path), "--format", "json"], 1))
    assert ({"again": 2}, 2) == (found["found"], found["held"])
    assert f"{path}:2" == found["examples"][0]["place"]


def test_a_wrong_batch_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('[0.0, [["BlockMoved", [1]]]]\n')

    assert f"{path}:1: " in complaint(capsys, ["why", str(path)])
