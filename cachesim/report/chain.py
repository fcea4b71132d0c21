"""The chain of events that led to a wrong answer or to lost reuse; a key of the page steps through
it.

a wrong answer    made > kept > restored > wrong
lost reuse        equal > lost (each event that took tokens away) > answered

The last station is the step's outcome. The playground uses it, so nothing here needs Rich.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cachesim.engines.events import Event
from cachesim.play.result import Run, Step

PLACE: Final = ("n_tokens", "pos_min", "pos_max")
"""Fields of an event that identify a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link: a word, its event, and its sentence."""

    word: str
    step: int
    event: int
    sentence: str


def chain(run: Run, index: int) -> tuple[Link, ...]:
    """The links of a step that was wrong or lost tokens; empty for others."""
    step = run.steps[index]
    if not step.events or step.finding.fate == "right":
        return ()
    return tuple(_wrong(run, index) if step.answer == "diverged" else _lost(run, index))


def _link(word: str, run: Run, step: int, event: int) -> Link:
    return Link(word=word, step=step, event=event, sentence=run.steps[step].events[event].sentence)


def _wrong(run: Run, index: int) -> Iterator[Link]:
    step = run.steps[index]
    names = [event.name() for event in step.events]
    at = names.index("checkpoint-restored") if "checkpoint-restored" in names else None
    if at is not None:
        restored = run.steps[index].events[at]
        earlier = [
            (i, j, event)
            for i, step in enumerate(run.steps[: index + 1])
            for j, event in enumerate(step.events)
            if (i, j) < (index, at) and _is_same(event, restored)
        ]
        made = [
            n for n, (_, _, event) in enumerate(earlier) if event.name() == "checkpoint-created"
        ]
        for i, j, event in earlier[made[-1] if made else 0 :]:
            if event.name() == "checkpoint-created":
                yield _link("made", run, i, j)
            elif event.name() == "checkpoint-kept":
                yield _link("kept", run, i, j)
        yield _link("restored", run, index, at)
    else:
        loud = [i for i, event in enumerate(step.events) if event.loudness() == "warn"]
        yield from (_link("handed on", run, index, i) for i in loud)
    sentence = next((fact.sentence for fact in step.facts if fact.word == "wrong"), "")
    yield Link(word="wrong", step=index, event=len(step.events) - 1, sentence=sentence)


def _is_same(one: Event, other: Event) -> bool:
    fields, wanted = one.as_dict(), other.as_dict()
    named = [name for name in PLACE if name in fields and name in wanted]
    return bool(named) and all(fields[name] == wanted[name] for name in named)


def _lost(run: Run, index: int) -> Iterator[Link]:
    step = run.steps[index]
    tones = [event.loudness() for event in step.events]
    names = [event.name() for event in step.events]
    if "prompt-started" in names:
        yield _link("match", run, index, names.index("prompt-started"))
    taken = [i for i, tone in enumerate(tones) if tone in {"loss", "warn"}]
    yield from (_link("lost", run, index, i) for i in taken)
    yield _outcome(step, index)


def _outcome(step: Step, index: int) -> Link:
    last = len(step.events) - 1
    if step.error is not None or step.cached is None:
        return Link(word="ended", step=index, event=last, sentence=step.finding.title)
    sentence = f"{step.cached} of {step.prompt_tokens} tokens cached"
    return Link(word="answered", step=index, event=last, sentence=sentence)
