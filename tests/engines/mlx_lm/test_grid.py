"""The prefix caches of oMLX and of Ollama's MLX runner: states at fixed positions of a prompt."""

import pytest

from cachesim.engines import Engine
from cachesim.engines.mlx_lm.rules import GridRules, StoreRules
from cachesim.engines.mlx_lm.store.grid_prompt_cache import GridPromptCache
from cachesim.errors import OptionError
from cachesim.model.presets import preset

OLLAMA = GridRules(interval=8, before_end=4, lookahead=1, keeps_the_end=True)


def store(
    grid: GridRules, *, sliceable: bool = False, placeholder: int | None = None
) -> GridPromptCache:
    made = GridPromptCache(StoreRules(), grid)
    made.sliceable, made.placeholder = sliceable, placeholder
    return made


def test_positions_are_those_of_the_grid_below_the_end_and_beyond_what_is_cached() -> None:
    assert [8, 16] == store(GridRules(interval=8)).positions(20, 0, 0)
    assert [16] == store(GridRules(interval=8)).positions(20, 8, 8)
    assert [8] == store(GridRules(interval=8)).positions(16, 0, 0)


def test_ollama_keeps_one_token_earlier_near_the_end_and_where_a_match_ended() -> None:
    assert [7, 15, 18] == store(OLLAMA).positions(23, 0, 0)
    assert [11, 15, 18] == store(OLLAMA).positions(23, 7, 12)


def test_without_snapshots_only_layers_that_can_be_cut_are_kept() -> None:
    grid = GridRules(interval=8, captures=False)

    assert [] == store(grid).positions(20, 0, 0)
    assert [8, 16] == store(grid, sliceable=True).positions(20, 0, 0)


def test_a_fetch_takes_the_deepest_position_and_names_what_it_left() -> None:
    cache = store(GridRules(interval=4))
    for end in (4, 8):
        cache.insert_cache("model", list(range(end)), [])
    found = cache.fetch("model", [*range(7), 99, 100])

    assert (list(range(4)), 7, ["states-on-a-grid"]) == (
        found.key,
        found.equal,
        [each.cause.id for each in found.losses],
    )
    assert [*range(4, 7), 99, 100] == list(found.rest)


def test_a_state_of_one_array_is_found_and_rejected() -> None:
    cache = store(GridRules(interval=4, fewest_arrays=2), placeholder=0)
    cache.insert_cache("model", list(range(4)), [])
    found = cache.fetch("model", list(range(6)))

    assert (None, ["placeholder"]) == (found.key, [each.cause.id for each in found.losses])
    assert list(range(6)) == list(found.rest)


@pytest.mark.parametrize("profile", ["0.31.3+omlx", "0.31.3+rapid-mlx"])
def test_states_at_fixed_positions_know_no_draft_model(profile: str) -> None:
    """The draft model's cache lies beside the model's, and one of them was fed with both."""
    with pytest.raises(OptionError, match="has no draft_model here"):
        Engine.create(
            f"mlx-lm@{profile}",
            model=preset("dense"),
            arithmetic="ring",
            options={"draft_model": "dense"},
        )
