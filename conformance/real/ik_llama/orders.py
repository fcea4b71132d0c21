"""Replays workloads that were run on real servers of llama.cpp and ik_llama.cpp.

ik_llama.cpp answers a request before it releases the slot. A client that sends the next request at
once sometimes arrives in between, and then finds the slot still taken: with two slots another one
is chosen. Requests that are sent together arrive in any order, before or after the first of them is
in a batch. The files do not say when a request arrived, so a replay looks for an order of arrival
under which every request agrees; with one slot, and one request at a time, there is nothing to
choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final

from cachesim.engines import Engine, Request
from cachesim.engines.base import Ticket
from cachesim.errors import UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.play.loop import Loop
from cachesim.play.session import SlotActions, SlotFiles
from cachesim.prove.playing import Difference
from cachesim.units import Tokens, as_tokens
from conformance.real.agreement import Race

PATIENCE: Final = 30
"""Orders of arrival that are tried for one workload; no recorded one took more than seven."""

UNSENT: Final = 264
"""A token in place of those that a server kept for itself; the recorded models never sample it."""


ENDED: Final = "ended"
"""The error of a request after which the process was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How the requests of one group arrive."""

    order: tuple[int, ...]
    apart: bool = False  # the server takes a turn between two of them
    left_early: bool = False  # the next group arrives before the last slot is released

    @property
    def is_as_written(self) -> bool:
        """True for the usual one: all at once, in the order of the file, answered in full."""
        return self.order == tuple(range(len(self.order))) and not (self.apart or self.left_early)

    def __str__(self) -> str:
        """The order in words, for a group of requests."""
        parts = []
        if self.order != tuple(range(len(self.order))):
            parts.append(f"they arrive in the order {', '.join(str(n + 1) for n in self.order)}")
        if self.apart:
            parts.append("the server takes a turn between them")
        if self.left_early:
            parts.append("the next request arrives before their slot is released")
        return "; ".join(parts)


Arrivals = tuple[Arrival, ...]
"""By group; groups that are not named arrive as written."""


def mismatch(workload: Mapping[str, Any]) -> Difference | None:
    """None when some order of arrival explains every request of a workload."""
    return explained(workload)[0]


def judged(workload: Mapping[str, Any]) -> Difference | Race | None:
    """The difference of a workload, or the order of arrival without which it would differ."""
    difference, arrivals = explained(workload)
    unusual = [(n, arrival) for n, arrival in enumerate(arrivals) if not arrival.is_as_written]
    if difference is not None or not unusual:
        return difference
    return Race(", ".join(f"group {n}: {arrival}" for n, arrival in unusual))


def explained(workload: Mapping[str, Any]) -> tuple[Difference | None, Arrivals]:
    """The order of arrival that explains a workload; else the furthest difference."""
    groups = groups_of(workload["steps"])
    at, furthest = play(workload)
    ends_late = str(workload["profile"]).startswith("ik_llama.cpp")
    one_way = workload["options"].get("parallel", 1) == 1 and all(len(g) == 1 for g in groups)
    if furthest is None or not ends_late or one_way:
        return furthest, ()
    tried, pending = 0, list(_further(groups, at, ()))
    while pending and tried < PATIENCE:
        arrivals = pending.pop()
        tried += 1
        at, difference = play(workload, arrivals)
        if difference is None:
            return None, arrivals
        furthest = max(furthest, difference, key=lambda each: each.step)
        pending.extend(_further(groups, at, arrivals))
    return furthest, ()


def groups_of(steps: Sequence[Any]) -> list[list[Mapping[str, Any]]]:
    """The requests that were sent together, in a list each."""
    return [list(step) if isinstance(step, list) else [step] for step in steps]


def _further(
    groups: list[list[Mapping[str, Any]]], failed: int, arrivals: Arrivals
) -> Iterator[Arrivals]:
    """Let one more group up to the failed one arrive otherwise; the likeliest is last."""
    for number in range(len(arrivals), failed + 1):
        usual = tuple(_ways(group)[0] for group in groups[len(arrivals) : number])
        for way in reversed(_ways(groups[number])[1:]):
            if number < failed or len(way.order) > 1:
                yield (*arrivals, *usual, way)


def _ways(group: list[Mapping[str, Any]]) -> list[Arrival]:
    """The ways in which a group may arrive, the usual one first."""
    return [
        Arrival(order=order, apart=apart, left_early=early)
        for early in (False, True)
        for apart in ((False, True) if len(group) > 1 else (False,))
        for order in permutations(range(len(group)))
    ]


def play(workload: Mapping[str, Any], arrivals: Arrivals = ()) -> tuple[int, Difference | None]:
    """Run a workload with given arrivals up to the first request that differs, and its group.

    The replies are forced, so the exact ring arithmetic serves.
    """
    model = workload["model"]
    spec = preset(model["preset"], **{k: v for k, v in model.items() if k != "preset"})
    network, options = build(spec, "ring"), workload["options"]
    engine = Engine.create(workload["profile"], model=network, options=options, store=SlotFiles())
    pairs = zip(groups_of(workload["steps"]), groups_of(workload["expected"]), strict=True)
    done = 0
    for number, (group, expected) in enumerate(pairs):
        arrival = arrivals[number] if number < len(arrivals) else _ways(group)[0]
        answers = ask(engine, group, arrival)
        for offset, (answer, real) in enumerate(zip(answers, expected, strict=True)):
            shown = {key: answer.get(key) for key in real}
            if shown != dict(real):
                return number, Difference(step=done + offset, real=dict(real), simulated=shown)
        done += len(group)
    return -1, None


def _reply(step: Mapping[str, Any]) -> tuple[Tokens | None, tuple[Tokens, ...] | None]:
    """The reply to force, and the drafts that lead to it, None for those of the companion.

    A server with drafts counts tokens that it never sends (#2358): `counted` is more than the
    reply is long. Such a reply ended within a draft of that length, accepted as a whole. The
    recording cannot know the tokens, so they are ones that no prompt has.
    """
    if "reply" not in step:
        return None, None
    reply = as_tokens(step["reply"])
    hidden = as_tokens([UNSENT] * (step.get("counted", len(reply)) - len(reply)))
    if not hidden:
        return reply, None
    none: tuple[Tokens, ...] = ((),) * (len(reply) - 2)
    return (*reply, *hidden), (*none, (*reply[-1:], *hidden[:-1]))


def _request(step: Mapping[str, Any]) -> Request:
    reply, drafts = _reply(step)
    return Request(
        prompt=as_tokens(step["prompt"]),
        predict=step["predict"],
        reply=reply,
        drafts=drafts,
        slot=step.get("slot", -1),
        cache_prompt=step.get("cache_prompt", True),
        options=step.get("options"),
    )


def _submitted(engine: Engine, step: Mapping[str, Any]) -> Ticket:
    if "do" not in step:
        return engine.submit(_request(step))
    if not isinstance(engine, SlotActions):
        raise TypeError(f"{step['do']}: this server has no slot files")
    match step["do"]:
        case "slot-save":
            return engine.slot_save(step["slot"], step["file"])
        case "slot-restore":
            return engine.slot_restore(step["slot"], step["file"])
        case "slot-erase":
            return engine.slot_erase(step["slot"])
    raise ValueError(f"do = {step['do']!r}: write slot-save, slot-restore or slot-erase")


def ask(engine: Engine, group: list[Mapping[str, Any]], arrival: Arrival) -> list[dict[str, Any]]:
    """The answers to requests that are sent together, in the order of the file."""
    loop, tickets = Loop(engine), dict[int, Ticket]()
    try:
        for number in arrival.order:
            if tickets and arrival.apart:
                loop.turn()
            tickets[number] = _submitted(engine, group[number])
        loop.drain(
            until=lambda: all(engine.reply(ticket) is not None for ticket in tickets.values())
        )
        if not arrival.left_early:
            loop.drain()
            engine.check_integrity()
    except UpstreamAbort:
        return [{"error": ENDED} for _ in group]
    return [_shown(engine, tickets[number]) for number in range(len(group))]


def _shown(engine: Engine, ticket: Ticket) -> dict[str, Any]:
    reply = engine.reply(ticket)
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
