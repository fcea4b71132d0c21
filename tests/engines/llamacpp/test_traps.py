"""The server's known oddities, each by its own little story.

Others are pinned beside these: those whose answer is wrong in `test_wrong_answers`, those of the
checkpoint list in `test_checkpoint_places`, those with a worked example in `test_reference_dense`,
`test_reference_window` and `test_reference_exact`.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.events import BatchRetried
from cachesim.engines.llamacpp.profiles import HISTORY
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.ratio import ratio
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.units import Tokens, as_tokens
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
every = pytest.mark.parametrize("profile", [MAY, JUNE, OCTOBER])


def names(play: Play) -> list[str]:
    return [event.name() for event in play.engine.events]


def test_01_a_request_pinned_to_a_busy_slot_swaps_its_prompt_before_it_waits() -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(500)))
    play.ask(run(range(2000, 2100)))
    assert play.ram == [(500, 0)]
    running = play.engine.submit(
        Request(prompt=as_tokens(range(3000, 3100)), predict=50, reply=as_tokens([9] * 50))
    )
    for _ in range(5):
        play.engine.step()
    play.engine.submit(Request(prompt=as_tokens(range(500)), predict=1, slot=0))
    play.engine.step()
    assert "task-deferred" in names(play)
    assert play.tokens() > 500
    play.engine.run()
    reply = play.engine.reply(running)
    assert reply is not None
    assert len(reply.generated) == 50


def test_01_june_does_not_touch_the_cache_for_pinned_requests() -> None:
    play = Play(JUNE, "dense")
    play.ask(run(range(500)))
    play.ask(run(range(2000, 2100)))
    play.engine.submit(Request(prompt=as_tokens(range(3000, 3100)), predict=50))
    for _ in range(5):
        play.engine.step()
    held = play.tokens()
    play.engine.submit(Request(prompt=as_tokens(range(500)), predict=1, slot=0))
    play.engine.step()
    assert play.tokens() == held + 1
    play.engine.run()


def test_02_an_empty_pinned_slot_divides_zero_by_zero_and_skips_the_cache() -> None:
    play = Play(OCTOBER, "dense", parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)), slot=0)
    play.ask(run(range(200, 300)), slot=0)
    assert play.ram == [(100, 0)]
    assert play.ask(run(range(100)), slot=1) == (0, 100)
    assert play.ram == [(100, 0)]
    assert np.isnan(ratio(0, 0))


def test_02_a_slot_number_beyond_the_last_counts_as_dissimilar() -> None:
    """4 modulo 2 is slot 0, but no slot has the number 4: its prompt is swapped although equal."""
    play = Play(OCTOBER, "dense", parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)), slot=0)
    assert play.ask(run(range(100)), slot=4) == (99, 1)
    assert play.slot == 0
    assert play.ram == [(100, 0)]


def test_02_without_similarity_a_pinned_slot_is_never_swapped() -> None:
    play = Play(OCTOBER, "dense", slot_prompt_similarity=0.0)
    play.ask(run(range(100)), slot=0)
    play.ask(run(range(200, 300)), slot=0)
    assert play.ram == []


@every
def test_03_ties_of_age_go_to_the_highest_slot_ties_of_likeness_to_the_lowest(profile: str) -> None:
    play = Play(profile, "dense", parallel=3, cache_idle_slots=False)
    for start in (0, 1000, 2000):
        play.ask(run(range(5000, 5020), range(start, start + 80)), slot=start // 1000)
    assert play.ask(run(range(5000, 5020), range(4000, 4080)))[0] == 20
    assert play.slot == 0
    play = Play(profile, "dense", parallel=3, cache_idle_slots=False)
    play.ask(run(range(100)))
    assert play.slot == 2


@every
def test_19_a_prompt_that_is_too_long_swaps_first_and_refreshes_the_slots_age(profile: str) -> None:
    play = Play(profile, "dense", parallel=2, ctx_size=512, cache_idle_slots=False)
    play.ask(run(range(100)))
    play.ask(run(range(1000, 1100)))
    assert play.slot == 0
    reply = play.reply(run(range(2000, 2256)))
    assert (reply.error, reply.slot) == ("exceed_context_size_error", 1)
    assert play.ram == [(100, 0)]
    play.ask(run(range(3000, 3100)))
    assert play.slot == 0


@every
def test_20_tokens_of_the_slot_are_not_the_reused_count(profile: str) -> None:
    play = Play(profile, "dense")
    assert play.ask(run(range(100)), 8) == (0, 100)
    assert play.tokens() == 107


@every
def test_21_the_last_sampled_token_is_not_in_the_slot_and_predict_0_samples_one(
    profile: str,
) -> None:
    play = Play(profile, "dense")
    play.ask(run(range(10)), 0)
    assert play.last is not None
    assert (len(play.last.generated), play.tokens()) == (1, 10)


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_22_without_cache_prompt_the_swap_still_happens(profile: str) -> None:
    play = Play(profile, "recurrent")
    play.ask(run(range(100)))
    play.ask(run(range(200, 300)))
    assert play.ask(run(range(100)), cache_prompt=False) == (0, 100)
    assert play.ram == [(100, 1)]


@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
def test_23_chunk_reuse_moves_a_state_that_contains_the_deleted_tokens(model: str) -> None:
    play = Play(OCTOBER, model, cache_reuse=16, ctx_checkpoints=0)
    play.ask(run(range(100)))
    assert play.ask(run(range(30), range(50, 100), range(300, 305))) == (80, 5)
    assert play.last is not None
    assert play.last.approximated == "chunk-reuse"


def test_23_positions_of_several_sections_cannot_be_moved() -> None:
    play = Play(OCTOBER, "hybrid-delta", cache_reuse=16, ctx_checkpoints=0)
    play.ask(run(range(100)))
    assert play.ask(run(range(30), range(50, 100), range(300, 305))) == (0, 85)


def test_18_the_token_estimate_of_an_empty_cache_is_its_bytes() -> None:
    cache = PromptCache(HISTORY.rules("b11549").cache, limit_size=1 << 20, limit_tokens=512)
    assert cache.token_limit() == 1 << 20


@every
def test_29_automatic_slots_share_one_pool(profile: str) -> None:
    play = Play(profile, "dense", parallel=-1, kv_unified=False, ctx_size=512)
    assert play.engine.server.options.n_ctx_slot == 512
    assert len(play.snapshot["slots"]) == 4


@every
def test_30_a_split_context_is_rounded_up_for_every_slot(profile: str) -> None:
    play = Play(profile, "dense", parallel=3, ctx_size=1024)
    options = play.engine.server.options
    assert (options.n_ctx_slot, options.n_ctx) == (512, 1536)


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_31_children_overwrite_their_slots_unsaved(profile: str) -> None:
    play = Play(profile, "dense", parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)), slot=0)
    play.ask(run(range(1000, 1100)), completions=2, slot=1)
    assert (play.tokens(0), play.ram) == (0, [])


@every
def test_32_a_full_unified_cache_fails_every_busy_request(profile: str) -> None:
    play = Play(profile, "dense", parallel=2, kv_unified=True, ctx_size=256)
    tickets = [
        play.engine.submit(Request(prompt=as_tokens(range(at, at + 150)), predict=4))
        for at in (0, 1000)
    ]
    play.engine.run()
    play.engine.check_integrity()
    for ticket in tickets:
        reply = play.engine.reply(ticket)
        assert reply is not None
        assert (reply.error, reply.cached) == ("server_error", None)
        assert reply.message == "Context size has been exceeded."
    assert [play.tokens(slot) for slot in range(2)] == [0, 0]
    assert "batch-retried" in names(play)


@every
def test_32_what_was_decoded_in_small_pieces_is_followed_by_whole_ones(profile: str) -> None:
    """56 cells are free for 101 tokens: after each piece that fits, all the rest is tried."""
    play = Play(profile, "dense", parallel=2, kv_unified=True, ctx_size=256)
    play.engine.submit(Request(prompt=as_tokens(range(200)), predict=9))
    play.engine.step()
    play.engine.submit(Request(prompt=as_tokens(range(300, 400)), predict=9))
    play.engine.run()
    retried: dict[int, list[int]] = {}
    for each in play.engine.events:
        if isinstance(each, BatchRetried):
            retried.setdefault(each.offset, []).append(each.n_batch)
    halves = [128, 64, 32, 16, 8, 4, 2, 1]
    assert retried == {0: halves[:3], 32: halves[:4], 48: halves[:5], 56: halves}


def test_33_a_purge_does_not_save() -> None:
    play = Play(
        OCTOBER, "dense", parallel=2, kv_unified=True, ctx_size=512, cache_idle_slots=False,
        slot_prompt_similarity=0.0,
    )  # fmt: skip
    play.ask(run(range(300)), 4)
    play.ask(run(range(1000, 1300)), 4)
    assert "slot-purged" in names(play)
    assert play.ram == []


def test_37_the_cache_forgets_by_age_of_saving_under_24143_too() -> None:
    play = Play(OCTOBER + "+24143", "dense", cache_ram=1, slot_prompt_similarity=0.0)
    play.ask(run(range(800)))
    play.ask(run(range(1000, 1800)))
    assert play.ask(run(range(800))) == (799, 1)
    play.ask(run(range(2000, 2800)))
    assert play.ask(run(range(800))) == (0, 800)


def test_35_accepted_tokens_beyond_the_stop_stay_in_the_slot() -> None:
    """The second drafted token ends the generation; the third is in the memory already."""
    spec = preset("hybrid-mtp", vocabulary=8)
    prompt, said = next(
        (prompt, said)
        for prompt in itertools.product(range(3, 8), repeat=3)
        if (said := small_talk(spec, prompt).generated)[2] == 2 and 2 not in said[:2]
    )
    ended = small_talk(spec, prompt, drafts=(said[1:4],), options={"ignore_eos": False})
    assert ended.generated == said[:3]
    plain = small_talk(spec, prompt, options={"ignore_eos": False})
    assert plain.generated == said[:3]
    assert (held_after(spec, prompt, (said[1:4],)), held_after(spec, prompt, ())) == (7, 5)


def small_talk(spec: ModelSpec, prompt: tuple[int, ...], **fields: Any) -> Reply:
    """Six tokens that a small vocabulary says by itself."""
    return talk(spec, prompt, **fields)[1]


def held_after(spec: ModelSpec, prompt: tuple[int, ...], drafts: tuple[Tokens, ...]) -> int:
    """How many tokens the slot holds after that."""
    fields = {"drafts": drafts, "options": {"ignore_eos": False}}
    return len(talk(spec, prompt, **fields)[0].snapshot()["slots"][0]["tokens"])


def talk(spec: ModelSpec, prompt: tuple[int, ...], **fields: Any) -> tuple[Engine, Reply]:
    engine = Engine.create(
        OCTOBER, model=spec, options={"spec_type": "draft-mtp"}, arithmetic="ring"
    )
    fields = {"drafts": (), **fields}
    ticket = engine.submit(Request(prompt=as_tokens(prompt), predict=6, **fields))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return engine, reply


@every
def test_a_follow_up_reads_the_last_sampled_token_too(profile: str) -> None:
    play = Play(profile, "dense")
    play.ask(run(range(100)), 4)
    assert play.last is not None
    generated = list(play.last.generated)
    assert play.ask(run(range(100), generated, range(500, 505))) == (103, 6)


@every
def test_a_load_that_finds_no_room_clears_the_slot_and_keeps_the_entry(profile: str) -> None:
    play = Play(
        profile, "dense", parallel=2, kv_unified=True, ctx_size=512, slot_prompt_similarity=0.0
    )
    engine = play.engine
    play.ask(run(range(300)))
    busy = engine.submit(Request(prompt=as_tokens(range(1000, 1250)), predict=9))
    engine.step()
    assert [each[0] for each in play.ram] == [300]
    ticket = engine.submit(Request(prompt=as_tokens([*range(100), 7, 8]), predict=1))
    engine.run()
    engine.check_integrity()
    reply = engine.reply(ticket)
    assert reply is not None
    assert (reply.cached, reply.processed) == (0, 102)
    assert [loss.rule for loss in reply.losses] == ["cache-load-failed"]
    assert "cache-load-failed" in names(play)
    assert 300 in [each[0] for each in play.ram]
    assert engine.reply(busy) is not None
