"""Requests as laws read them, changes that break a law, and guided workloads that break none."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.engines.family import Profile
from cachesim.engines.seen import Seen
from cachesim.errors import InputError
from cachesim.play.findings import Finding, play
from cachesim.testing.guided import Guided
from cachesim.testing.workloads import Shape

SHAPE = Shape(incidents=True, chats=True, guided=True)


def found(profile: str, model: str, number: int, shape: Shape = SHAPE) -> list[Finding]:
    """Broken laws in one guided workload of a release; long searches run thousands of each."""
    try:
        client = Guided(Profile.parse(profile), model, number, seed=5, shape=shape)
    except InputError:
        return []
    list(client.run())
    trial = play(client.scenario, Profile.parse(profile), stop_early=False, thin=True)
    laws = {"broken invariant", "lost reuse", "refusal"}
    return [finding for finding in trial.findings if finding.kind in laws]


def seen_of(reply: Reply, events: Iterable[Event], **more: Any) -> Seen:
    """A request that was sent alone."""
    fields = {"forced": None, "layers": frozenset({"attention"}), **more}
    return Seen(
        reply=reply, events=list(events), alone=True, images=False, fields={}, model="", plain=True,
        **fields,
    )  # fmt: skip


def changed(kind: type[Event], **changes: Any) -> Callable[[Seen], Seen]:
    """The request with other fields in its events of a kind."""

    def change(seen: Seen) -> Seen:
        assert kind in map(type, seen.events), sorted({event.name() for event in seen.events})
        events = [replace(e, **changes) if isinstance(e, kind) else e for e in seen.events]
        return replace(seen, events=events)

    return change


def without(kind: type[Event]) -> Callable[[Seen], Seen]:
    return lambda seen: replace(seen, events=[e for e in seen.events if not isinstance(e, kind)])


def further(event: Event) -> Callable[[Seen], Seen]:
    return lambda seen: replace(seen, events=[event, *seen.events])


def replied(**changes: Any) -> Callable[[Seen], Seen]:
    return lambda seen: replace(seen, reply=replace(seen.reply, **changes))
