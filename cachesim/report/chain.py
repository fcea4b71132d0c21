"""The way to what went wrong in a step, as a walk over events: one key leads along it in the page.

a wrong answer    made > kept > restored > wrong
lost reuse        equal > lost (each event that took tokens away) > answered
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cachesim.engines.events import Event
from cachesim.scenario.result import Run, Step

PLACE: Final = ("n_tokens", "pos_min", "pos_max")
"""What tells one checkpoint from another in events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One station: a word, and the event to look at."""

    word: str
    step: int
    event: int


def chain(run: Run, index: int) -> tuple[Link, ...]:
    """The stations of a step that was wrong or lost tokens; none for one that did neither."""
    step = run.steps[index]
    if not step.events or step.finding.fate == "right":
        return ()
    return tuple(_wrong(run, index) if step.answer == "diverged" else _lost(step, index))


def _wrong(run: Run, index: int) -> Iterator[Link]:
    step = run.steps[index]
    names = [event.name() for event in step.events]
    at = names.index("checkpoint-restored") if "checkpoint-restored" in names else None
    if at is not None:
        yield from _way_of(run, index, at)
        yield Link(word="restored", step=index, event=at)
    else:
        loud = [i for i, event in enumerate(step.events) if event.loudness() == "warn"]
        yield from (Link(word="handed on", step=index, event=i) for i in loud)
    yield Link(word="wrong", step=index, event=len(step.events) - 1)


def _way_of(run: Run, index: int, at: int) -> Iterator[Link]:
    """Where a restored checkpoint was made, and every erasure that it lived through."""
    restored = run.steps[index].events[at]
    earlier = [
        (i, j, event)
        for i, step in enumerate(run.steps[: index + 1])
        for j, event in enumerate(step.events)
        if (i, j) < (index, at) and _is_same(event, restored)
    ]
    made = [n for n, (_, _, event) in enumerate(earlier) if event.name() == "checkpoint-created"]
    for i, j, event in earlier[made[-1] if made else 0 :]:
        if event.name() == "checkpoint-created":
            yield Link(word="made", step=i, event=j)
        elif event.name() == "checkpoint-kept":
            yield Link(word="kept", step=i, event=j)


def _is_same(one: Event, other: Event) -> bool:
    told, wanted = one.as_dict(), other.as_dict()
    named = [name for name in PLACE if name in told and name in wanted]
    return bool(named) and all(told[name] == wanted[name] for name in named)


def _lost(step: Step, index: int) -> Iterator[Link]:
    tones = [event.loudness() for event in step.events]
    names = [event.name() for event in step.events]
    if "prompt-started" in names:
        yield Link(word="equal", step=index, event=names.index("prompt-started"))
    taken = [i for i, tone in enumerate(tones) if tone in {"loss", "warn"}]
    yield from (Link(word="lost", step=index, event=i) for i in taken)
    yield Link(word="answered", step=index, event=len(step.events) - 1)
