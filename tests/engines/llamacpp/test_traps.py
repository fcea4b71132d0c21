"""The server's known oddities, each by its own little story.

Others are pinned beside these: those whose answer is wrong in `test_wrong_answers`, those of the
checkpoint list in `test_checkpoint_places`, those with a worked example in `test_reference_dense`,
`test_reference_window` and `test_reference_exact`.
"""

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.releases import HISTORY
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
every = pytest.mark.parametrize("profile", [MAY, JUNE, OCTOBER])


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
    options = Play(profile, "dense", parallel=3, ctx_size=1024).engine.server.options
    assert (options.n_ctx_slot, options.n_ctx) == (512, 1536)


# Slots saved to files, restored and erased; requests cancelled; several in the queue.


@pytest.mark.parametrize("cut", [0, 3, 10, 200, -1])
def test_a_damaged_file_is_refused(cut: int) -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(50)))
    play.act("slot-save", 0, "a")
    data = play.store.files["a"]
    play.store.put("a", data[:cut] if cut >= 0 else data[:-1] + bytes([data[-1] ^ 1]))
    assert play.act("slot-restore", 0, "a").error == "invalid_request_error"
    assert play.tokens() == 0


@every
@pytest.mark.parametrize("model", ["dense", "hybrid"])
@pytest.mark.parametrize("file", ["missing", "damaged"])
def test_a_refused_file_takes_what_the_slot_held(profile: str, model: str, file: str) -> None:
    """As the real servers of b8929, b9093, b9538, b10809 and b11549 answer: cached 0 of 50."""
    play = Play(profile, model)
    play.ask(run(range(100, 160)), 2)
    play.act("slot-save", 0, "damaged")
    play.ask(run(range(200, 250)), 2)
    play.store.put("damaged", b"x" + play.store.files["damaged"][1:])

    assert play.act("slot-restore", 0, file).error == "invalid_request_error"
    assert play.ask(run(range(200, 250)), 2) == (0, 50)


def test_a_file_of_another_model_is_refused() -> None:
    play, other = Play(OCTOBER, "dense"), Play(OCTOBER, "hybrid")
    play.ask(run(range(50)))
    play.act("slot-save", 0, "a")
    other.store.put("a", play.store.files["a"])
    assert other.act("slot-restore", 0, "a").error == "invalid_request_error"
    assert other.tokens() == 0


def test_saving_needs_a_place_for_bytes() -> None:
    engine = Engine.create(OCTOBER, model=preset("dense"), options={}, arithmetic="ring")
    engine.slot_save(0, "a")  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="store"):
        engine.run()
