"""A request in moments: match, cut, restore, reprocess, each with its rule."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from cachesim.engines.events import Event
from cachesim.play.result import Run, Step
from cachesim.play.states import State, cut
from cachesim.report.picture import Row, held, request
from cachesim.report.texts import BarKind, texts_of

MOST: Final = 40
"""Most moments of a request; longer ones omit routine events."""

Segments: TypeAlias = tuple[tuple[int, int, BarKind, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A moment: a word, the sentence of the event or rule, and the rows."""

    word: str
    sentence: str
    rows: tuple[Row, ...]


def frames(run: Run, index: int) -> Iterator[Frame]:
    """The moments of a step, from its arrival to its answer."""
    step = run.steps[index]
    if step.detail is None or run.detail is None:
        return
    total, cached = step.prompt_tokens, min(step.cached or 0, step.prompt_tokens)
    equal = max(step.explanation.equal if step.explanation else 0, cached)
    arrival: Segments = ((0, total, "pending", f"{total} tokens"),)
    matched: Segments = ((0, equal, "shared", f"{equal} match"), (equal, total, "pending", ""))
    facts = {each.word: each.sentence for each in reversed(step.statements)}
    before = _state(run, step.detail.before)
    yield Frame(
        word="request",
        sentence=f"Request {step.name} arrives: {total} tokens.",
        rows=_rows(run, index, arrival, before),
    )
    if "match" in facts:
        yield Frame(word="match", sentence=facts["match"], rows=_rows(run, index, matched, before))
    rules = [each.sentence for each in step.statements if each.word == "rule"]
    done, decided = cached, False
    for event, number in _shown(step):
        progress = _processed(event, cached)
        if not decided and (progress is not None or event.name() == "memory-cut"):
            decided = True
            for rule in rules:
                rows = _rows(run, index, _split(cached, equal, cached, total), before)
                yield Frame(word="rule", sentence=rule, rows=rows)
        if progress is not None:
            done = progress if event.name() != "batch-decoded" else done + progress
        before = _state(run, number) or before
        segments = _split(cached, equal, done, total) if decided else matched
        yield Frame(
            word=event.name().replace("-", " "),
            sentence=event.sentence,
            rows=_rows(run, index, segments, before),
        )
    last = _state(run, step.detail.at[-1]) if step.detail.at else before
    rows = (*request(run, index), *(() if last is None else held(run, last, index)))
    causes = [facts[word] for word in ("wrong", "because") if word in facts]
    yield Frame(word="answer", sentence=". ".join(causes) or _answer(step), rows=rows)


def _answer(step: Step) -> str:
    if step.error is not None or step.cached is None:
        return step.error or "The server gives no answer."
    words = {"same": "equal to that of a cold run", None: "not compared with a cold run"}
    return (
        f"{step.cached} of {step.prompt_tokens} tokens were reused; the answer is "
        f"{words.get(step.answer, str(step.answer))}."
    )


def _state(run: Run, number: int) -> State | None:
    return run.detail.states[number] if run.detail is not None and number >= 0 else None


def _rows(run: Run, index: int, segments: Segments, state: State | None) -> tuple[Row, ...]:
    """The prompt in these segments, above the server's memory."""
    texts = texts_of(run)
    own = [{"step": index, "at": 0, "count": run.steps[index].prompt_tokens}]
    bars = tuple(
        replace(texts.bar(start, piece, kind), text=words)
        for start, end, kind, words in segments
        for piece in cut(own, start, end)
    )
    first = next(iter(request(run, index)), Row(kind="request", label="request", bars=()))
    return (replace(first, bars=bars), *(() if state is None else held(run, state, index)))


def _split(cached: int, equal: int, done: int, total: int) -> Segments:
    """Reused, reprocessed and new tokens, up to the processed ones."""
    at = min(max(done, cached), total)
    found: Segments = (
        (0, cached, "shared", "reused"),
        (cached, equal, "again", "reprocessed" if at >= equal else "lost"),
        (equal, at, "new", "new"),
        (max(at, equal), total, "pending", "to be processed"),
    )
    return tuple((a, b, kind, f"{b - a} {words}") for a, b, kind, words in found if a < b)


def _shown(step: Step) -> list[tuple[Event, int]]:
    """Decisions, and events that change memory before the reply."""
    detail = step.detail
    if detail is None:
        return []
    pairs = list(zip(step.events, detail.at, strict=True))
    prompt = step.prompt_tokens - (step.cached or 0)
    found: list[tuple[Event, int]] = []
    for event, number in pairs:
        progress = event.as_dict().get("n_tokens", 0) if event.name() == "batch-decoded" else None
        if progress is not None and prompt <= 0:
            continue
        prompt -= progress or 0
        if event.loudness() != "quiet" or progress is not None or event.name() == "memory-cut":
            found.append((event, number))
    if len(found) > MOST:
        loud = [each for each in found if each[0].loudness() in {"loss", "gain", "warn"}]
        found = loud[:MOST]
    return found


def _processed(event: Event, cached: int) -> int | None:
    """Prompt tokens processed by a prefill event; None for other events."""
    fields = event.as_dict()
    match event.name():
        case "batch-decoded":
            return int(fields["n_tokens"])
        case "chunk-scheduled":
            return int(fields["end"])
        case "prompt-progress":
            return cached + int(fields["done"])
    return None
