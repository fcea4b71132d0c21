"""Ways in which a request may have been: what it shares with what, as far as its lines tell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from cachesim.engines.rope import Rope
from cachesim.logs.evidence import Interval, counts_of
from cachesim.logs.known import Known
from cachesim.logs.observed import Observed
from cachesim.logs.replay import Rebuilt

Possible: TypeAlias = tuple[Rope, str, Interval, bool]
"""A holder, its name, how much of it the prompt may begin with, and whether the cache is wanted."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a request may have been: what it shares, and with what."""

    prompt: Rope
    common: Known
    holder: str
    cache_prompt: bool = True
    goes_on: bool = False  # it has all of what it shares something with
    at_joint: bool = False  # it parts from that where another prompt or reply did


def with_entries(
    request: Observed, whole: int, parked: Sequence[Rope], exact: Known
) -> Iterator[Possible]:
    """Parked conversations that the search named."""
    search = request.search
    if search.found_keep is not None:
        for index in range(len(parked) - 1, -1, -1):
            entry = parked[index]
            bounds = counts_of(search.found_sim, whole)
            bounds = bounds and bounds.meet(counts_of(search.found_keep, len(entry)))
            if bounds is not None and counts_of(search.found_keep, len(entry)) is not None:
                yield entry, f"prompt cache entry {index}", _narrowed(bounds, exact), True
    best = max(search.compared, key=lambda each: each.lcp, default=None)
    if best is not None and best.lcp > 0:
        for index, entry in enumerate(parked):
            if len(entry) == best.n_tokens and best.lcp <= whole:
                name = f"prompt cache entry {index}"
                yield entry, name, Interval(best.lcp, best.lcp), True


def with_slot(request: Observed, whole: int, held: Rope, exact: Known) -> Iterator[Possible]:
    """What the slot itself holds."""
    if not len(held):
        return
    name = f"slot {request.slot}"
    sim = request.sim if request.sim is not None else request.search.sim
    keep = request.keep if request.sim is not None else request.search.keep
    bounds = counts_of(sim, whole)
    seen = request.slot_common.get(request.slot)
    if seen is not None and not request.search.found_keep:
        bounds = Interval(seen, seen)
    by_keep = counts_of(keep, len(held))
    both = bounds.meet(by_keep) if bounds is not None else by_keep
    bounds = both or bounds
    if bounds is None and exact.value is None:
        return
    limit = Interval(0, min(whole, len(held)))
    bounds = (bounds or limit).meet(limit)
    if bounds is not None:
        yield held, name, _narrowed(bounds, exact), True
        if exact.value is not None and exact.value not in bounds:
            yield held, name, bounds, False  # the request wanted nothing of the cache


def guessed(
    rebuilt: Rebuilt, held: Rope, parked: Sequence[Rope], *, known: int
) -> Iterator[Possible]:
    """Where no line tells: whatever there is that would give as many cached tokens.

    More is cached than the prompt and its slot have in common at most (`known`): then a parked
    conversation was loaded, though the log's level does not print it.
    """
    cached = rebuilt.lengths.cached.value
    whole = rebuilt.lengths.prompt.value or 0
    if not cached or (rebuilt.observed.road == "similarity" and cached <= known):
        return
    names = [(entry, f"prompt cache entry {i}") for i, entry in enumerate(parked)][::-1]
    if rebuilt.observed.road != "similarity":  # else a ratio says what the slot shares
        names.insert(0, (held, f"slot {rebuilt.observed.slot}"))
    for rope, name in names:
        if len(rope) >= cached:
            yield rope, name, Interval(cached, min(whole, len(rope))), True


def _narrowed(bounds: Interval, exact: Known) -> Interval:
    if exact.value is None:
        return bounds
    low = exact.value if exact.low is None else exact.low
    high = exact.value if exact.high is None else exact.high
    return bounds.meet(Interval(low, high)) or bounds


def likely(rope: Rope, whole: int, cached: int | None, bounds: Interval, *, one: bool) -> list[int]:
    """Lengths within bounds: what ends with a text or was cached comes before what merely fits."""
    likely = [whole] if one else []
    likely += [len(rope)]
    if cached is not None:
        likely += [cached, cached + 1]
    likely += reversed(joints_of(rope))
    likely += [bounds.near((bounds.low + bounds.high) // 2), bounds.low, bounds.high]
    return list(dict.fromkeys(each for each in likely if each in bounds))[:6]


def joints_of(rope: Rope) -> list[int]:
    """Where one text of a prompt ends and the next one begins."""
    return list(accumulate(last - first for _, first, last in rope.runs))


def with_moved(prompt: Rope, held: Rope, request: Observed) -> Rope:
    """A prompt's beginning, and the chunks that were moved behind it (`--cache-reuse`).

    held      [ a ......... )( b .. )( c ......... )
    prompt    [ a ......... )( c ......... )( new  )      b is gone: c is moved to the left
    """
    longer = prompt[:]
    for was, at, size in request.moved:
        if at == len(longer) and was + size <= len(held):
            longer += held[was : was + size]
    return longer


def is_of_road(request: Observed, way: Way, held: Rope, least: float) -> bool:
    """Whether a slot that holds this would have been chosen on the way that the log names.

    By age only where no slot has more than the `least` part of the prompt (0 switches that off); by
    similarity where it has no more than the printed ratio says. (It may have more than is known.)
    """
    whole, common = len(way.prompt), way.prompt.common(held)
    if request.road == "age":
        return not least or common <= least * whole
    bounds = counts_of(request.sim, whole) if request.road == "similarity" else None
    return bounds is None or common <= bounds.high


def declined(request: Observed, found: Sequence[Possible], *, prints_depth: bool) -> bool:
    """Whether the log shows that a request wanted nothing of the cache (`cache_prompt: false`).

    Tokens were equal, and yet the prompt was begun at position 0 without a word on why: checkpoints
    were erased against 0, or (in May) no line says how deep memory reaches.
    """
    equal = max((bounds.low for _, _, bounds, _ in found), default=0)
    if equal == 0 or request.forced or request.refused_cut:
        return False
    if request.restored is not None or request.checked:
        return False
    if any(following == 0 for _, following in request.erased):
        return True
    silent = prints_depth and request.depth is None and request.first_cut == 0
    return silent and request.search.found_keep is None
