"""The states that a request leaves in the store of mlx-lm's server, or of one built on it.

    prompt   0 ...... system ............ prompt - 1 | reply     mlx-lm: ends of segments, the reply
             0 ...... 2048 ...... 4096 ........ | reply          on a grid: positions, the reply
             0 ........................ prompt | reply           in memory: prompts, the reply

Read off each server's rules alone, without its store, for a request that was served alone.
"""

from typing import Final

from cachesim.engines.mlx_lm import rules
from cachesim.engines.mlx_lm.vocabulary import RequestAdmitted
from cachesim.engines.seen import Seen
from cachesim.typed import there_is

CUT: Final = frozenset({"attention"})
"""Layers that can be cut at any token."""

KEPT: Final = frozenset({"attention", "window"})
"""Layers without a state."""


def lengths(own: rules.ServerRules, seen: Seen, suffix: int) -> list[int] | None:
    """Tokens of each state, in the order of their insertion; None where no rule is known here.

    `suffix` tokens at a prompt's end open the reasoning part, which `MllmRules` leave out.
    """
    reply = seen.reply
    whole = len(reply.prompt) + len(reply.generated)
    if own.grid is not None:
        return _on_grid(own.grid, seen, whole)
    if own.memory is not None:
        return _in_memory(own.memory, seen, whole, suffix)
    [admitted] = [event for event in seen.events if isinstance(event, RequestAdmitted)]
    if own.segments:
        return [*_ends(admitted), whole]
    store, at = admitted.checkpoint or (False, 0)
    return [*([len(reply.prompt) + at] if store else []), whole]


def _ends(admitted: RequestAdmitted) -> list[int]:
    """Ends of segments; the last one is stored before its last token, which is fed alone."""
    if admitted.path == "single":
        return []
    found, end, cached = [], 0, int(admitted.cached)
    for length, _ in admitted.segments:
        start, end = end, end + length
        last = end == admitted.prompt_tokens
        if end - last > max(cached, start if last else 0):
            found.append(end - last)
    return found


def _on_grid(grid: rules.GridRules, seen: Seen, whole: int) -> list[int] | None:
    prompt, cached = len(seen.reply.prompt), int(there_is(seen.reply.cached))
    if isinstance(grid, rules.DiskRules):
        return [whole]
    if isinstance(grid, rules.SessionRules):
        if not seen.layers & KEPT:  # no layer counts its tokens
            return None
        end = prompt - grid.before_end
        return [*([end] if grid.before_end and end > cached else []), whole]
    found = {*range(grid.interval, prompt, grid.interval)}
    found |= {prompt - grid.before_end} if grid.before_end else set()
    found |= {seen.reply.equal} if grid.keeps_the_end else set()
    places = sorted(p - grid.lookahead for p in found if cached < p - grid.lookahead < prompt)
    captured = places if grid.captures or seen.layers <= KEPT else []
    return captured + ([whole] if grid.keeps_the_end else [])


def _in_memory(memory: rules.MemoryRules, seen: Seen, whole: int, suffix: int) -> list[int] | None:
    prompt, cached = len(seen.reply.prompt), int(there_is(seen.reply.cached))
    cuts, counts = seen.layers <= CUT, bool(seen.layers & KEPT)
    if isinstance(memory, rules.WholeRules) or "window" in seen.layers or seen.chat:
        return None
    if isinstance(memory, rules.MllmRules):
        kept = prompt - suffix if cuts else prompt
        first = cuts or (memory.keeps_logits and cached == 0)
        return [kept] if first and kept >= memory.least else []
    if isinstance(memory, rules.RapidRules):
        if not (cuts or memory.uncut):
            return []
        early = memory.before_end and cached == 0 and prompt > 1
        return [prompt - early, whole]
    if cuts:
        return [whole] if whole >= memory.least else []
    late = cached > 0 and prompt - cached <= memory.refresh
    return [prompt + 1] if counts and prompt + 1 >= memory.least and not late else []
