"""Comparing lists of tokens, for every engine and for what is said of it."""

from collections.abc import Sequence
from itertools import compress
from operator import ne
from typing import Final

from cachesim.engines.rope import Rope
from cachesim.units import Count, Integers

_SHORT: Final = 256
"""Tokens up to which a walk is quicker than comparing halves."""


def get_common_prefix(one: Sequence[int] | Rope, other: Sequence[int] | Rope) -> Count:
    """The number of equal leading tokens (llama.cpp: `server_tokens::get_common_prefix`).

    Long lists are compared by slices, half by half, and what is left is walked: both run in C.
    """
    if isinstance(one, Rope) and isinstance(other, Rope):
        return Count(one.common(other))
    low, high = 0, min(len(one), len(other))
    if high > _SHORT:
        if type(one) is not type(other):  # slices of a list and a tuple are never equal
            one, other = list(one), list(other)
        if one[:high] == other[:high]:
            return Count(high)
        while high - low > _SHORT:
            middle = (low + high) // 2
            if one[low:middle] == other[low:middle]:
                low = middle
            else:
                high = middle
        one, other = one[low:high], other[low:high]
    return Count(next(compress(range(low, high), map(ne, one, other)), high))


def common_numbers(one: Integers, other: Integers) -> int:
    """The number of equal leading values of two arrays."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    at = int(differ.argmax()) if count else 0
    return at if count and differ[at] else count
