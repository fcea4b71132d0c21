"""Replays workloads that were played on ik_llama.cpp's own server.

That server answers a request before it releases the slot. A client that sends the next request at
once sometimes arrives in between, and then finds the slot still taken: with two slots another one
is chosen. The files do not say when a request arrived, so a replay looks for an order of arrival
under which every request agrees; with one slot there is nothing to choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cachesim.engines import Engine
from cachesim.real.vectors.workload import Mismatch, engine_of, request_of, told

PATIENCE: Final = 400
"""Orders of arrival that are tried for one workload."""

Arrivals = tuple[bool, ...]
"""Per request: does the next one arrive before this one's slot is released?"""


def mismatch(workload: Mapping[str, Any]) -> Mismatch | None:
    """None when some order of arrival explains every request of a workload."""
    first = play(workload, ())
    if first is None or workload["options"].get("parallel", 1) == 1:
        return first
    furthest, tried = first, 0
    pending = list(_later(first.step, ()))
    while pending and tried < PATIENCE:
        arrivals = pending.pop()
        tried += 1
        found = play(workload, arrivals)
        if found is None:
            return None
        furthest = max(furthest, found, key=lambda each: each.step)
        pending.extend(_later(found.step, arrivals))
    return furthest


def _later(failed: int, arrivals: Arrivals) -> Iterator[Arrivals]:
    """Let one more request before the failed one be followed early; the nearest one is last."""
    for early in range(len(arrivals), failed):
        yield arrivals + (False,) * (early - len(arrivals)) + (True,)


def play(workload: Mapping[str, Any], arrivals: Arrivals) -> Mismatch | None:
    """Play a workload with given arrivals up to the first request that differs."""
    engine = engine_of(workload)
    steps: Sequence[Mapping[str, Any]] = workload["steps"]
    for number, (step, expected) in enumerate(zip(steps, workload["expected"], strict=True)):
        actual = _ask(engine, step, early=number < len(arrivals) and arrivals[number])
        shown = {key: actual[key] for key in expected if key in actual}
        if shown != dict(expected):
            return Mismatch(step=number, expected=expected, actual=actual)
    return None


def _ask(engine: Engine, step: Mapping[str, Any], *, early: bool) -> dict[str, Any]:
    """One request; `early` leaves its slot unreleased for the next one to find."""
    ticket = engine.submit(request_of(step))
    while (reply := engine.reply(ticket)) is None:
        engine.step()
    if not early:
        engine.run()
    return told(reply) | {"error": reply.error}
