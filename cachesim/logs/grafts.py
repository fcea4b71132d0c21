"""Where two prompts share less than a log says, one of them must have begun otherwise.

held      [ text 3 ............ )
prompt    [ text 5 ... )( new   )     the log says that 40 tokens are common

Then the first 40 of text 5 are those of text 3: whoever brought text 5 began like text 3.
"""

from collections.abc import Iterator, Sequence

from cachesim.engines.rope import Rope
from cachesim.logs.evidence import counts_of
from cachesim.logs.observed import Observed
from cachesim.logs.replay import FRESH, Replay, owner_of, place_of


def note_grafts(
    replay: Replay,
    request: Observed,
    prompt: Rope,
    slots: Sequence[Rope],
    parked: Sequence[Rope],
) -> None:
    """Note who must begin otherwise the next time that the log is gone through."""
    for rope, common in _said_to_share(request, slots, parked):
        at = prompt.common(rope)
        if at >= min(common, len(rope), len(prompt)):
            continue
        one, other = place_of(prompt, at)[0], place_of(rope, at)[0]
        later, earlier = (one, rope) if one > other else (other, prompt)
        owner, use = owner_of(later)
        if use == FRESH and 0 <= owner <= request.number:
            known = replay.grafts.get(owner)
            if known is None or len(known) < common:
                replay.grafts[owner] = earlier[:common]


def _said_to_share(
    request: Observed, slots: Sequence[Rope], parked: Sequence[Rope]
) -> Iterator[tuple[Rope, int]]:
    for number, common in request.slot_common.items():
        if number < len(slots):
            yield slots[number], common
    held = slots[request.slot] if request.slot < len(slots) else Rope()
    sim = request.sim if request.sim is not None else request.search.sim
    bounds = counts_of(sim, request.n_tokens)
    if bounds is not None and len(held):
        yield held, bounds.low
    entries = iter(parked)
    for each in request.search.compared:
        for entry in entries:
            if len(entry) == each.n_tokens:
                yield entry, each.lcp
                break
