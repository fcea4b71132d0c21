"""Generated agents have the statistics that they state."""

import random
from statistics import mean, quantiles

import pytest

from cachesim.traces import source
from cachesim.traces.replay import Cell, play

DRAWN = [source.conversation(draw) for draw in [random.Random(7)] for _ in range(4_000)]


@pytest.mark.parametrize(
    ("stated", "values"),
    [
        (source.FIRST, [each.lengths[0] for each in DRAWN]),
        (source.LAST, [each.lengths[-1] for each in DRAWN]),
        (source.MINUTES, [each.pause * len(each.lengths) / 60_000 for each in DRAWN]),
    ],
)
def test_quartiles_are_those_that_are_stated(
    stated: tuple[float, ...], values: list[float]
) -> None:
    assert [*stated[1:4]] == pytest.approx(quantiles(values, n=4), rel=0.08)


def test_the_share_of_a_conversation_that_is_computed_is_the_stated_one() -> None:
    shares = [each.lengths[-1] / sum(each.lengths) for each in DRAWN]

    below = [mean(share < quartile for share in shares) for quartile in source.COMPUTED[1:4]]
    assert [0.25, 0.5, 0.75] == pytest.approx(below, abs=0.025)
    assert 0.09 == pytest.approx(mean(shares), abs=0.01)


@pytest.mark.thorough
def test_a_cache_of_everything_reuses_what_conversations_have_in_common() -> None:
    found = play(Cell(source=source.Source(name="made:agents:600:3", scale=4), profile="bound"))

    assert (600, source.AGENT_UNIT // 16) == (found["requests"], found["scale"])
    lengths: dict[int, int] = {}
    for request in source.agent_requests(600, 3):
        lengths[request.blocks[0]] = max(lengths.get(request.blocks[0], 0), request.length)
    new = sum(lengths.values()) / sum(request.length for request in source.agent_requests(600, 3))
    assert 1 - new == pytest.approx(found["rate"], abs=0.004)  # a partial block is computed again


def test_requests_come_in_time_and_by_their_seed() -> None:
    one, again, other = (list(source.agent_requests(200, seed)) for seed in (1, 1, 2))

    assert one == again != other
    assert sorted(each.time for each in one) == [each.time for each in one]
    assert all(-(-each.length // source.AGENT_UNIT) == len(each.blocks) for each in one)
