"""What a server held at one moment, as plain data: every token with the step it comes from."""

from collections.abc import Iterable, Mapping
from typing import Any

from cachesim.engines.held import (
    CellsHeld,
    CheckpointHeld,
    EntryHeld,
    Held,
    RowHeld,
    Runs,
    SlotHeld,
)
from cachesim.scenario.provenance import Provenance, size_of


def states_of(moments: Iterable[tuple[Held, int]], origins: Provenance) -> list[dict[str, Any]]:
    """Moments in order, each with how many tokens had been born by then."""
    made: dict[CheckpointHeld, int] = {}
    return [_state(held, until, made, origins) for held, until in moments]


def _state(
    held: Held, until: int, made: dict[CheckpointHeld, int], origins: Provenance
) -> dict[str, Any]:
    """One moment; a checkpoint is as old as the first one that it was seen in."""
    for slot in held.slots:
        for checkpoint in slot.checkpoints:
            made.setdefault(checkpoint, until)
    companion = None
    if held.companion_cells or held.companion_rows:
        companion = _memory(held.companion_cells, held.companion_rows, until, origins)
    return {
        "slots": [_slot(each, made, origins) for each in held.slots],
        "memory": _memory(held.cells, held.rows, until, origins),
        "companion": companion,
        "prompt_cache": [_entry(each, origins) for each in held.entries],
    }


def _memory(
    cells: tuple[CellsHeld, ...], rows: tuple[RowHeld, ...], until: int, origins: Provenance
) -> dict[str, Any]:
    return {
        "cells": [
            {
                "part": each.part,
                "stream": each.stream,
                "size": each.size,
                "window": each.window,
                "runs": _runs(each.runs, origins),
            }
            for each in cells
        ],
        "rows": [
            {
                "row": each.row,
                "position": each.position,
                "slots": owners(each.owners),
                "tokens": origins.folded(each.node, until),
            }
            for each in rows
        ],
    }


def _slot(
    slot: SlotHeld, made: Mapping[CheckpointHeld, int], origins: Provenance
) -> dict[str, Any]:
    return {
        "id": slot.id,
        "state": slot.state,
        "tokens": origins.spelled(slot.tokens),
        "checkpoints": [_checkpoint(each, made[each], origins) for each in slot.checkpoints],
    }


def _checkpoint(checkpoint: CheckpointHeld, until: int, origins: Provenance) -> dict[str, Any]:
    return {
        "pos_min": checkpoint.pos_min,
        "pos_max": checkpoint.pos_max,
        "n_tokens": checkpoint.n_tokens,
        "row": origins.folded(checkpoint.node, until),
        "cells": _runs(checkpoint.runs, origins),
    }


def _entry(entry: EntryHeld, origins: Provenance) -> dict[str, Any]:
    return {
        "n_tokens": len(entry.tokens),
        "tokens": origins.spelled(entry.tokens),
        "checkpoints": entry.checkpoints,
        "bytes": entry.size,
        "kind": entry.kind,
        "holds": [
            {"place": place, "tokens": origins.spelled(tokens)} for place, tokens in entry.held
        ],
    }


def _runs(runs: Runs, origins: Provenance) -> list[dict[str, Any]]:
    """Runs of cells, joined where one token follows the other in one step's text."""
    found: list[dict[str, Any]] = []
    for run in runs:
        start = 0
        for held in origins.born(run.birth, run.count) or [{"count": run.count}]:
            entry = {
                "cell": run.cell + start,
                "position": run.position + start,
                "count": size_of(held),
                "slots": owners(run.owners),
                "holds": held,
            }
            if not (found and _joins(found[-1], entry)):
                found.append(entry)
            start += size_of(held)
    return found


def _joins(last: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether a run goes on where the last one ended; then it is made longer."""
    ours, theirs = last["holds"], entry["holds"]
    follows = (
        last["slots"] == entry["slots"]
        and last["cell"] + last["count"] == entry["cell"]
        and last["position"] + last["count"] == entry["position"]
        and ours.get("step") == theirs.get("step") is not None
        and ours["at"] + ours["count"] == theirs["at"]
    )
    if follows:
        last["count"] += entry["count"]
        ours["count"] += theirs["count"]
    return bool(follows)


def owners(bits: int) -> list[int]:
    """The sequences of a bit set, in increasing order."""
    return [seq for seq in range(bits.bit_length()) if bits >> seq & 1]
