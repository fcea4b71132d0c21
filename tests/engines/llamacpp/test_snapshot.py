"""What a server holds, as plain data that JSON can write."""

import json

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.trace import Traced
from cachesim.units import as_tokens
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


def test_cells_are_shown_while_the_copies_for_further_completions_wait() -> None:
    network = Traced(build(preset("swa"), "ring"))
    options = {"parallel": 3, "batch_size": 64}
    engine = Engine.create("llama.cpp@b11549", model=network, options=options)
    assert isinstance(engine, LlamaCpp)
    prompt = as_tokens(range(265, 365))
    ticket = engine.submit(Request(prompt=prompt, predict=3, completions=3))

    held = [engine.held()]
    while engine.step():
        held.append(engine.held())

    assert [3, 3, 3] == [len(reply.generated) for reply in engine.replies(ticket)]
    streams = [cells.stream for cells in held[-2].cells if cells.part == "attention" and cells.runs]
    assert [0, 1, 2] == streams
