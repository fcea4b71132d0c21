"""A recorded workload of a server: what it is played on and asks, and where a replay differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachesim.engines import Engine, Reply, Request
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import as_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first operation or group of requests that differs; `step` counts operations, requests."""

    step: int
    expected: Mapping[str, Any]
    actual: Mapping[str, Any]


def engine_of(workload: Mapping[str, Any]) -> Engine:
    """A fresh server; the replies are forced, so the exact ring arithmetic serves."""
    model = workload["model"]
    spec = preset(model["preset"], **{k: v for k, v in model.items() if k != "preset"})
    return Engine.create(
        workload["profile"], model=build(spec, "ring"), options=workload["options"]
    )


def request_of(step: Mapping[str, Any]) -> Request:
    """A step as a request, with the tokens that the real server sampled."""
    return Request(
        prompt=as_tokens(step["prompt"]),
        predict=step["predict"],
        reply=as_tokens(step["reply"]) if "reply" in step else None,
        slot=step.get("slot", -1),
        cache_prompt=step.get("cache_prompt", True),
    )


def told(reply: Reply) -> dict[str, Any]:
    """A reply in the words of the files."""
    return {
        "cached": reply.cached,
        "processed": reply.processed,
        "generated": len(reply.generated),
        "slot": reply.slot,
        "truncated": reply.truncated,
    }
