"""What a server holds, as plain data that JSON can write."""

from cachesim.engines.base import Engine, Request
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.trace import Traced
from cachesim.units import as_tokens


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
