"""The reasons of a miss: each rule that lowers what is usable, with the values it compared."""

from cachesim.engines.causes import Cause, Holdings
from cachesim.units import Count


def named(name: str) -> Cause:
    return Cause(id=name, sentence="words", about="About.")


def test_a_race_ends_with_the_losses_of_those_that_were_best() -> None:
    one, other, third = object(), object(), object()
    holdings = Holdings(
        {one: ("one", Count(5)), other: ("other", Count(9)), third: ("third", Count(2))}
    )
    assert (holdings.ledger.equal, holdings.ledger.equal_with) == (9, "other")
    holdings.rule_out(third, named("never the best"))
    holdings.rule_out(other, named("too old"))
    holdings.settle_on(one, named("unseen"))
    assert [(loss.rule, loss.before, loss.after) for loss in holdings.ledger.losses] == [
        ("too old", 9, 5)
    ]
