"""vllm-mlx's own scheduler and prefix cache beside the simulated one."""

import pytest

from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache
from cachesim.lab.real.environment import EnvironmentUnavailableError
from cachesim.lab.real.mlx_lm.vllm_mlx import MODELS, compare_vllm_mlx, draw

pytestmark = pytest.mark.wheel


def test_its_scheduler_gives_and_keeps_what_is_simulated() -> None:
    try:
        found = compare_vllm_mlx(0, 2 * len(MODELS))
    except EnvironmentUnavailableError as error:
        pytest.skip(str(error))

    assert found.difference is None
    assert sum(len(draw(0, each)["requests"]) for each in range(2 * len(MODELS))) == found.total(
        "requests"
    )
    assert found.total("hits") > 0 < found.total("found and not used")


def test_an_entry_that_stays_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryPromptCache, "evict_prefixes", lambda *_: None)
    try:
        found = compare_vllm_mlx(0, 2 * len(MODELS))
    except EnvironmentUnavailableError as error:
        pytest.skip(str(error))

    assert found.difference is not None
