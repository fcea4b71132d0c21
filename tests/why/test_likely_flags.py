"""Flags that a log does not print are searched within a bounded time."""

import pytest

from cachesim.engines.tokens import Rope
from cachesim.why.explain.likely_flags import TURN, work_of
from cachesim.why.infer.evidence import Lengths
from cachesim.why.read.observed import UNKNOWN, Observed
from cachesim.why.replay.player import ReplayRequest
from cachesim.why.replay.replayed import Rebuilt


@pytest.mark.parametrize(("cancelled", "expected"), [(False, 3_000), (True, 3_000 + TURN * 1_000)])
def test_a_client_that_leaves_late_costs_a_turn_for_each_token_until_then(
    cancelled: bool, expected: int
) -> None:
    observed = Observed(number=0, line=1, slot=0, task=0, cancelled=cancelled, held_after=2_000)
    sent = ReplayRequest(number=0, prompt=Rope.of(0, 1_000), reply=Rope.of(0, 2_000))

    assert expected == work_of(Rebuilt(observed, Lengths(UNKNOWN, UNKNOWN, UNKNOWN), sent))
