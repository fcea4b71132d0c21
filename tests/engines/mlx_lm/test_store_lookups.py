"""What the store finds: the table of lookups, what is trimmed on the way, which tokens are lost."""

from dataclasses import replace

import pytest

from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache
from cachesim.engines.mlx_lm.rules import StoreRules
from tests.engines.mlx_lm.store_kit import GENERATIONS, Mock, Store, digits, store


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
