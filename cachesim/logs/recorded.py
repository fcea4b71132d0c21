"""What recorded requests tell: where each parts from what it continues, and what that cost."""

from collections.abc import Sequence
from typing import Any

from cachesim.logs.dump import Recorded
from cachesim.logs.parting import Parting, best_before, common_characters, parting_of
from cachesim.logs.telling import FORMAT


def told_of_dump(requests: Sequence[Recorded], *, source: str) -> dict[str, Any]:
    """Everything, as one mapping: what `--format json` prints."""
    entries = [entry_of(requests, number) for number in range(len(requests))]
    return {
        "format": FORMAT,
        "dump": {"sources": [source], "requests": len(requests)},
        "totals": {
            "requests": len(entries),
            "prompt_tokens": sum(each["prompt_tokens"] or 0 for each in entries),
            "cached": sum(each["cached"] or 0 for each in entries),
            "processed": sum(each["processed"] or 0 for each in entries),
            "after_partings": sum(each["tokens_after"] or 0 for each in entries),
        },
        "causes": causes_of(entries),
        "requests": entries,
    }


def entry_of(requests: Sequence[Recorded], number: int) -> dict[str, Any]:
    """One request: its numbers, and where it parts from the earlier one it shares most with."""
    request = requests[number]
    earlier = best_before(requests, number)
    parting: Parting | None = None
    equal = 0
    if earlier is not None:
        equal = common_characters(request, earlier)
        parting = parting_of(request, earlier)
        if parting is not None and equal == 0:
            parting = None  # it continues nothing
    after = None if parting is None else tokens_after(request, equal)
    return {
        "number": number,
        "line": request.line,
        "prompt_tokens": request.prompt_tokens,
        "cached": request.cached,
        "processed": request.processed,
        "slot": request.slot,
        "cancelled": request.cancelled,
        "continues": None if earlier is None or equal == 0 else earlier.number,
        "equal_characters": equal,
        "characters": request.characters,
        "tokens_after": after,
        "known": {
            "prompt_tokens": "unknown" if request.prompt_tokens is None else "printed",
            "cached": "unknown" if request.cached is None else "printed",
            "processed": "unknown" if request.processed is None else "printed",
            "tokens_after": "unknown" if after is None else "assumed",
        },
        "parting": None if parting is None else parting.as_dict(),
    }


def tokens_after(request: Recorded, equal: int) -> int | None:
    """About how many tokens come after a place: characters are taken to be alike."""
    if request.prompt_tokens is None or not request.characters:
        return None
    return round(request.prompt_tokens * (1 - equal / request.characters))


def causes_of(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Partings of one kind in one part of the prompt, those that cost most first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for each in entries:
        parting = each["parting"]
        if parting is None:
            continue
        group = groups.setdefault(
            (parting["kind"], parting["part"]),
            {
                "kind": parting["kind"],
                "part": parting["part"],
                "tokens": 0,
                "requests": [],
                "example": parting["sentence"],
                "advice": parting["advice"],
            },
        )
        group["tokens"] += each["tokens_after"] or 0
        group["requests"].append(each["number"])
    return sorted(groups.values(), key=lambda g: (-g["tokens"], -len(g["requests"]), g["kind"]))
