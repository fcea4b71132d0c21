"""Other orders of requests that overlapped: the next time they may come so.

as logged     L0 L1 L2 F0 F1 F2 L3 F3       L: launched, F: finished
permuted      L2 L1 L0 F0 F1 F2 L3 F3       those that came one after another, and two more so
one by one    L0 F0 L1 F1 L2 F2 L3 F3
earlier       L0 L1 L2 F0 F1 L3 F2 F3       only where fewer ran than there are slots
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

Order: TypeAlias = tuple[tuple[str, int], ...]

LAUNCH, FINISH = "launch", "finish"

PASSES: Final = (1, 2, 9)
"""Places by which a launch comes earlier: past one request's end, past two, past several."""


def other_orders(order: Order, slots: int) -> list[Order]:
    """Orders in which the same requests may come; none where they came one by one.

    A server whose every slot was busy makes the next request wait, whenever it comes.
    """
    peaks = _peaks(order)
    if max(peaks, default=0) < 2:
        return []
    found = [_permuted(order, first) for first in (None, 1, -1)]
    found.append(_one_by_one(order))
    if min(peaks) < slots:
        found += [_earlier(order, passes) for passes in PASSES]
    return [other for other in dict.fromkeys(found) if other != order]


def overlapping(order: Order, slots: Mapping[int, int]) -> set[int]:
    """Requests that ran while another one did; the next one in a slot ends one that has no end."""
    running: set[int] = set()
    found: set[int] = set()
    for what, number in order:
        if what == FINISH:
            running.discard(number)
        elif what == LAUNCH:
            running = {other for other in running if slots.get(other) != slots.get(number)}
            running.add(number)
            found |= running if len(running) > 1 else set()
    return found


def _peaks(order: Order) -> list[int]:
    """The most requests that ran at once, for each time between two at which none did."""
    peaks, running, peak = [], 0, 0
    for what, _ in order:
        running += {LAUNCH: 1, FINISH: -1}.get(what, 0)
        peak = max(peak, running)
        if not running and peak:
            peaks.append(peak)
            peak = 0
    return peaks


def _permuted(order: Order, first: int | None) -> Order:
    """Launches without an end between them reversed (None), or begun with another one."""
    found: list[tuple[str, int]] = []
    for launches in _runs_of_launches(order):
        found += launches[::-1] if first is None else launches[first:] + launches[:first]
    return tuple(found)


def _runs_of_launches(order: Order) -> Iterator[list[tuple[str, int]]]:
    """The order in pieces: launches in a row, and every other event alone."""
    launches: list[tuple[str, int]] = []
    for event in order:
        if event[0] == LAUNCH:
            launches.append(event)
            continue
        yield launches
        yield [event]
        launches = []
    yield launches


def _one_by_one(order: Order) -> Order:
    found: list[tuple[str, int]] = []
    for what, number in order:
        if what == LAUNCH:
            found += [(LAUNCH, number), (FINISH, number)]
        elif what != FINISH:
            found.append((what, number))
    return tuple(found)


def _earlier(order: Order, passes: int) -> Order:
    """Each launch so many ends earlier."""
    found = list(order)
    for _ in range(passes):
        for at in range(1, len(found)):
            if found[at][0] == LAUNCH and found[at - 1][0] == FINISH:
                found[at - 1], found[at] = found[at], found[at - 1]
    return tuple(found)
