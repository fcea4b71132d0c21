"""The prefix cache of Ollama's MLX runner: states at fixed positions, and its live buffer."""

from types import SimpleNamespace
from typing import Any

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.ollama.cache import LiveBuffer, PrefixCache
from cachesim.engines.ollama.rules import RunnerRules
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.units import as_tokens

DRAFTER = RunnerRules(interval=8, before_end=4, lookahead=1)


def test_a_state_is_kept_one_token_earlier_near_the_end_and_where_a_match_ended() -> None:
    cache, tokens = PrefixCache(StoreRules(), DRAFTER), as_tokens(range(23))
    fresh: Any = SimpleNamespace(cached=0)
    later: Any = SimpleNamespace(cached=7)

    assert [7, 15, 18] == cache.positions(fresh, tokens, 0)
    assert [11, 15, 18] == cache.positions(later, tokens, 12)


def test_a_drafter_is_named_where_it_takes_the_last_matching_token() -> None:
    cache = PrefixCache(StoreRules(), DRAFTER)
    cache.insert_cache("model", list(range(8)), [])
    found = cache.fetch("model", [*range(8), 99, 100])

    assert [("drafter-lookahead", 8, 7)] == [
        (loss.cause.id, loss.before, loss.after) for loss in found.losses
    ]


@pytest.mark.parametrize("profile", ["0.31.3+omlx", "0.31.3+rapid-mlx"])
def test_states_at_fixed_positions_know_no_draft_model(profile: str) -> None:
    """The draft model's cache lies beside the model's, and one of them was fed with both."""
    options = {"draft_model": "dense"}
    with pytest.raises(OptionError, match="has no draft_model here"):
        Engine.create(f"mlx-lm@{profile}", model=preset("dense"), options=options)


# Ollama's live buffer until 0.32.6: a lazy snapshot is a range of it.

C, A = tuple(range(100, 130)), (100, *range(210, 230))
CHUNK = 2048


def stays_lazy(live: LiveBuffer, key: tuple[int, ...]) -> list[tuple[int, int]]:
    """The ranges of `key`'s path that are still parts of the buffer."""
    path = [snapshot for snapshot in live.snapshots if snapshot.key == key[: len(snapshot.key)]]
    return [(each.start, len(each.key)) for each in path if each.lazy]


def played(live: LiveBuffer, prompt: tuple[int, ...], used: int, reply: int) -> tuple[int, ...]:
    live.resume(prompt, used, used)
    live.append(prompt[:-4], [], [])
    whole = (*prompt, *range(900, 900 + reply))
    live.append(whole, [], [])
    return whole


def test_an_append_after_a_rewind_copies_out_what_it_overwrites_and_the_next_one_nothing() -> None:
    live = LiveBuffer()
    whole = played(live, C, 0, 10)
    assert [(0, 26)] == stays_lazy(live, whole)
    live.resume(A, 1, 1)

    assert [(26, 40)] == stays_lazy(live, whole)


def test_a_first_chunk_that_reaches_the_end_copies_all_of_it_out() -> None:
    live = LiveBuffer()
    whole = played(live, C, 0, 10)
    live.resume((100, *range(210, 250)), 1, 1)

    assert [] == stays_lazy(live, whole)


def test_a_long_prompt_overwrites_what_lies_beyond_its_first_chunk() -> None:
    live = LiveBuffer()
    whole = played(live, tuple(range(CHUNK + 10)), 0, 3)
    live.resume((0, *range(9_000, 9_000 + 2 * CHUNK)), 1, 1)

    assert [(CHUNK + 6, CHUNK + 13)] == stays_lazy(live, whole)


def test_after_a_restored_copy_not_even_the_first_append_looks() -> None:
    live = LiveBuffer()
    played(live, C, 0, 10)
    other = played(live, (100, *range(210, 250)), 1, 40)  # C is copied out
    live.resume((*C[:20], 7, 8, 9, *range(400, 420)), 20, 20)

    assert 20 == live.checked
    assert [(37, 81)] == stays_lazy(live, other)


def test_a_reply_that_goes_on_is_one_snapshot_again() -> None:
    live = LiveBuffer()
    whole = played(live, C, 0, 10)
    live.resume(A, 1, 1)
    live.append(A, [], [])
    live.resume(whole, 39, 39)
    longer = (*whole, 901)
    live.append(longer, [], [])
    live.resume(A, 1, 1)

    assert [(26, 41)] == stays_lazy(live, longer)


def test_the_rows_of_the_common_prefix_stay_in_the_buffer() -> None:
    live = LiveBuffer()
    played(live, C, 0, 10)

    assert 1 == live.resume(A, 1, 1)
    live.append(A, [], [])
    assert 20 == live.resume((*A[:20], 7), 20, 20)
