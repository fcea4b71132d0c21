"""Traces of other forms: runs of texts, as logs and recordings tell them, and KV events."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.report.sweep import title_of
from cachesim.traces.reading import Clock, TraceError, open_trace
from cachesim.traces.replay import Cell, play, row_of
from cachesim.traces.source import UNIT, Source, made_requests
from cachesim.traces.sweep import open_store, play_cells
from tests.fixtures import Capture, Patch, complaint, output
from tests.traces.test_sweep import Here

ROOT = Path(__file__).parents[2]

CHAT = [
    {"timestamp": 0, "prompt": [[0, 0, 120]], "reply": [[1, 0, 30]]},
    {"timestamp": 90, "prompt": [[0, 0, 120], [1, 0, 29], [2, 0, 15]], "reply": [[3, 0, 8]]},
    {"timestamp": 95, "prompt": [[0, 0, 100], [5, 0, 9]]},
]


def written(folder: Path, lines: Iterable[Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
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


@pytest.mark.thorough
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
    return [(list(request.blocks), request.output // unit) for request in requests]


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
    """KV events of a server without limits for a made trace's whole blocks."""
    seen: set[int] = set()
    for number, request in enumerate(made_requests(count, seed)):
        whole = request.blocks[: request.length // UNIT]
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
    for request in made_requests(80, 5):
        whole = request.blocks[: request.length // UNIT]
        numbers = [names.setdefault(block, len(names)) for block in whole]
        if len(set(whole) - seen) > 1:
            wanted.append(numbers)
        seen.update(whole)

    unit, requests = open_trace(path)
    found = [list(request.blocks) for request in requests]

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


RANKED = [
    [0.0, [stored([11, 12, 13])], 0],
    [1.0, [stored([11, 12, 13])], 1],
    [1.5, [], 0],
    [1.5, [], 1],
    [2.0, [stored([14, 15], 13)], 0],
    [3.0, [stored([14, 15], 13)], 1],
]


def test_a_rank_reuses_nothing_of_another(tmp_path: Path) -> None:
    path = written(tmp_path, RANKED)

    whole = play(Cell(source=Source(name=str(path)), profile="bound"))
    one = play(Cell(source=Source(name=str(path), rank=1), profile="bound"))

    assert (4, 256, 96) == tuple(whole[each] for each in ("requests", "prompt_tokens", "cached"))
    assert (2, 128, 48) == tuple(one[each] for each in ("requests", "prompt_tokens", "cached"))
    assert "the data-parallel ranks 0, 1 have a cache each" in whole["notes"][0]
    assert [] == one["notes"]
    cell = Cell(source=Source(name=str(path), rank=1), profile="bound")
    assert "trace.jsonl: 2 requests, data-parallel rank 1" == title_of(row_of(cell, one))


@pytest.mark.parametrize("key", ["cache_salt", "lora_name", "lora_id"])
def test_equal_hashes_under_two_salts_are_two_blocks(tmp_path: Path, key: str) -> None:
    salted = [{"ts": at, "events": [stored(["a", "b"]) | {key: at}]} for at in range(2)]

    found = play(Cell(source=Source(name=str(written(tmp_path, salted))), profile="bound"))

    assert (64, 0) == (found["prompt_tokens"], found["cached"])


def test_batches_of_another_rank_do_not_end_a_request(tmp_path: Path) -> None:
    """A request of rank 0 goes on in the next batch of rank 0, wherever that stands."""
    batches = [
        [0.0, [stored([1, 2])], 0],
        {"ts": 0.5, "events": [stored([1, 2])], "data_parallel_rank": 1},
        {"ts": 0.6, "events": [], "attn_dp_rank": 1},
        [1.0, [stored([3, 4], 2)], 0],
    ]

    _, requests = open_trace(written(tmp_path, batches), rank=0)

    assert [(0, 1, 2, 3)] == [request.blocks for request in requests]


def test_a_rank_without_a_stored_block_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no block of rank 7 \(there are 0, 1\)"):
        open_trace(written(tmp_path, RANKED), rank=7)


BAILIAN = {"chat_id": 159, "parent_chat_id": 55, "type": "text", "turn": 2}


@pytest.mark.parametrize(
    ("more", "clock", "milliseconds"),
    [
        (BAILIAN | {"hash_ids": [1, 2, 3]}, None, 61114.0),
        (BAILIAN | {"hash_ids": [1, 2, 3]}, "ms", 61.114),
        ({"hash_ids": [1, 2, 3]}, None, 61114.0),  # blocks of 16: Bailian's
        ({"hash_ids": [1]}, None, 61.114),  # blocks of 512: Mooncake's
        ({"hash_ids": [1]}, "s", 61114.0),
        (BAILIAN | {"input_length": 9, "hash_ids": [1]}, None, 61114.0),
    ],
)
def test_timestamps_count_what_the_publisher_counts(
    tmp_path: Path, more: dict[str, Any], clock: Clock | None, milliseconds: float
) -> None:
    line = {"timestamp": 61.114, "input_length": 40, "output_length": 5} | more

    _, (asked,) = open_trace(written(tmp_path, [line]), clock=clock)

    assert milliseconds == asked.time


def test_what_timestamps_count_is_printed_where_time_counts(tmp_path: Path) -> None:
    line = BAILIAN | {"timestamp": 61.114, "input_length": 40, "hash_ids": [1, 2, 3]}
    name = str(written(tmp_path, [line | {"output_length": 5}]))

    timed = play(Cell(source=Source(name=name, turn=50), profile="bound"))
    ordered = play(Cell(source=Source(name=name), profile="bound"))

    assert ["timestamps are read as seconds (--timestamps ms reads them otherwise)"] == timed[
        "notes"
    ]
    assert [] == ordered["notes"]


@pytest.mark.parametrize("missing", [{}, {"output_length": None}])
def test_a_reply_whose_length_is_missing_is_one_token_and_the_output_has_it(
    tmp_path: Path, missing: dict[str, Any]
) -> None:
    lines = [{"input_length": 512, "hash_ids": [at]} | missing for at in range(2)]
    name = str(written(tmp_path, [*lines, lines[0] | {"output_length": 9}]))

    found = play(Cell(source=Source(name=name), profile="vllm@0.33.0", model="dense"))
    given = play(Cell(source=Source(name=name, replies=3), profile="vllm@0.33.0", model="dense"))

    assert 3 == found["requests"]
    assert "2 of 3 requests have no length of the reply in the trace" in found["notes"][0]
    (device,) = given["notes"]
    assert "as a server chooses with device 'h100'" in device


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_trace_is_read_as_what_is_in_it(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = written(tmp_path, CHAT)
    packed = tmp_path / "trace.packed"
    packed.write_bytes(pack(path.read_bytes()))

    assert list(open_trace(path)[1]) == list(open_trace(packed)[1])
    packed.write_bytes(pack(path.read_bytes() * 50)[:-20])
    with pytest.raises(TraceError, match="is compressed, and cut or damaged"):
        list(open_trace(packed)[1])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_played_on_every_server(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, pack: Callable[[bytes], bytes]
) -> None:
    path = written(tmp_path, CHAT)
    servers = ("-p", "vllm@0.33.0", "-p", "mlx-lm@0.32.2", "--model", "dense")
    of_file = json.loads(output(capsys, ["compare", str(path), *servers, "--format", "json"]))

    stdin = io.TextIOWrapper(io.BytesIO(pack(path.read_bytes())))
    monkeypatch.setattr("sys.stdin", stdin)
    of_stdin = json.loads(output(capsys, ["compare", "-", *servers, "--format", "json"]))

    assert [each | {"trace": "standard input"} for each in of_file] == of_stdin


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert list(open_trace(path)[1]) == list(open_trace(marked)[1])


def test_no_process_is_left_where_a_trace_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": -1, "input_length": 512, "hash_ids": [1]}\n')

    for _ in range(5):
        assert 2 == main(["compare", str(path), "-p", "bound", "-p", "bound", "--jobs", "2"])
        assert [] == active_children()
    assert "timestamp is -1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["hybrid.log", "recorded.jsonl"])
def test_of_a_log_or_a_recording_the_command_that_makes_a_trace_is_named(
    name: str, capsys: Capture
) -> None:
    path = Path(__file__).parents[2] / "docs" / "examples" / name

    said = complaint(capsys, ["compare", str(path), "-p", "bound"])
    assert "`cachesim why FILE --trace TRACE` writes the requests of a log" in said


def test_messages_of_standard_input_name_it(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n")))

    assert "standard input:1: not JSON" in complaint(capsys, ["compare", "-", "-p", "bound"])


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cachesim.traces.reading.MOST_CHARACTERS", 1000)
    path = tmp_path / "trace.jsonl"
    path.write_text("[" * 5000)

    with pytest.raises(TraceError, match=r"trace.jsonl:1: more than 1,000 characters"):
        open_trace(path)


def test_no_server_beats_the_bound_where_a_reply_is_asked_for_again_whole(tmp_path: Path) -> None:
    """mlx-lm feeds the last token of a reply too, so its next turn reuses that one."""
    lines = [
        {"timestamp": 0, "prompt": [[4, 0, 92]], "reply": [[5, 0, 37]]},
        {"timestamp": 9, "prompt": [[4, 0, 92], [5, 0, 37], [6, 0, 28]], "reply": [[7, 0, 17]]},
    ]
    source = Source(name=str(written(tmp_path, lines)))
    profiles = ("mlx-lm@0.32.2", "llama.cpp@b11549")
    bound = play(Cell(source=source, profile="bound"))
    found = [play(Cell(source=source, profile=profile, model="dense")) for profile in profiles]

    assert (129, [129, 128]) == (bound["cached"], [each["cached"] for each in found])


# What cannot be played or written is refused once, in plain words, before anything is played.

LINE = {"input_length": 512, "output_length": 1, "hash_ids": [1]}


def test_a_wrong_trace_is_named_once_whoever_plays_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("a,b\n")
    source = Source(name=str(path))
    cells = [Cell(source=source, profile=each, model="dense") for each in ("bound", "vllm@0.33.0")]

    with open_store(None) as store, pytest.raises(InputError) as refused:
        play_cells(cells, store, Here)

    assert f"{path}:1: not JSON: 'a,b'; write one object a line" == str(refused.value)


def test_one_request_is_told_in_the_singular(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(LINE) + "\n")

    assert 0 == main(["compare", str(path), "-p", "vllm@0.33.0", "--model", "dense"])
    assert "trace.jsonl: 1 request\n" in capsys.readouterr().out


def test_a_trace_in_place_of_a_scenario_is_sent_to_the_command_for_it(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(2 * (json.dumps(LINE) + "\n"))

    assert 2 == main(["run", str(path)])
    assert "`cachesim compare` replays traces" in " ".join(capsys.readouterr().err.split())


def test_parquet_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cachesim.cli.sweep.find_spec", lambda _: None)
    plan = tmp_path / "plan.toml"
    plan.write_text('format = 1\n[[trace]]\nmade = 3\n[[server]]\nprofile = "bound"\n')

    assert 2 == main(["sweep", str(plan), "--parquet", str(tmp_path / "table")])

    told = capsys.readouterr()
    assert "" == told.out
    assert "pip install 'cachesim[parquet]'" in told.err
    assert [plan] == list(tmp_path.iterdir())
