"""Comparing lists of tokens, for every engine and for what is said of it."""

from collections.abc import Sequence

from cachesim.engines.rope import Rope
from cachesim.units import Count, Integers

_SMALL = 16


def get_common_prefix(one: Sequence[int] | Rope, other: Sequence[int] | Rope) -> Count:
    """How many leading tokens are equal (llama.cpp: `server_tokens::get_common_prefix`).

    Halves the range by comparing slices, which run in C, until a short walk settles it.
    """
    if isinstance(one, Rope) and isinstance(other, Rope):
        return Count(one.common(other))
    if not one or not other:
        return Count(0)
    if type(one) is not type(other):  # slices of a list and a tuple are never equal
        one, other = list(one), list(other)
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return Count(high)
    while high - low > _SMALL:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    while low < high and one[low] == other[low]:
        low += 1
    return Count(low)


def common_numbers(one: Integers, other: Integers) -> int:
    """How many leading numbers of two arrays are equal."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    at = int(differ.argmax()) if count else 0
    return at if count and differ[at] else count
