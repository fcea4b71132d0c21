"""Replays workloads that were run on real servers of llama.cpp and ik_llama.cpp.

ik_llama.cpp answers a request before it releases the slot. A client that sends the next request at
once sometimes arrives in between, and then finds the slot still taken: with two slots another one
is chosen. The files do not say when a request arrived, so a replay looks for an order of arrival
under which every request agrees; with one slot there is nothing to choose.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachesim.engines import Engine, Request
from cachesim.errors import UpstreamAbort
from cachesim.lab.real.playing import Difference
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.play.loop import Loop
from cachesim.units import as_tokens

PATIENCE: Final = 400
"""Orders of arrival that are tried for one workload."""

Arrivals = tuple[bool, ...]
"""Per request: does the next one arrive before this one's slot is released?"""


def mismatch(workload: Mapping[str, Any]) -> Difference | None:
    """None when some order of arrival explains every request of a workload."""
    first = play(workload)
    ends_late = str(workload["profile"]).startswith("ik_llama.cpp")
    if first is None or not ends_late or workload["options"].get("parallel", 1) == 1:
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


def play(workload: Mapping[str, Any], arrivals: Arrivals = ()) -> Difference | None:
    """Run a workload with given arrivals up to the first request that differs.

    The replies are forced, so the exact ring arithmetic serves.
    """
    model = workload["model"]
    spec = preset(model["preset"], **{k: v for k, v in model.items() if k != "preset"})
    network, options = build(spec, "ring"), workload["options"]
    engine = Engine.create(workload["profile"], model=network, options=options)
    pairs = zip(workload["steps"], workload["expected"], strict=True)
    for number, (step, expected) in enumerate(pairs):
        actual = ask(engine, step, early=number < len(arrivals) and arrivals[number])
        shown = {key: actual.get(key) for key in expected}
        if shown != dict(expected):
            return Difference(step=number, real=dict(expected), simulated=shown)
    return None


def ask(engine: Engine, step: Mapping[str, Any], *, early: bool = False) -> dict[str, Any]:
    """A request; `early` leaves its slot unreleased for the next request."""
    request = Request(
        prompt=as_tokens(step["prompt"]),
        predict=step["predict"],
        reply=as_tokens(step["reply"]) if "reply" in step else None,
        slot=step.get("slot", -1),
        cache_prompt=step.get("cache_prompt", True),
    )
    try:
        ticket = engine.submit(request)
        loop = Loop(engine)
        loop.drain(until=lambda: engine.reply(ticket) is not None)
        reply = engine.reply(ticket)
        if not early:
            loop.drain()
            engine.check_integrity()
    except UpstreamAbort as abort:
        return {"error": str(abort)}
    if reply is None:
        return {"error": "no answer"}
    return {
        "cached": reply.cached,
        "processed": reply.processed,
        "generated": len(reply.generated),
        "slot": reply.slot,
        "truncated": reply.truncated,
        "error": reply.error,
    }
