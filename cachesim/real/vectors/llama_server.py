"""Replays workloads that were played on real llama-servers, request by request.

The tokens that the real server sampled are forced, so the counts do not hang on weights, and the
exact ring arithmetic serves.
"""

from collections.abc import Mapping
from typing import Any

from cachesim.engines import Engine, Request
from cachesim.errors import UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.real.vectors.mismatch import Mismatch
from cachesim.units import as_tokens


def mismatch(workload: Mapping[str, Any]) -> Mismatch | None:
    """The first request that differs; None when all are equal."""
    model = workload["model"]
    spec = preset(model["preset"], **{k: v for k, v in model.items() if k != "preset"})
    engine = Engine.create(
        workload["profile"], model=build(spec, "ring"), options=workload["options"]
    )
    for number, (step, expected) in enumerate(
        zip(workload["steps"], workload["expected"], strict=True)
    ):
        actual = ask(engine, step)
        if actual != dict(expected):
            return Mismatch(step=number, expected=expected, actual=actual)
    return None


def ask(engine: Engine, step: Mapping[str, Any]) -> dict[str, Any]:
    """One request, in the words of the files."""
    request = Request(
        prompt=as_tokens(step["prompt"]),
        predict=step["predict"],
        reply=as_tokens(step["reply"]) if "reply" in step else None,
        slot=step.get("slot", -1),
        cache_prompt=step.get("cache_prompt", True),
    )
    try:
        ticket = engine.submit(request)
        engine.run()
    except UpstreamAbort as abort:
        return {"error": str(abort)}
    engine.check_integrity()
    reply = engine.reply(ticket)
    if reply is None or reply.error is not None:
        return {"error": None if reply is None else reply.error}
    return {
        "cached": reply.cached,
        "processed": reply.processed,
        "generated": len(reply.generated),
        "slot": reply.slot,
        "truncated": reply.truncated,
    }
