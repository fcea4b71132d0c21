"""Ratios as the server computes them: IEEE single precision, operand by operand.

Several tests of the server sit exactly on a bound (`> 0.1f`, `< 0.25f`, `< 0.5f`), where double
precision would answer differently.
"""

from math import isnan
from typing import Final

import numpy as np

Float32 = np.float32


def ratio(part: int, whole: int) -> Float32:
    """`part / whole` in float32; 0/0 is NaN, as on the real machine."""
    return quotient(np.float32(part), np.float32(whole))


def quotient(part: Float32, whole: Float32) -> Float32:
    """The quotient of numbers in single precision."""
    if whole:
        return part / whole
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(part / whole)


HALF: Final = np.float32(0.5)
QUARTER: Final = np.float32(0.25)


def shown(value: Float32) -> float | None:
    """A ratio for events and JSON, which know no NaN."""
    number = float(value)
    return None if isnan(number) else number
