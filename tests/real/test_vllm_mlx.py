"""vllm-mlx's and Rapid-MLX's own schedulers and prefix caches beside the simulated ones."""

import pytest

from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache
from cachesim.engines.mlx_lm.store.rapid_prompt_cache import RapidPromptCache
from cachesim.lab.real.agreement import Agreement
from cachesim.lab.real.environment import EnvironmentUnavailableError
from cachesim.lab.real.mlx_lm.vllm_mlx import MODELS, RAPID_MLX, VLLM_MLX, compare_vllm_mlx, draw

pytestmark = pytest.mark.wheel

WHEELS = pytest.mark.parametrize("wheel", [VLLM_MLX, RAPID_MLX])


def compared(wheel: str) -> Agreement:
    try:
        return compare_vllm_mlx(0, 2 * len(MODELS), wheel=wheel)
    except EnvironmentUnavailableError as error:
        pytest.skip(str(error))


@WHEELS
def test_its_scheduler_gives_and_keeps_what_is_simulated(wheel: str) -> None:
    found = compared(wheel)

    assert found.difference is None
    assert sum(
        len(draw(0, each, wheel)["requests"]) for each in range(2 * len(MODELS))
    ) == found.total("requests")
    assert found.total("hits") > 0 < found.total("found not all used")


def test_an_entry_that_stays_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryPromptCache, "evict_prefixes", lambda *_: None)

    assert compared(VLLM_MLX).difference is not None


def test_a_prompt_that_is_kept_with_its_last_token_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RapidPromptCache, "keeps_before_end", lambda *_: False)

    assert compared(RAPID_MLX).difference is not None
