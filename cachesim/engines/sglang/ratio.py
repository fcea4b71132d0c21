"""How much of what running requests may still generate counts as promised.

It sinks with every decoded token and jumps where requests had to start over.
"""

from collections.abc import Sequence
from typing import Final

from cachesim.engines.sglang.request import Req

FIRST_RATIO: Final = 0.7
LEAST_FACTOR: Final = 0.14
DECAY_STEPS: Final = 600
"""`SGLANG_INIT_NEW_TOKEN_RATIO`, `..._MIN_NEW_TOKEN_RATIO_FACTOR`, `..._DECAY_STEPS`."""

RETRACT_STEPS: Final = 20
"""`SGLANG_RETRACT_DECODE_STEPS`."""


def decayed(ratio: float) -> float:
    """After a step in which all could decode."""
    least = FIRST_RATIO * LEAST_FACTOR
    return max(ratio - (FIRST_RATIO - least) / DECAY_STEPS, least)


def after_retraction(left: Sequence[Req]) -> float:
    """By what those that are left have generated of what they may."""
    decoded = sum(req.num_output for req in left)
    allowed = sum(req.max_new_tokens for req in left)
    return min(1.0, (decoded + RETRACT_STEPS * len(left)) / (allowed + 1))
