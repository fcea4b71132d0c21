"""Bounds that conversations seldom meet exactly, worked out from upstream's own expressions."""

from cachesim.engines.llamacpp.checkpoints import BEFORE_21510, THRESHOLD, accept_tests
from cachesim.engines.llamacpp.family import FAMILY


def test_before_21510_a_checkpoint_from_position_0_passes_no_threshold_of_0() -> None:
    found = {
        release: {THRESHOLD, BEFORE_21510}
        & {*accept_tests(FAMILY.release(release).rules.reuse, exact=False)}
        for release in ("b8672", "b9093", "b11549")
    }

    assert {"b8672": {BEFORE_21510}, "b9093": {THRESHOLD}, "b11549": {THRESHOLD}} == found
