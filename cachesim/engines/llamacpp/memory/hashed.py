"""In which order a small hash set of integers walks, in the standard library that upstream uses."""

from collections.abc import Iterable
from typing import Final

BUCKETS: Final = (13, 29, 59, 127, 257, 541)
"""How the table grows; an integer hashes to itself."""


def hash_set_order(ids: Iterable[int]) -> tuple[int, ...]:
    """The order in which the ids come out after being inserted one by one.

    A value that meets an empty bucket goes to the front of the one list that threads all
    buckets, one that meets others goes in front of them: so up to 13 small ids come out reversed,
    and a token given as [0, 1] has the primary id 1.
    """
    order: list[int] = []
    grown = 0
    for value in ids:
        if value in order:
            continue
        if len(order) == BUCKETS[grown]:
            grown += 1
            order = threaded(order, BUCKETS[grown])
        _insert(order, value, BUCKETS[grown])
    return tuple(order)


def threaded(values: Iterable[int], buckets: int) -> list[int]:
    """Values inserted one after the other into a table of this many buckets."""
    order: list[int] = []
    for value in values:
        _insert(order, value, buckets)
    return order


def _insert(order: list[int], value: int, buckets: int) -> None:
    mates = (i for i, other in enumerate(order) if other % buckets == value % buckets)
    order.insert(next(mates, 0), value)
