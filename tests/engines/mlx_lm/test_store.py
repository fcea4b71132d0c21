"""The worked rows of the store, generation by generation: its order, its evictions, its books."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED
from tests.engines.mlx_lm.store_kit import GENERATIONS, Store, store


def test_what_happens_to_entries_is_told() -> None:
    told: list[Event] = []
    it = Store(GENERATIONS["G4"], 2, on_event=told.append)
    it.N("1")
    it.T("12")
    it.T("12")
    it.N("3")
    it.N("4")

    assert [
        ("prompt-cache-inserted", 1),
        ("prompt-cache-inserted", 2),
        ("prompt-cache-pruned", 1),
        ("prompt-cache-replaced", 2),
        ("prompt-cache-inserted", 2),
        ("prompt-cache-inserted", 1),
        ("prompt-cache-inserted", 1),
        ("prompt-cache-evicted", 2),
    ] == [(each.name(), each.as_dict()["n_tokens"]) for each in told]


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
