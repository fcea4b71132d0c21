"""A sample of what `make fuzz` plays, and that its guard notices what it is there for."""

from time import sleep

import pytest

from cachesim.errors import OptionError
from conformance.fuzz.guard import READ, REFUSED, Outcome, guarded
from conformance.fuzz.kinds import KINDS
from conformance.fuzz.search import mutant, portions, search

SAMPLE = {"scenario": 120, "file": 120, "vector": 100, "slot": 60, "workload": 40, "log": 20}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
def test_a_sample_of_changed_inputs_is_played_or_refused_in_words(name: str) -> None:
    tally = search(name, 2026, range(SAMPLE.get(name, 60)))

    assert [] == [f"{failure.again}\n{failure.failure}" for failure in tally.failures]
    assert tally.counts[name, REFUSED] < 2 / 3 * tally.counts.total()


@pytest.mark.parametrize("name", KINDS)
def test_a_number_always_names_the_same_mutant(name: str) -> None:
    kind = KINDS[name]

    assert repr(mutant(kind, 7, 11)) == repr(mutant(kind, 7, 11))
    assert repr(mutant(kind, 7, 11)) != repr(mutant(kind, 8, 11))


def test_what_breaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OptionError("option 'x' is 7; write 8")

    def refuse_without_a_word(_: object) -> None:
        raise OptionError

    def turn(_: object) -> None:
        while True:
            pass

    def fill(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("conformance.fuzz.guard.SECONDS", 0.05)

    assert Outcome("refused") == guarded(refuse, None)
    assert "without a word" in guarded(refuse_without_a_word, None).failure
    assert "slow" == guarded(turn, None).word
    assert "large" == guarded(fill, None).word
    monkeypatch.setattr("conformance.fuzz.guard.ASLEEP", 0.05)
    assert "slow" == guarded(lambda _: sleep(60), None).word
    assert "KeyError" in guarded(lambda _: {}[1], None).failure
    assert Outcome("played") == guarded(lambda _: None, None)
    assert Outcome("read") == guarded(lambda _: READ, None)


def test_every_kind_has_its_share() -> None:
    assert 100 == sum(kind.share for kind in KINDS.values())
    numbers: dict[str, list[int]] = {name: [] for name in KINDS}
    for name, _, part in portions(30_000, 0):
        numbers[name] += part
    assert {n: list(range(30_000 * k.share // 100)) for n, k in KINDS.items()} == numbers


def test_a_run_that_was_stopped_takes_up_the_round_that_it_was_in() -> None:
    whole = list(portions(60_000, 0))
    assert whole[-len(whole) // 3 :] == list(portions(60_000, 0, done=43_000))
    assert whole == list(portions(60_000, 0, done=19_999))
