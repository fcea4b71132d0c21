"""Sentences of what a log's lines say of a request, in their order."""

from collections.abc import Iterator, Mapping
from typing import Final

from cachesim.engines.words import counted, of_one
from cachesim.why.infer.evidence import Lengths, counts_of
from cachesim.why.read.observed import Known, Observed
from cachesim.why.rebuild.from_log import ENTRY

CHOICES: Final[Mapping[str, str]] = {
    "age": "Slot {slot} was chosen because it was used least recently.",
    "id": "Slot {slot} was requested by number.",
}
SHOWN: Final = 6
"""Most checkpoints that are listed singly."""

FURTHER: Final = (
    "A further completion of request {parent} (`n` > 1): it took over that request's state, and "
    "prefilled nothing of its own."
)

FORCED: Final = "No checkpoint qualified: forcing full prompt re-processing."

NEARLY: Final = 0.95
"""Share from which a part counts as all."""


def log_sentences(
    request: Observed, common: Known, lengths: Lengths, after: int | None, holder: str = ""
) -> list[str]:
    """Sentences of the log's lines in order; `after`: the request whose slot file was restored.

    `holder` is what has the common prefix.
    """
    return [
        *_choice(request),
        *_filled(after),
        *_memory(request),
        *_unprinted_load(request, common, lengths, holder),
        *_divergence(request, common, lengths, holder),
        *request.notes,
    ]


def _filled(after: int | None) -> Iterator[str]:
    if after is not None:
        yield (
            f"Its slot held as much as a slot did after request {after}, and not what it held "
            f"last: assumed to be restored from a slot file."
        )


def _choice(o: Observed) -> Iterator[str]:
    if o.sim is not None:
        yield f"Slot {o.slot} was chosen by similarity: {o.sim} of the prompt, {o.keep} of its own."
    elif o.choice in CHOICES:
        yield CHOICES[o.choice].format(slot=o.slot)
    if o.search.found_keep is not None:
        yield (
            f"A prompt-cache entry was loaded: {o.search.found_keep} of it is kept, "
            f"{o.search.found_sim} of the prompt."
        )


def _memory(o: Observed) -> Iterator[str]:
    if o.depth is not None:
        yield of_one(f"{o.depth[0]:,} tokens match the {_whose(o)} {o.depth[1]:,}.")
    if o.checked:
        tried = ", ".join(f"[{low}..{high}]" for low, high, _ in o.checked[:SHOWN])
        more = f" and {len(o.checked) - SHOWN} more" if len(o.checked) > SHOWN else ""
        yield f"Checkpoints tried against position {o.checked[-1][2]:,}: {tried}{more}."
    if o.restored is not None:
        yield f"The checkpoint of {o.restored_at:,} tokens was restored."
    if o.forced:
        yield FORCED
    if o.erased:
        sizes = sorted({size for size, _ in o.erased})
        to = f" to {sizes[-1]:,}" if len(sizes) > 1 else ""
        yield f"Erased: {counted(len(sizes), 'checkpoint')}, of {sizes[0]:,}{to} tokens."
    if o.refused_cut:
        yield "Memory could not be cut, and was cleared."
    if o.moved:
        tokens = sum(size for _, _, size in o.moved)
        yield f"{tokens:,} tokens were moved into place (`--cache-reuse`)."
    for left, discarded in o.shifts:
        yield f"The context was shifted: {discarded:,} of {left:,} tokens were discarded."


def _whose(o: Observed) -> str:
    if o.restores_blocks:
        return "stored sequence's"
    return "slot's" if o.shared is None else "instance's"


def _unprinted_load(o: Observed, common: Known, lengths: Lengths, holder: str) -> Iterator[str]:
    """A prompt-cache entry that was loaded, at a level at which no line says so."""
    cached, shared = lengths.cached.value, counts_of(o.sim, lengths.prompt.value)
    if o.search.found_keep is not None or cached is None or shared is None:
        return
    if cached > shared.high and (holder.startswith(ENTRY) or (common.value or 0) < cached):
        yield (
            f"{cached:,} tokens were reused, and its slot shared {shared.high:,} at most: an entry "
            "of the prompt cache was loaded, of which this log level prints no line."
        )


def _divergence(o: Observed, common: Known, lengths: Lengths, holder: str) -> Iterator[str]:
    at, whole = common.value, lengths.prompt.value
    held, is_entry = held_by(o, common, holder), holder.startswith(ENTRY)
    if not is_entry and lengths.cached.value is not None and lengths.cached.value > (at or 0):
        return  # what was reused came from elsewhere
    if at is None or held is None or at >= held or (whole is not None and at >= whole):
        return
    about = f"{held:,}" if isinstance(held, int) else f"{held:,.0f} or so"
    whose = "loaded entry's" if is_entry else _whose(o)
    lines = f"The prompt and the {whose} {about} tokens diverge at token {at:,}"
    if at == o.shifted_before:
        yield f"{lines}: a context shift discarded tokens there during the request before."
    elif at < held / 10:
        yield (
            f"{lines}: another conversation, or one whose beginning changed, such as a date or the "
            f"order of tools."
        )
    else:
        yield f"{lines}: the client changed its history there, or a template did."


def held_by(o: Observed, common: Known, holder: str = "") -> float | None:
    """Tokens of what the prompt was compared with; None of an entry that no line shows."""
    if o.depth is not None:
        return o.depth[1]
    if holder.startswith(ENTRY) and o.search.found_keep is None:
        return None
    if o.search.saved is not None and o.search.found_keep is None:
        return o.search.saved
    kept = o.keep if o.search.found_keep is None else o.search.found_keep  # of what was loaded
    try:
        keep = float(kept) if kept is not None else 0.0
    except ValueError:
        return None
    return common.value / keep if common.value is not None and keep > 0 else None
