"""Traces of other forms: runs of texts, as logs and recordings tell them, and KV events."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.traces.asked import TraceError
from cachesim.traces.made import UNIT, made_requests
from cachesim.traces.reading import open_trace
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source

ROOT = Path(__file__).parents[2]

CHAT = [
    {"timestamp": 0, "prompt": [[0, 0, 120]], "reply": [[1, 0, 30]]},
    {"timestamp": 90, "prompt": [[0, 0, 120], [1, 0, 29], [2, 0, 15]], "reply": [[3, 0, 8]]},
    {"timestamp": 95, "prompt": [[0, 0, 100], [5, 0, 9]]},
]


def written(folder: Path, lines: Iterable[Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_runs_of_texts_are_played_token_by_token_and_replies_are_asked_for_again(
    tmp_path: Path,
) -> None:
    source = Source(name=str(written(tmp_path, CHAT)))

    bound = play(Cell(source=source, profile="bound"))
    found = play(Cell(source=source, profile="llama.cpp@b11549", model="dense"))

    assert (1, 3, 120 + 164 + 109) == tuple(
        bound[each] for each in ("scale", "requests", "prompt_tokens")
    )
    assert 149 + 100 == bound["cached"]
    assert 149 + 100 == found["cached"]


def test_a_text_that_is_cut_elsewhere_is_the_same_text(tmp_path: Path) -> None:
    whole, cut = [[4, 0, 50], [6, 0, 7]], [[4, 0, 20], [4, 20, 50], [6, 0, 3]]

    _, (one, other) = open_trace(written(tmp_path, [{"prompt": whole}, {"prompt": cut}]))

    assert one.blocks == other.blocks
    assert ((50, 7), (50, 3)) == (one.sizes, other.sizes)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"prompt": []}, "trace.jsonl:2: prompt has no tokens"),
        ({"prompt": 3}, "trace.jsonl:2: prompt is no list of runs"),
        ({"prompt": [[0, 5, 5]]}, r"prompt has \[0, 5, 5\]; write a text's number"),
        ({"prompt": [[True, 0, 5]]}, "write a text's number"),
        ({"prompt": [[0, 0, 5]], "reply": [[0]]}, r"reply has \[0\]"),
        ({"prompt": [[0, 0, 5]], "timestamp": -1}, "timestamp is -1"),
        ([], "trace.jsonl:2: not an object"),
    ],
)
def test_a_wrong_run_is_named(tmp_path: Path, line: Any, complaint: str) -> None:
    _, requests = open_trace(written(tmp_path, [CHAT[0], line]))

    with pytest.raises(TraceError, match=complaint):
        list(requests)


@pytest.mark.parametrize("name", ["recorded.jsonl", "hybrid.log"])
def test_what_why_rebuilds_is_a_trace(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    assert 0 == main(["why", str(ROOT / "docs" / "examples" / name), "--trace", str(path)])
    found = play(Cell(source=Source(name=str(path)), profile="bound"))

    assert {"recorded.jsonl": (4, 7397), "hybrid.log": (5, 15020)}[name] == (
        found["requests"],
        found["prompt_tokens"],
    )


def stored(hashes: list[Any], parent: Any = None, size: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [],
        "block_size": size,
        "lora_id": None,
        **more,
    }


def blocks(path: Path) -> list[tuple[list[int], int]]:
    unit, requests = open_trace(path)
    assert unit == 16
    return [(list(each.blocks), each.output // unit) for each in requests]


def test_blocks_that_are_stored_tell_requests(tmp_path: Path) -> None:
    batches = [
        {"ts": 0.0, "events": [stored(["a", "b"])]},
        [1.0, [stored(["c"], "b"), {"type": "BlockRemoved", "block_hashes": ["z"]}]],
        [2.0, [stored(["d"], "c")], 0],
        {"ts": 3.0, "events": []},
        {"ts": 4.0, "events": [stored(["e", "f"], "b", medium="GPU")]},
        {"ts": 5.0, "events": [stored(["g", "h"], "d"), {"type": "AllBlocksCleared"}]},
    ]

    assert [([0, 1], 2), ([0, 1, 4, 5], 0), ([0, 1, 2, 3, 6, 7], 0)] == [
        (numbers, output) for numbers, output in blocks(written(tmp_path, batches))
    ]


def test_a_tree_that_stores_page_by_page_tells_the_same(tmp_path: Path) -> None:
    batches = [[0.5, [stored([1]), stored([2], 1), stored([3], 2)], None]]

    assert [([0, 1, 2], 0)] == blocks(written(tmp_path, batches))


def test_windows_states_and_other_tiers_are_left_out(tmp_path: Path) -> None:
    batches = [
        [0, [stored([1], group_idx=1), stored([1], kv_cache_spec_kind="mamba")]],
        [1, [stored([2], medium="CPU_PINNED"), stored([1], kv_cache_spec_kind="full_attention")]],
        [2, [["BlockStored", [7], None, [], 16, None]]],
    ]

    assert [([0], 0), ([1], 0)] == blocks(written(tmp_path, batches))


def stream_of(count: int, seed: int) -> Iterator[list[Any]]:
    """What a server without limits would publish of a made trace's whole blocks."""
    seen: set[int] = set()
    for number, each in enumerate(made_requests(count, seed)):
        whole = each.blocks[: each.length // UNIT]
        fresh = [block for block in whole if block not in seen]
        seen.update(fresh)
        known = len(whole) - len(fresh)
        if fresh:
            parent = whole[known - 1] if known else None
            yield [3.0 * number, [stored(fresh, parent, UNIT)]]
            yield [3.0 * number + 1, []]


def test_every_request_that_stored_several_blocks_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, stream_of(80, 5))
    names: dict[int, int] = {}
    wanted, seen = [], set[int]()
    for each in made_requests(80, 5):
        whole = each.blocks[: each.length // UNIT]
        numbers = [names.setdefault(block, len(names)) for block in whole]
        if len(set(whole) - seen) > 1:
            wanted.append(numbers)
        seen.update(whole)

    unit, requests = open_trace(path)
    found = [list(each.blocks) for each in requests]

    assert UNIT == unit
    assert len(wanted) > 20
    assert wanted == [each for each in found if each in wanted]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"ts": "x", "events": []}, "no batch of events"),
        ([1.0, ["BlockMoved"]], "is no event; there are BlockStored"),
        ([1.0, [{"type": "BlockStored", "block_size": 16}]], "without block_hashes"),
        ([1.0, [stored(["q"], size=0)]], "block_size is 0"),
        ([1.0, [stored(["q"], size=32)]], "blocks of 32 tokens among blocks of 16"),
        ([1.0, [stored([["q"]])]], r"a block's hash is \['q'\]; write a number or a text"),
        ([1.0, [stored(["q"], [])]], r"a block's hash is \[\]"),
        ([1.0, [stored(["q"], True)]], "a block's hash is True"),
        ([1.0, [stored(["q"], "q")]], "block 'q' comes after itself"),
        ([1.0, [stored(["q"], "p"), stored(["p"], "q")]], "block 'p' comes after itself"),
    ],
)
def test_a_wrong_event_is_named(tmp_path: Path, line: Any, complaint: str) -> None:
    path = written(tmp_path, [[0.0, [stored(["a"])]], line])

    with pytest.raises(TraceError, match=complaint):
        list(open_trace(path)[1])


def test_a_stream_without_a_stored_block_has_no_request(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no block is stored"):
        open_trace(written(tmp_path, [[0.0, []]]))
