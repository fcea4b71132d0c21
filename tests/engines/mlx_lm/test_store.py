"""The worked rows of the store, generation by generation: its order, its evictions, its books."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED
from tests.engines.mlx_lm.cache_kit import GENERATIONS, Mock, Store, digits, store

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["T", "N", "look", "trim"]),
        st.text("123", max_size=6),
        st.sampled_from(["assistant", "user", "system"]),
        st.integers(0, 20),
    ),
    max_size=25,
)


@pytest.mark.parametrize("generation", ["G0", "G1", "G2", "G4"])
@given(moves=MOVES, max_size=st.integers(1, 5), max_bytes=st.sampled_from([30, UNLIMITED]))
def test_the_books_agree_and_what_is_handed_out_is_what_was_asked_for(
    generation: str, moves: list[tuple[str, str, str, int]], max_size: int, max_bytes: int
) -> None:
    it = store(generation, max_size, max_bytes if generation != "G0" else UNLIMITED)
    for move, key, kind, number in moves:
        if move == "look" and key:
            found = it.look(key)
            assert found is None or key == "".join(found)
        elif move == "trim" and generation != "G0":
            it.trim_to(n_sequences=number, n_bytes=3 * number)
        elif move in "TN" and key:
            it.put(key, kind, nbytes=number, trimmable=move == "T")
        in_trie = [(tokens, entry) for _, tokens, entry in it.trie.items()]
        in_order = [list(tokens) for queue in it.order.queues.values() for _, tokens in queue]
        assert sorted(in_order) == sorted(tokens for tokens, _ in in_trie)
        assert max_size >= len(it)
        if generation != "G0":
            assert it.nbytes == sum(entry.nbytes for _, entry in in_trie)
            assert it.nbytes == sum(each["n_bytes"] for each in it.stats_by_type().values())
            assert it.nbytes <= max_bytes or (len(it) == 1 and generation != "G4")


def test_999_checks_what_was_trimmed_and_prunes_within_reach() -> None:
    rules: StoreRules = replace(GENERATIONS["G2"], checks_trimmed=True, prunes="within-size")
    it = Store(rules)
    it.N("12")
    short: list[LayerCache] = [Mock([5, 6], trimmable=True)]
    it.insert_cache("m", digits("123456"), short)

    assert {"12", "123456"} == it.keys
    assert ("12", "9") == it.look("129")
    assert None is it.look("19")


def test_1186_serves_a_state_of_other_tokens() -> None:
    it = Store(replace(GENERATIONS["G4"], reuses_untrimmed=True))
    it.N("12345")

    assert ("12345", "9") == it.look("129")


@pytest.mark.parametrize(
    ("stored", "query", "losses"),
    [
        (["T12345"], "123", [("one-token-is-fed", 3, 2)]),
        (["N12345"], "129", [("not-trimmable", 2, 0)]),
        (["N123", "N123456"], "12349", [("not-trimmable", 4, 3)]),
        (["N7"], "789", [("not-trimmable", 1, 0)]),
        (["N12345"], "123456", []),
        (["T12345"], "9", []),
    ],
)
def test_every_token_that_was_equal_and_not_used_is_accounted_for(
    stored: list[str], query: str, losses: list[tuple[str, int, int]]
) -> None:
    it = store()
    for each in stored:
        (it.T if each[0] == "T" else it.N)(each[1:])
    found = it.fetch("m", digits(query))

    assert losses == [(loss.rule, loss.before, loss.after) for loss in found.losses]
    assert len(query) - len(found.rest) == found.equal - sum(b - a for _, b, a in losses)
