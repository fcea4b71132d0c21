"""The stand-in for `mlx_lm.generate` on which upstream's own tests run."""

import pytest

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.model.presets import tiny
from tests.upstream_generation import HEAD_SIZE, ToyModel, generate_step

PROMPT = list(range(1, 9))


@pytest.mark.parametrize("release", ["0.30.7", "0.32.2"])
def test_a_cache_passed_on_continues_the_reply_of_a_run_without_one(release: str) -> None:
    rules = FAMILY.release(release).rules
    model = ToyModel(tiny("dense", vocabulary=512, head_size=HEAD_SIZE), rules, release)
    expected = [token for token, _ in generate_step(PROMPT, model, max_tokens=4)]
    cache = model.caches()
    for _ in generate_step(PROMPT, model, max_tokens=2, prompt_cache=cache):
        pass  # the last token returned is in the cache too: upstream computes one ahead
    rest = [
        token for token, _ in generate_step(expected[2:3], model, max_tokens=1, prompt_cache=cache)
    ]
    assert [expected[3]] == rest
