"""Requests as runs of named texts: what a log or a recorded session tells of its prompts.

    {"timestamp": 0,  "prompt": [[0, 0, 120]], "reply": [[1, 0, 30]]}
    {"timestamp": 90, "prompt": [[0, 0, 120], [1, 0, 29], [2, 0, 15]], "reply": [[3, 0, 8]]}

A run is a text's number, its first token and one past its last. Two tokens are equal where they are
the same place of the same text. So replies are known here, and what is asked for again may be one.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cachesim.engines.rope import LONGEST, Run
from cachesim.traces.asked import Asked, TraceError

MOST_TEXTS: Final = 1 << 36
MOST_RUNS: Final = 1 << 20


class Chains:
    """Numbers runs by all that is before them: equal numbers are equal prefixes."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int, int], int] = {}

    def of(self, runs: Iterable[Run]) -> tuple[tuple[int, int], ...]:
        """Each run as a block, and how many tokens it has."""
        found, parent, before = [], -1, 0
        for text, first, last in runs:
            key = (parent, before, text, first)
            parent = self._numbers.setdefault(key, len(self._numbers))
            before = last - first
            found.append((parent, before))
        return tuple(found)


def asked_of(
    told: dict[str, Any], time: float, chains: Chains, place: str, *, seconds: bool = False
) -> Asked:
    """A request from its line."""
    prompt = _runs(told.get("prompt"), f"{place}: prompt")
    reply = _runs(told.get("reply", []), f"{place}: reply")
    if not prompt:
        msg = f"{place}: prompt has no tokens; write runs as [[0, 0, 120]]"
        raise TraceError(msg)
    blocks = chains.of(prompt)
    return Asked(
        time=time,
        length=sum(size for _, size in blocks),
        output=sum(last - first for _, first, last in reply),
        blocks=tuple(block for block, _ in blocks),
        sizes=tuple(size for _, size in blocks),
        runs=prompt,
        reply=reply,
        kept=chains.of(_joined([*prompt, *reply])),
        silent="reply" not in told,
        seconds=seconds,
    )


def line_of(time: float, prompt: Sequence[Run], reply: Sequence[Run]) -> str:
    """A request as a line of such a file."""
    told = {"timestamp": time, "prompt": prompt, "reply": reply}
    return json.dumps(told, separators=(",", ":")) + "\n"


def _runs(told: object, place: str) -> tuple[Run, ...]:
    if not isinstance(told, list) or len(told) > MOST_RUNS:
        msg = f"{place} is no list of runs; write them as [[text, first, past the last], ...]"
        raise TraceError(msg)
    return _joined(_run(each, place) for each in told)


def _run(told: object, place: str) -> Run:
    match told:
        case [int(text), int(first), int(last)] if not any(isinstance(n, bool) for n in told):
            if 0 <= text < MOST_TEXTS and 0 <= first < last <= LONGEST:
                return text, first, last
    msg = f"{place} has {str(told)[:60]}; write a text's number, its first token, one past its last"
    raise TraceError(msg)


def _joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    found: list[Run] = []
    for text, first, last in runs:
        if found and found[-1][0] == text and found[-1][2] == first:
            found[-1] = (text, found[-1][1], last)
        else:
            found.append((text, first, last))
    return tuple(found)
