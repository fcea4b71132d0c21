"""Llama 4's layers: each sees its own chunk, and its cache drops what lies more than one back."""

import numpy as np
import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.errors import OptionError, SpecError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.units import Array, as_tokens
from cachesim.verify.oracle import cold_logits

LAYERS: tuple[LayerKind, ...] = ("window", "window", "window", "attention")
TOKENS = as_tokens([300 + index % 37 for index in range(40)])


def llama4(window: int = 8) -> ModelSpec:
    return tiny("dense", layers=LAYERS, window=window, chunked=True)


def fed(spec: ModelSpec, pieces: list[int], arithmetic: ArithmeticName) -> Array:
    """The logits behind each piece of `TOKENS`."""
    forward = Forward(build(spec, arithmetic), FAMILY.release("0.32.2").rules.caches)
    cache, rows, first = forward.make_cache(), [], 0
    for count in pieces:
        rows.append(forward(np.array([TOKENS[first : first + count]]), cache)[0])
        first += count
    return np.stack(rows)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("pieces", [[40], [1] * 40, [3, 10, 1, 1, 20, 5], [8, 8, 8, 16]], ids=str)
def test_pieces_of_any_length_are_answered_as_a_cold_run_is(
    arithmetic: ArithmeticName, pieces: list[int]
) -> None:
    expected = cold_logits(llama4(), TOKENS, rows=np.cumsum(pieces) - 1, arithmetic=arithmetic)

    assert np.array_equal(expected, fed(llama4(), pieces, arithmetic))


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_a_chunk_is_not_a_window(arithmetic: ArithmeticName) -> None:
    """In one layer the first token of a chunk sees nothing before it, the last all of it."""
    one = tiny("dense", layers=("window",), window=8, chunked=True)
    rows = cold_logits(one, TOKENS[:24], arithmetic=arithmetic)
    alone = cold_logits(one, TOKENS[8:16], arithmetic=arithmetic)
    other = cold_logits(one, (*TOKENS[16:24], *TOKENS[8:16]), arithmetic=arithmetic)

    assert np.array_equal(rows[8:16], other[8:])
    assert not np.array_equal(rows[7], alone[7])


def branch(profile: str) -> tuple[int | None, bool]:
    """A chat of 40 tokens goes on, then a branch leaves it at 12: cached, and whether right."""
    spec = llama4()
    server = Engine.create(f"mlx-lm@{profile}", model=spec, arithmetic="ring")
    said = as_tokens([400, 401])
    other = (*TOKENS[:12], *as_tokens([450, 451]))
    for prompt in (TOKENS, (*TOKENS, *said, 402), other):
        ticket = server.submit(Request(prompt=as_tokens(prompt), predict=2, reply=said))
        server.run()
    reply = server.reply(ticket)
    assert reply is not None
    cold = cold_logits(spec, (*other, said[0]), arithmetic="ring")[-2:]
    return reply.cached, np.array_equal(cold, reply.logits)


@pytest.mark.parametrize(("release", "right"), [("0.31.3", False), ("0.32.0", True)])
def test_allocated_rows_were_taken_for_tokens(release: str, *, right: bool) -> None:
    """#1673: 27 tokens and 257 take 539 rows; all but 256 are dropped, and 27 of them needed."""
    spec = llama4(256)
    tokens = as_tokens([300 + index % 150 for index in range(286)])
    forward = Forward(build(spec, "ring"), FAMILY.release(release).rules.caches)
    cache = forward.make_cache()
    for first, end in ((0, 27), (27, 283), (283, 284), (284, 285)):
        logits = forward(np.array([tokens[first:end]]), cache)
    cold = cold_logits(spec, tokens[:285], arithmetic="ring")[-1:]

    assert right == np.array_equal(cold, logits)


def test_chunks_call_for_llama4() -> None:
    assert family_of(llama4()).name == "llama4"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (tiny("swa", family="llama4"), "write chunked"),
        (tiny("swa", chunked=True, family="gemma3_text"), "has no chunks"),
        (tiny("swa", chunked=True), "every fourth layer"),
    ],
    ids=str,
)
def test_a_model_that_llama4_is_not_is_refused(spec: ModelSpec, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        family_of(spec)


def test_chunks_need_windows() -> None:
    with pytest.raises(SpecError, match="only layers with a window see chunks"):
        tiny("dense", chunked=True)
