"""What mlx-lm's server did before 0.30.6, and what one pull request made of it."""

import pytest
from chat_kit import ATTN, SWA, Chat, Outcome, said, system, user

from cachesim.engines import Profile
from cachesim.engines.base import Request
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamAttributeError
from cachesim.engines.mlx_lm.events import RequestDropped, WorkerStuck
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.model.presets import tiny
from cachesim.units import as_tokens

S = system()
GRANITE = tiny("hybrid", family="granitemoehybrid", groups=1)
LFM2 = tiny("hybrid-swa", family="lfm2", layers=("conv", "attention"), window=0)
NO_ANSWER = Outcome("no answer", None)


def stopped(release: str) -> Chat:
    """A server on which the HTTP side saw a stop word within a reply."""
    chat = Chat(release, ATTN)
    request = Request(
        prompt=(),
        messages=(S, user(5, 20)),
        predict=50,
        reply=as_tokens([100, 101, 102]),
        options={"stop_words": ["w92 w93 w94"]},
    )
    chat.outcomes([chat.engine.submit(request)])
    return chat


@pytest.mark.parametrize(
    ("release", "stored"),
    [("0.30.5", False), ("0.30.5+741", True), ("0.30.6", True), ("0.30.6-741", False)],
)
def test_the_state_that_a_stop_word_leaves_is_stored_since_741(
    release: str, *, stored: bool
) -> None:
    chat = stopped(release)

    assert [stored] == [each.stored for each in chat.events(RequestDropped)]
    assert stored == bool(chat.stored)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.5", NO_ANSWER),
        ("0.30.5+741", Outcome(27, same=True)),
        ("0.30.6", Outcome(27, same=True)),
        ("0.30.6-741", NO_ANSWER),
    ],
)
def test_before_741_a_seed_after_a_stop_word_waits_for_ever(
    release: str, expected: Outcome
) -> None:
    chat = stopped(release)

    assert expected == chat.ask(S, user(5, 20), seed=1)
    if expected == NO_ANSWER:
        assert [1] == [each.left_over for each in chat.events(WorkerStuck)]
        assert NO_ANSWER == chat.ask(S, user(5, 20))


def test_a_request_that_joins_the_batch_is_answered_all_the_same() -> None:
    assert Outcome(0, same=True) == stopped("0.30.5").ask(S, user(5, 20))


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.5", "worker died: ValueError"),
        ("0.30.5+842", 0),
        ("0.30.6", 0),
        ("0.30.6-842", "worker died: ValueError"),
    ],
)
def test_before_842_a_fresh_recurrent_prompt_beside_a_stored_one_ends_the_worker(
    release: str, expected: int | str
) -> None:
    chat = Chat(release, GRANITE)
    chat.ask(S, user(5, 20))
    fresh, _ = chat.together([[user(2, 40)], [S, user(5, 20), said(), user(40, 30)]])

    assert expected == fresh.cached


def test_a_class_without_a_cache_class_of_its_own_lives_on() -> None:
    chat = Chat("0.30.5", LFM2)
    chat.ask(S, user(5, 20))
    fresh, _ = chat.together([[user(2, 40)], [S, user(5, 20), said(), user(40, 30)]])

    assert 0 == fresh.cached


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.5", (None, "causal")),
        ("0.30.5+843", ("1111", "111111")),
        ("0.30.6-843", (None, "causal")),
    ],
)
def test_before_843_a_cache_that_keeps_everything_overlooks_a_window(
    release: str, expected: tuple[str | None, str]
) -> None:
    cache = KVCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches)
    cache.offset = 3
    masks = [cache.make_mask(columns, window_size=8) for columns in (1, 3)]

    assert expected == tuple(
        mask if mask is None or isinstance(mask, str) else "".join("1" for _ in mask[0])
        for mask in masks
    )


@pytest.mark.parametrize(
    ("release", "raises"),
    [("0.30.4", True), ("0.30.4+807", False), ("0.30.5", False), ("0.30.5-807", True)],
)
def test_before_807_a_restored_recurrent_cache_has_no_fields_for_padding(
    release: str, *, raises: bool
) -> None:
    cache = ArraysCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches, 2)
    restored = ArraysCache.from_state(cache.state, "", rules=cache.rules)

    if raises:
        with pytest.raises(UpstreamAttributeError, match="no attribute 'left_padding'"):
            restored.make_mask(3)
    else:
        assert restored.make_mask(3) is None


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.2", "worker died: TypeError"),
        ("0.30.2+755", 0),
        ("0.30.4", 0),
        ("0.30.4-755", "worker died: TypeError"),
    ],
)
def test_before_755_a_fresh_prompt_beside_a_stored_one_ends_the_worker(
    release: str, expected: int | str
) -> None:
    chat = Chat(release, ATTN)
    chat.complete(range(20, 40), reply=(90, 91))
    fresh = chat.complete([*range(20, 40), 90, 91, 80], range(50, 60), reply=(90,))

    assert expected == fresh.cached


def test_a_ring_without_keys_lacks_a_shape_where_other_keys_cannot_be_indexed() -> None:
    chat = Chat("0.30.2", SWA)
    chat.ask(S, user(5, 20))
    fresh, _ = chat.together([[user(2, 40)], [S, user(5, 20), said(), user(40, 30)]])

    assert "worker died: AttributeError" == fresh.cached


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.2", "worker died: ValueError"),
        ("0.30.2+738", 32),
        ("0.30.4", 32),
        ("0.30.4-738", "worker died: ValueError"),
    ],
)
def test_before_738_the_second_turn_within_a_window_ends_the_worker(
    release: str, expected: int | str
) -> None:
    """The state is stored with all rows of the window, and merged as if it had its tokens alone."""
    chat = Chat(release, tiny("swa", window=64))
    chat.ask(S, user(5, 20))

    assert expected == chat.ask(S, user(5, 20), said(), user(7, 30)).cached


@pytest.mark.parametrize(
    ("release", "forwards"),
    [("0.30.2", False), ("0.30.2+690", True), ("0.30.4", True), ("0.30.4-690", False)],
)
def test_before_690_recurrent_prompts_are_served_one_after_the_other(
    release: str, *, forwards: bool
) -> None:
    chat = Chat(release, LFM2)
    chat.together([[S, user(5, 20)], [S, user(5, 20)]])

    assert forwards == any(rows == 2 for rows, _ in chat.calls)


def test_from_0_29_1_to_0_30_2_nothing_changed_in_what_is_cached() -> None:
    assert 1 == len({repr(FAMILY.release(name).rules) for name in ("0.29.1", "0.30.0", "0.30.2")})
