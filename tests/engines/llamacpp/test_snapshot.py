"""What a server holds, as plain data that JSON can write."""

import json

import pytest

from tests.engines.llamacpp.play import Play, run


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("dense", ["attention"]),
        ("swa", ["attention", "window"]),
        ("recurrent", ["recurrent"]),
        ("hybrid", ["attention", "recurrent"]),
        ("hybrid-swa", ["attention", "window", "recurrent"]),
    ],
)
def test_every_part_of_a_memory_is_shown(model: str, parts: list[str]) -> None:
    play = Play("llama.cpp@b11549", model)
    play.ask(run(range(100)), 4)
    shown = play.snapshot
    assert [part["part"] for part in shown["memory"]] == parts
    assert shown["companion"] is None
    assert json.loads(json.dumps(shown)) == shown


def test_cells_and_rows_say_position_and_sequence() -> None:
    play = Play("llama.cpp@b11549", "hybrid")
    play.ask(run(range(10)), 3)
    attention, recurrent = play.snapshot["memory"]
    cells = attention["streams"][0]["cells"]
    assert [(cell["pos"], cell["seqs"]) for cell in cells] == [(pos, [0]) for pos in range(12)]
    assert recurrent["rows"] == [{"row": 0, "pos": 11, "seqs": [0]}]


def test_slots_checkpoints_and_parked_prompts() -> None:
    play = Play("llama.cpp@b11549", "recurrent")
    play.ask(run(range(100)))
    play.ask(run(range(200, 300)), 2)
    (slot,) = play.snapshot["slots"]
    assert slot["state"] == "idle"
    assert slot["tokens"][:100] == list(range(200, 300))
    saved = {"pos_min": 95, "pos_max": 95, "n_tokens": 96, "bytes": 42_108}
    assert slot["checkpoints"] == [saved]
    (parked,) = play.snapshot["prompt_cache"]
    assert (parked["n_tokens"], parked["checkpoints"]) == (100, 1)
    assert parked["bytes"] > 0


def test_the_companions_cells_are_shown_beside() -> None:
    play = Play("llama.cpp@b11549", "hybrid-mtp", spec_type="draft-mtp")
    play.ask(run(range(20)), 3)
    (part,) = play.snapshot["companion"]
    assert part["part"] == "attention"
    assert [cell["pos"] for cell in part["streams"][0]["cells"]] == list(range(22))
