"""The states that a request leaves in the store of mlx-lm's server.

    prompt   0 ...... system ............ prompt - 1 | reply     ends of segments, the reply

Read off the rules alone, without its store, for a request that was served alone.
"""

from typing import Final

from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.mlx_lm.vocabulary import RequestAdmitted
from cachesim.engines.seen import Seen

CUT: Final = frozenset({"attention"})
"""Layers that can be cut at any token."""

KEPT: Final = frozenset({"attention", "window"})
"""Layers without a state."""


def lengths(own: ServerRules, seen: Seen) -> list[int]:
    """Tokens of each state, in the order of their insertion."""
    reply = seen.reply
    whole = len(reply.prompt) + len(reply.generated)
    [admitted] = [event for event in seen.events if isinstance(event, RequestAdmitted)]
    if own.segments:
        return [*_ends(admitted), whole]
    store, at = admitted.checkpoint or (False, 0)
    return [*([len(reply.prompt) + at] if store else []), whole]


def _ends(admitted: RequestAdmitted) -> list[int]:
    """Ends of segments; the last one is stored before its last token, which is fed alone."""
    if admitted.path == "single":
        return []
    ends, end, cached = [], 0, int(admitted.cached)
    for length, _ in admitted.segments:
        start, end = end, end + length
        last = end == admitted.prompt_tokens
        if end - last > max(cached, start if last else 0):
            ends.append(end - last)
    return ends
