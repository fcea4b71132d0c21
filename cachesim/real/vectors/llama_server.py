"""Replays workloads that were played on real llama-servers, request by request."""

from collections.abc import Mapping
from typing import Any

from cachesim.engines import Engine
from cachesim.errors import UpstreamAbort
from cachesim.real.vectors.workload import Mismatch, engine_of, request_of, told


def mismatch(workload: Mapping[str, Any]) -> Mismatch | None:
    """The first request that differs; None when all are equal."""
    engine = engine_of(workload)
    for number, (step, expected) in enumerate(
        zip(workload["steps"], workload["expected"], strict=True)
    ):
        actual = ask(engine, step)
        if actual != dict(expected):
            return Mismatch(step=number, expected=expected, actual=actual)
    return None


def ask(engine: Engine, step: Mapping[str, Any]) -> dict[str, Any]:
    """One request, in the words of the files."""
    try:
        ticket = engine.submit(request_of(step))
        engine.run()
    except UpstreamAbort as abort:
        return {"error": str(abort)}
    engine.check_integrity()
    reply = engine.reply(ticket)
    if reply is None or reply.error is not None:
        return {"error": None if reply is None else reply.error}
    return told(reply)
