"""The server's known oddities, each by its own little story.

Others are pinned beside these: those whose answer is wrong in `test_wrong_answers`, those of the
checkpoint list in `test_checkpoint_places`, those with a worked example in `test_reference_dense`,
`test_reference_window` and `test_reference_exact`.
"""

import pytest

from cachesim.engines.llamacpp.family import HISTORY
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from tests.engines.llamacpp.play import Play

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
    play = Play(profile, "dense", parallel=3, ctx_size=1024)
    options = play.engine.server.options
    assert (options.n_ctx_slot, options.n_ctx) == (512, 1536)
