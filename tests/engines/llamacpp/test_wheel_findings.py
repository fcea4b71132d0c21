"""What random workloads on the real servers taught that reading them had not, one test each."""

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import UpstreamAbort
from cachesim.model.presets import preset
from cachesim.scenario.session import SlotFiles
from cachesim.units import Tokens, as_tokens

OCTOBER, JUNE = "llama.cpp@b11549", "llama.cpp@b9538"
A, B = as_tokens(range(265, 365)), as_tokens(range(365, 465))


def server(profile: str, model: str, **options: object) -> Engine:
    return Engine.create(
        profile, model=preset(model), options=options, arithmetic="ring", store=SlotFiles()
    )


def ask(engine: Engine, prompt: Tokens, predict: int = 1) -> int | None:
    ticket = engine.submit(Request(prompt=prompt, predict=predict))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    assert reply.error is None
    return reply.cached


def test_a_shift_in_a_cache_without_layers_ends_the_process() -> None:
    """Every attention layer has a window, so the base cache has no keys to turn."""
    engine = server(OCTOBER, "hybrid-swa", ctx_size=256, cache_reuse=4)
    ask(engine, A[:30])

    with pytest.raises(UpstreamAbort, match="set_input_k_shift"):
        ask(engine, A[:10] + A[15:30])


@pytest.mark.parametrize("profile", ["llama.cpp@b9093", JUNE, OCTOBER])
def test_positions_of_several_sections_cannot_be_moved(profile: str) -> None:
    """Qwen 3.5 has M-RoPE: chunk reuse and context shift are off, whatever the flags say."""
    engine = server(profile, "hybrid-delta", ctx_size=256, context_shift=True, cache_reuse=4)
    ticket = engine.submit(Request(prompt=A[:20], predict=300))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert len(reply.generated) == 236
    assert reply.truncated


@pytest.mark.parametrize(("profile", "cached"), [(JUNE, 32), (OCTOBER, 96)])
def test_a_restored_slot_has_the_checkpoints_of_its_file_or_of_its_last_prompt(
    profile: str, cached: int
) -> None:
    engine = server(profile, "hybrid", ubatch_size=64, batch_size=256, cache_ram=0)
    ask(engine, A, 8)
    engine.slot_save(0, "a")  # type: ignore[attr-defined]
    ask(engine, B, 8)
    engine.slot_restore(0, "a")  # type: ignore[attr-defined]

    assert ask(engine, A, 8) == cached


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_a_piece_that_ends_within_a_draft_ends_the_process(profile: str) -> None:
    """66 + 23 rounds of 8 rows leave 6 cells: pieces of 4, then of 2, and a draft of 3 is cut."""
    engine = server(
        profile, "hybrid-mtp", parallel=2, ctx_size=256, kv_unified=True, spec_type="draft-mtp"
    )
    for prompt in (A[:20], B[:46]):
        reply = as_tokens([300 + n % 90 for n in range(250)])
        drafts = tuple(reply[at : at + 3] for at in range(1, 240, 4))
        engine.submit(Request(prompt=prompt, predict=250, reply=reply, drafts=drafts))

    with pytest.raises(UpstreamAbort, match="ends within the draft"):
        engine.run()


SHIFT_BEYOND_THE_END = Request(
    prompt=A + B[:82], predict=100, options={"n_keep": -1, "n_discard": 100}
)
"""182 tokens are kept and 73 follow: to discard 100 cuts a state where it cannot go back to."""


@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
def test_in_may_a_shift_that_cannot_cut_a_state_fails_the_next_decode(model: str) -> None:
    engine = server("llama.cpp@b9093", model, ctx_size=256, context_shift=True)
    ticket = engine.submit(SHIFT_BEYOND_THE_END)
    engine.run()

    reply = engine.reply(ticket)
    assert reply is not None
    assert reply.error == "server_error"


@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
def test_in_june_a_shift_that_cannot_cut_a_state_ends_the_process(model: str) -> None:
    engine = server(JUNE, model, ctx_size=256, context_shift=True)
    engine.submit(SHIFT_BEYOND_THE_END)

    with pytest.raises(UpstreamAbort, match="cannot be cut at position 182"):
        engine.run()


def test_in_october_such_a_shift_discards_less_and_goes_on() -> None:
    engine = server(OCTOBER, "hybrid", ctx_size=256, context_shift=True)
    ticket = engine.submit(SHIFT_BEYOND_THE_END)
    engine.run()

    reply = engine.reply(ticket)
    assert reply is not None
    assert (reply.error, len(reply.generated)) == (None, 100)
