"""What the log itself says of a request: in sentences, and as causes where no replay can give them.

An excerpt has no history: what the slot's checkpoints were is known from the lines that tried them,
not from a replay. Then the cause is read off those lines.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachesim.engines.words import of_one
from cachesim.logs.evidence import Lengths
from cachesim.logs.known import Known
from cachesim.logs.observed import Observed

ROADS: Final[Mapping[str, str]] = {
    "age": "Slot {slot} was chosen because it was used least recently.",
    "id": "Slot {slot} was requested by number.",
}
SHOWN: Final = 6
"""Checkpoints that are listed one by one."""

NEARLY: Final = 0.95
"""A part that is as good as all."""


def says_of(
    request: Observed, common: Known, lengths: Lengths, after: int | None = None
) -> list[str]:
    """What the log says, in the order of its lines; `after`: whose slot it found (a slot file)."""
    return [
        *_choice(request),
        *_filled(after),
        *_memory(request),
        *_parting(request, common, lengths),
    ]


def _filled(after: int | None) -> Iterator[str]:
    if after is not None:
        yield (
            f"Its slot held as much as a slot did after request {after}, and not what it held "
            f"last: assumed to be restored from a slot file."
        )


def _choice(o: Observed) -> Iterator[str]:
    if o.started_before:
        yield "Its launch is not in the log: what its slot held is unknown."
    if o.sim is not None:
        yield f"Slot {o.slot} was chosen by similarity: {o.sim} of the prompt, {o.keep} of its own."
    elif o.road in ROADS:
        yield ROADS[o.road].format(slot=o.slot)
    if o.search.found_keep is not None:
        yield (
            f"A parked conversation was loaded: {o.search.found_keep} of it is kept, "
            f"{o.search.found_sim} of the prompt."
        )


def _memory(o: Observed) -> Iterator[str]:
    if o.depth is not None:
        yield of_one(f"{o.depth[0]:,} tokens match the slot's {o.depth[1]:,}.")
    if o.checked:
        yield f"Checkpoints tried against position {o.checked[-1][2]:,}: {_tried(o)}."
    if o.restored is not None:
        yield f"The checkpoint of {o.restored_at:,} tokens was restored."
    if o.forced:
        yield "No checkpoint qualified: forcing full prompt re-processing."
    if o.refused_cut:
        yield "Memory could not be cut, and was cleared."
    if o.moved:
        tokens = sum(size for _, _, size in o.moved)
        yield f"{tokens:,} tokens were moved into place (`--cache-reuse`)."
    for left, discarded in o.shifts:
        yield f"The context was shifted: {discarded:,} of {left:,} tokens were discarded."


def _tried(o: Observed) -> str:
    tried = ", ".join(f"[{low}..{high}]" for low, high, _ in o.checked[:SHOWN])
    more = len(o.checked) - SHOWN
    return f"{tried} and {more} more" if more > 0 else tried


def _parting(o: Observed, common: Known, lengths: Lengths) -> Iterator[str]:
    at, whole = common.value, lengths.prompt.value
    held = held_by(o, common)
    if at is None or held is None or at >= held or (whole is not None and at >= whole):
        return
    lines = f"The prompt and the slot's {_roughly(held)} tokens diverge at token {at:,}"
    if at < held / 10:
        yield (
            f"{lines}: another conversation, or one whose beginning changed, such as a date or the "
            f"order of tools."
        )
    else:
        yield f"{lines}: the client changed its history there, or a template did."


def _roughly(held: float) -> str:
    return f"{held:,}" if isinstance(held, int) else f"{held:,.0f} or so"


def held_by(o: Observed, common: Known) -> float | None:
    """How many tokens the slot held when the prompt came."""
    if o.depth is not None:
        return o.depth[1]
    if o.search.saved is not None and o.search.found_keep is None:
        return o.search.saved
    try:
        keep = float(o.keep) if o.keep is not None else 0.0
    except ValueError:
        return None
    return common.value / keep if common.value is not None and keep > 0 else None


def losses_of(o: Observed, common: Known, lengths: Lengths) -> list[dict[str, Any]]:
    """The causes that the log's own lines give, from the most that was equal down to the reused."""
    cached, equal = lengths.cached.value, common.value
    if cached is None:
        return []
    if equal is None:
        equal = _nearly_all(o, lengths)
        told = equal is not None and cached < equal
        return [_loss("state-missing", equal or 0, cached, _no_state(equal or 0))] if told else []
    if cached >= equal:
        return []
    rule, words = _rule_of(o, equal, cached)
    if rule == "unknown" and _nearly_all(o, lengths) is not None:
        rule, words = "state-missing", _no_state(equal)
    return [_loss(rule, equal, cached, words)]


def _no_state(equal: int) -> str:
    return (
        f"About {equal:,} tokens match, and all were processed: there was no usable state. A slot "
        "that was restored from a file, or a conversation that came back, had no checkpoints"
    )


def _rule_of(o: Observed, equal: int, cached: int) -> tuple[str, str]:
    if o.refused_cut:
        return "seq-rm-refused", "Memory cannot be cut there, and was cleared"
    if o.forced or (o.checked and o.restored is None):
        return "full-reprocessing", _none_qualifies(o, equal)
    if o.restored is not None:
        words = f"Memory could not go back to token {equal:,}; the checkpoint of {o.restored_at:,}"
        return "memory-depth", f"{words} tokens was the last one before it"
    if cached == equal - 1:
        return "last-token", "The last token is processed for its logits"
    return "unknown", "The log has no line on why fewer were reused"


def _none_qualifies(o: Observed, equal: int) -> str:
    if not o.prints_tries:
        return f"Memory could not be cut back to token {equal:,}, and no checkpoint helped"
    if not o.checked:
        return f"No checkpoint is at or before token {equal:,}: the slot had none"
    lowest = min(low for low, _, _ in o.checked)
    return (
        f"No checkpoint is at or before token {equal:,}: the nearest of {len(o.checked)} that "
        f"were tried begins at position {lowest:,}"
    )


def _nearly_all(o: Observed, lengths: Lengths) -> int | None:
    """Tokens in common where the ratios say that it is as good as everything."""
    whole = lengths.prompt.value
    try:
        sim = float(o.sim) if o.sim is not None else 0.0
    except ValueError:
        return None
    if whole is None or sim < NEARLY or (lengths.cached.value or 0) > whole * (1 - NEARLY):
        return None
    return round(sim * whole)


def _loss(rule: str, before: int, after: int, sentence: str) -> dict[str, Any]:
    return {
        "rule": rule,
        "from": before,
        "to": after,
        "detail": {},
        "sentence": sentence,
        "by": "the log",
    }
