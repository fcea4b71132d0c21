"""Requests come in order, or on time: turns of the server's loop decide which are in it at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.traces.replay import Cell, Known, play
from cachesim.traces.source import Source, made_requests

SERVERS = {
    "llama.cpp@b11549": (("parallel", 4), ("ctx_size", 16384)),
    "ik_llama.cpp@8337e4cd3": (),
    "mlx-lm@0.32.2": (),
    "vllm@0.33.0": (("num_gpu_blocks_override", 400),),
    "sglang@0.5.23": (("max_total_tokens", 9600), ("page_size", 16)),
    "marconi@paper": (),
}


def played(profile: str, **source: Any) -> dict[str, Any]:
    made = Source(name="made:60:4", scale=32, **source)
    return play(Cell(source=made, profile=profile, model="dense", options=SERVERS[profile]))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made trace with minutes between two arrivals."""
    path = tmp_path_factory.mktemp("trace") / "apart.jsonl"
    lines = (
        {
            "timestamp": 600_000 * request.time,
            "input_length": request.length,
            "output_length": request.output,
            "hash_ids": request.blocks,
        }
        for request in made_requests(60, 4)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", SERVERS)
def test_requests_that_do_not_overlap_are_served_as_in_order(profile: str, apart: Path) -> None:
    source = Source(name=str(apart), scale=32, turn=10)
    cell = Cell(source=source, profile=profile, model="dense", options=SERVERS[profile])

    in_order = played(profile)

    assert in_order == play(cell) | {"notes": in_order["notes"]}
    assert all("scaled down" in note or "as a server chooses" in note for note in in_order["notes"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", SERVERS)
def test_every_request_is_served_once_however_long_turns_are(profile: str) -> None:
    for turn in (1, 50):
        found = played(profile, turn=turn)

        assert (60, 0) == (found["requests"], found["refused"])
        assert played(profile)["prompt_tokens"] == found["prompt_tokens"]


def test_requests_that_overlap_find_other_slots() -> None:
    in_order, at_once = played("llama.cpp@b11549"), played("llama.cpp@b11549", turn=1000)

    assert at_once["cached"] != in_order["cached"]


@pytest.mark.parametrize("turn", [0, 50])
def test_a_server_that_ends_plays_no_more_and_the_replay_says_where(
    turn: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": output, "hash_ids": [0, 1, 2]}
        for output in (5, 500, 5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shift = ["--set", "ctx_size=256", "--set", "context_shift=true", "--model", "hybrid-swa"]
    command = ["compare", str(path), "-p", "llama.cpp@b11549", *shift, "--format", "json"]

    status = main([*command, "--turn", str(turn), "--verify", "9"])
    _, row = json.loads(capsys.readouterr().out)

    assert 1 == status
    assert row["ended"].startswith("request 2: llama_kv_cache::set_input_k_shift: the real process")
    assert (2, 1) == (row["requests"], row["refused"]) if not turn else (3, 2)
    assert 0 == row["verified"]["otherwise"]


def test_a_turn_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="--turn is -1"):
        Source(name="made:1", scale=32, turn=-1)


def test_a_bounded_memory_knows_the_blocks_that_were_asked_for_last() -> None:
    known = Known(3)
    chats = [[(1, 16), (2, 16)], [(3, 16)], [(1, 16)], [(4, 16)]]

    assert [0, 0, 16, 0] == [known.add(chat) for chat in chats]
    assert 16 == known.add([(1, 16), (2, 16)])  # block 2 is the one that went


def test_a_memory_that_is_large_enough_changes_nothing() -> None:
    assert played("vllm@0.33.0") == played("vllm@0.33.0", remember=10_000)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", SERVERS)
def test_what_is_forgotten_changes_nothing_that_a_server_does(profile: str) -> None:
    whole, few = played(profile), played(profile, remember=5)

    assert (whole["cached"], whole["refused"]) == (few["cached"], few["refused"])
    assert sum(few["lost"].values()) <= sum(whole["lost"].values())
    assert all(count >= 0 for count in few["lost"].values())
