"""What the store finds: the table of lookups, what is trimmed on the way, which tokens are lost."""

from dataclasses import replace

import pytest

from cachesim.engines.mlx_lm.caches.prompt_cache import ChunkedKVCache, KVCache, LayerCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamKeyError
from cachesim.engines.mlx_lm.rules import StoreRules
from tests.engines.mlx_lm.cache_kit import RULES, write
from tests.engines.mlx_lm.store_kit import GENERATIONS, Mock, Store, digits, store


@pytest.mark.parametrize("generation", ["G0", "G1", "G2", "G3"])
def test_an_empty_query_raised_until_1078(generation: str) -> None:
    it = store(generation)
    it.T("12")

    with pytest.raises(UpstreamKeyError):
        it.look("")


def test_an_empty_query_misses_unless_there_is_an_empty_key() -> None:
    it = store()
    it.N("12")
    missed = it.look("")
    it.N("")

    assert (None, ("", "")) == (missed, it.look(""))
    assert ("12", "3") == it.look("123")
    assert None is it.look("3")


def test_what_is_trimmed_is_not_checked() -> None:
    layers: list[LayerCache] = [ChunkedKVCache(RULES, 4), KVCache(RULES)]
    for layer in layers:
        assert isinstance(layer, ChunkedKVCache | KVCache)
        write(layer, [1, 2, 3, 4, 5, 6])
    first = layers[0]
    assert isinstance(first, ChunkedKVCache)
    first.maybe_trim_front()
    it = store()
    it.insert_cache("m", digits("123456"), layers)
    cache, rest = it.fetch_nearest_cache("m", digits("19"))

    assert cache is not None
    assert ([9], [2, 1]) == (list(rest), [layer.offset for layer in cache])


@pytest.mark.parametrize(
    ("stored", "query", "expected"),
    [
        (["T12345"], "1234567", ("12345", "67")),
        (["T12345"], "12345", ("12345", "")),
        (["T12345"], "129", ("12", "9")),
        (["T12345"], "123", ("12", "3")),
        (["T12345"], "1", ("", "1")),
        (["N12345"], "129", None),
        (["N12345"], "123", None),
        (["N12345"], "123456", ("12345", "6")),
        (["T123456", "N123"], "12349", ("1234", "9")),
        (["T123456", "N123"], "1239", ("123", "9")),
        (["N123", "N123456"], "12349", ("123", "49")),
        (["T7"], "789", ("7", "89")),
        (["N7"], "789", None),
        (["T123", "T124", "T1256"], "129", ("12", "9")),
    ],
)
def test_the_table_of_lookups(
    stored: list[str], query: str, expected: tuple[str, str] | None
) -> None:
    it = store()
    for each in stored:
        (it.T if each[0] == "T" else it.N)(each[1:])

    assert expected == it.look(query)


def test_among_longer_entries_the_newest_branch_of_the_shortest_wins() -> None:
    it = store()
    for key in ("123", "124", "1256"):
        it.T(key)

    assert [1, 2, 4] == list(it.search("m", digits("129")).longer or ())


def test_a_deep_branch_that_cannot_be_trimmed_hides_its_trimmable_siblings() -> None:
    it = store()
    it.T("12345")
    it.N("126789")

    assert None is it.look("1267")


def test_a_usable_shorter_entry_shadows_a_longer_one_until_911() -> None:
    found = {}
    for generation in ("G1", "G2"):
        it = store(generation)
        it.T("123456")
        it.T("12")
        found[generation] = it.look("12349")

    assert {"G1": ("12", "349"), "G2": ("1234", "9")} == found


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

    assert losses == [(each.rule, each.before, each.after) for each in found.losses]
    assert len(query) - len(found.rest) == found.equal - sum(b - a for _, b, a in losses)
