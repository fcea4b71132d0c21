"""The counts of a request whose busy slot another one named, and what was loaded over it.

At the default level a server prints that the slot was named, and not what it loaded there. The rest
of the prompt is read behind that conversation, so that the log's counts are of both:

prompt      [ cached .. )[ read ...... )                    p tokens, until the slot was named
loaded      [ .............................. )              L tokens
prompt                                       [ read ... )   from there to its end, P
prefilled   p - cached + P - L, so P - prefilled is not what was cached
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from cachesim.why.infer.evidence import Lengths
from cachesim.why.infer.settings import Settings, prompt_length
from cachesim.why.read.observed import Known, Observed, computed
from cachesim.why.replay.player import Player
from cachesim.why.replay.replayed import Rebuilt

BEFORE_END: Final = 4
"""Tokens between the last checkpoint of a prompt and its end: a turn ends there."""


def counts_alone(
    rebuilt: Rebuilt,
    earlier: Sequence[Rebuilt],
    player: Player,
    settings: Settings,
    is_met: Callable[[Lengths], bool],
) -> Lengths | None:
    """The request's own counts, if its slot was loaded with another conversation; None if not, or
    if a prompt explains the log without it (`is_met` by the replay).
    """
    request, own = rebuilt.observed, rebuilt.lengths
    whole = prompt_length(None, request.held_after, request.generated)
    if whole is None or request.processed is None:
        return None
    is_possible = request.processed <= whole
    ends = _ends(request, earlier, player)
    if is_possible and is_met(own):
        if own.cached.value in ends:
            return None
        ends = ends[:1]  # it may part anywhere, but to go on from its slot is likelier
    alone = replace(own, prompt=computed(whole))
    for cached in _explaining(request, whole, ends, player, settings):
        found = replace(alone, cached=Known(cached, "assumed"))
        if is_met(found):
            return found
    return None if is_possible else alone  # more was prefilled than it has: it began again


def _ends(request: Observed, earlier: Sequence[Rebuilt], player: Player) -> list[int]:
    """Where reuse ends most likely: with the slot, a text of it, a saved state, or as before."""
    slots, _ = player.held()
    ends = []
    if request.slot < len(slots):
        held = slots[request.slot]
        ends = [len(held), *accumulate(last - first for _, first, last in held.runs)]
    ends += sorted(player.saved_ends(), reverse=True)
    ends += [before.lengths.cached.value or 0 for before in reversed(earlier)]
    return [*dict.fromkeys([*ends, 0])]


def _explaining(
    request: Observed, whole: int, ends: Sequence[int], player: Player, settings: Settings
) -> Iterator[int]:
    """The ends of reuse with which some conversation that is held explains what was prefilled."""
    slots, entries = player.held()
    held = {len(rope) for rope in (*slots, *entries)}
    batch = int(settings.values.get("batch_size", 2048))
    ubatch = int(settings.values.get("ubatch_size", 512))
    for cached in ends:
        turns = {*range(cached + batch, whole, batch), whole - BEFORE_END}
        turns.add(whole - BEFORE_END - ubatch)
        loaded = {at - cached + whole - (request.processed or 0) for at in turns if at > cached}
        if any(0 < tokens < whole and tokens in held for tokens in loaded):
            yield cached
