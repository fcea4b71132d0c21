"""The worked rows of the store, generation by generation: its order, its evictions, its books."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.caches.prompt_cache import KVCache, LayerCache
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamIndexError,
    UpstreamKeyError,
)
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED
from tests.engines.mlx_lm.cache_kit import block, kv
from tests.engines.mlx_lm.store_kit import GENERATIONS, Mock, Store, digits, store


@pytest.mark.parametrize("generation", ["G2", "G3", "G4"])
def test_a_hit_leaves_the_entry_where_it_is(generation: str) -> None:
    it = store(generation)
    it.T("12345")

    assert ("12345", "67") == it.look("1234567")
    assert ("12345", "") == it.look("12345")
    assert {"12345"} == it.keys


@pytest.mark.parametrize("generation", ["G0", "G1"])
def test_until_911_a_hit_takes_the_entry_out(generation: str) -> None:
    it = store(generation)
    given = it.T("12345")
    cache, _ = it.fetch_nearest_cache("m", digits("1234567"))

    assert given is cache
    assert None is it.look("12345")


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ("G0", {"12", "123"}),
        ("G2", {"123"}),
        ("G3", {"12", "123"}),
        ("G4", {"123"}),
    ],
)
def test_a_trimmable_entry_prunes_its_prefixes(generation: str, expected: set[str]) -> None:
    it = store(generation)
    it.T("12")
    it.T("123")

    assert expected == it.keys


def test_a_later_shorter_entry_stays_beside_the_longer_one() -> None:
    it = store()
    it.T("12")
    it.T("123")
    it.T("12345")
    pruned = it.keys
    it.T("12")

    assert ({"12345"}, {"12", "12345"}) == (pruned, it.keys)


@pytest.mark.parametrize(("generation", "expected"), [("G4", {"1234"}), ("G3", {"123", "1234"})])
def test_pruning_ignores_of_which_kind_the_victims_are(generation: str, expected: set[str]) -> None:
    it = store(generation)
    it.N("12", "system")
    it.N("123", "user")
    it.T("1234")

    assert expected == it.keys


def test_an_entry_that_cannot_be_trimmed_prunes_nothing() -> None:
    it = store()
    it.T("12")
    it.N("123")

    assert {"12", "123"} == it.keys


@pytest.mark.parametrize(("generation", "second"), [("G2", False), ("G3", True), ("G4", True)])
def test_the_same_key_again_replaces_the_object_only_since_1019(
    generation: str, second: bool
) -> None:
    it = store(generation)
    first, again = it.N("123"), it.N("123")

    assert (again if second else first) is it.trie.get("m", digits("123")).prompt_cache
    assert 1 == len(it)


def test_until_911_the_same_key_is_counted_and_served_as_a_copy_first() -> None:
    it = store("G0")
    first = it.T("123")
    it.T("123")
    copy, _ = it.fetch_nearest_cache("m", digits("123"))
    last, _ = it.fetch_nearest_cache("m", digits("123"))

    assert copy is not first
    assert last is first
    assert set() == it.keys


@pytest.mark.parametrize("generation", ["G0", "G2", "G3", "G4"])
def test_fetching_protects_nothing_from_eviction(generation: str) -> None:
    it = store(generation, max_size=2)
    it.T("11")
    it.T("22")
    it.look("115")
    it.T("33")

    assert {"22", "33"} == it.keys


@pytest.mark.parametrize(
    ("generation", "expected"), [("G1", {"3"}), ("G2", {"3"}), ("G3", set()), ("G4", set())]
)
def test_an_entry_beyond_the_byte_limit_evicts_itself_since_1019(
    generation: str, expected: set[str]
) -> None:
    it = store(generation, max_bytes=10)
    it.N("1", nbytes=6)
    it.N("2", nbytes=6)
    between = (it.keys, it.nbytes)
    it.N("3", nbytes=50)

    assert ({"2"}, 6) == between
    assert (expected, 50 * len(expected)) == (it.keys, it.nbytes)


def test_trim_to_takes_the_oldest_and_reads_negative_limits_as_none_left() -> None:
    it = store()
    for key in "12345":
        it.N(key, nbytes=10)
    found = []
    for limits in ({"n_sequences": 3}, {"n_bytes": 15}, {"n_bytes": -5}):
        it.trim_to(**limits)
        found.append(it.keys)

    assert [{"3", "4", "5"}, {"5"}, set()] == found


def test_types_are_evicted_assistant_first_but_never_below_the_next_type() -> None:
    it, found = store(max_size=3), []
    turns = [("1", "system"), ("2", "user"), ("3", "assistant"), ("4", "assistant")]
    turns += [("5", "user"), ("6", "user"), ("7", "system"), ("8", "system"), ("9", "system")]
    for key, kind in turns:
        it.N(key, kind)
        found.append([it.queue(name) for name in ("assistant", "user", "system")])

    assert [["4"], ["2"], ["1"]] == found[3]
    assert [["4"], ["5"], ["1"]] == found[4]
    assert [["4"], ["6"], ["1"]] == found[5]
    assert [[], ["6"], ["1", "7"]] == found[6]
    assert [[], ["6"], ["7", "8"]] == found[7]
    assert [[], ["6"], ["8", "9"]] == found[8]


def test_checkpoints_and_ordinary_entries_of_911_compete_by_number() -> None:
    it, found = store("G2", max_size=3), []
    for key, kind in zip(
        "123456", ["user", "user", *["assistant"] * 2, "user", "assistant"], strict=True
    ):
        it.N(key, kind)
        found.append((it.queue("ordinary"), it.queue("checkpoint")))

    assert [(["4"], ["1", "2"]), (["4"], ["2", "5"]), (["6"], ["2", "5"])] == found[3:]


@pytest.mark.parametrize(("max_size", "expected"), [(2, {"1", "12"}), (1, {"1"}), (0, set())])
def test_a_small_store_evicts_the_newcomer(max_size: int, expected: set[str]) -> None:
    it = store(max_size=max_size)
    for key, kind in (("1", "system"), ("12", "user"), ("123", "assistant")):
        it.N(key, kind)

    assert expected == it.keys


def test_a_key_that_changes_its_type_is_one_entry() -> None:
    it = store()
    it.N("12", "user", nbytes=5)
    it.N("12", "system", nbytes=7)

    assert {
        "assistant": {"n_sequences": 0, "n_bytes": 0},
        "user": {"n_sequences": 0, "n_bytes": 0},
        "system": {"n_sequences": 1, "n_bytes": 7},
    } == it.stats_by_type()


def test_the_limit_is_one_for_all_models() -> None:
    it = store(max_size=2)
    for model, key in (("a", "11"), ("b", "11"), ("a", "22")):
        it.put(key, "assistant", nbytes=1, trimmable=True, model=model)

    left = [(model, tokens) for model, tokens, _ in it.trie.items()]
    assert [("a", [2, 2]), ("b", [1, 1])] == left


def test_the_store_keeps_the_very_list_and_the_very_key() -> None:
    it = store(max_size=1)
    key = digits("123")
    cache: list[LayerCache] = [Mock(key, trimmable=True)]
    it.insert_cache("m", key, cache)
    cache[0].trim(1)
    served = it.look("1234")
    key.append(4)

    assert ("12", "4") == served
    with pytest.raises(UpstreamKeyError):
        it.T("5")


def test_bytes_are_counted_once() -> None:
    it = store()
    layer = kv(1, 2, 3)
    it.insert_cache("m", digits("123"), [layer])
    layer.update_and_fetch(block([7] * 400), block([7] * 400))
    cache, _ = it.fetch_nearest_cache("m", digits("123"))

    assert cache is not None
    assert isinstance(cache[0], KVCache)
    assert (2048, 403) == (it.nbytes, cache[0].offset)


def test_1019_took_from_an_empty_queue() -> None:
    it = store("G3", max_size=1)
    it.N("1", "system")

    with pytest.raises(UpstreamIndexError):
        it.N("2", "system")


def test_until_906_there_is_no_byte_limit() -> None:
    with pytest.raises(UpstreamAttributeError):
        store("G0").trim_to(n_sequences=1)


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


def test_one_key_inserted_three_times_is_counted_once() -> None:
    it = store()
    for _ in range(3):
        it.N("123", "system", nbytes=7)
    it.N("9", "system")
    it.N("123", "system", nbytes=7)

    assert (["9", "123"], 8) == (it.queue("system"), it.nbytes)


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
