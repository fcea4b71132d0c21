"""Functions of the playground: choices, and a scenario with its report and pictures.

The page in `docs/playground` calls `answer` inside a browser; everything goes in and out as JSON.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from cachesim.engines.events import Event
from cachesim.engines.family import FAMILIES, Family
from cachesim.errors import CachesimError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import ABOUT, ALL_PRESETS
from cachesim.play.result import FATES, Run, Step
from cachesim.play.runner import chosen, run
from cachesim.play.states import State, cut
from cachesim.report.chain import chain
from cachesim.report.json_output import document
from cachesim.report.picture import (
    Row,
    after,
    deciding,
    decisive,
    held,
    positions_of,
    request,
    restored_label,
    story,
)
from cachesim.report.svg import frame, hatches, inline, row_svg
from cachesim.report.texts import BarKind, texts_of
from cachesim.scenario.checks import full_profile, scenario_of
from cachesim.scenario.files import content_of, loads, to_toml
from cachesim.scenario.format import Scenario


def choices() -> dict[str, Any]:
    """Engines with their releases, patches and flags, and the models."""
    return {
        "engines": {name: _engine(FAMILIES[name]) for name in FAMILIES},
        "models": {name: ABOUT.get(name, "") for name in ALL_PRESETS},
    }


def _engine(family: Family[Any, Any]) -> dict[str, Any]:
    return {
        "about": family.about,
        "releases": [
            {
                "name": release.name,
                "about": release.about,
                "patches": list(family.fitting(release.name)),
            }
            for release in reversed(family.releases)
        ],
        "patches": {patch.name: patch.about for patch in family.patches},
        "flags": {
            option.name: f"{option.about} ({option.shape})"
            for option in family.table()
            if not option.internal
        },
        "slots": family.has_slots,
    }


def answer(message: str) -> str:
    """Response to a message of the page, as JSON; problems are part of it and never raised."""
    try:
        question = json.loads(message)
        return json.dumps(ACTIONS[question.get("do", "run")](question))
    except ScenarioError as error:
        return json.dumps({"problems": list(error.problems)})
    except RecursionError:
        return json.dumps({"problems": ["it is nested too deeply"]})
    except CachesimError as error:
        return json.dumps({"problems": [str(error)]})


FILE: Final = "the file"
"""Name of a pasted text in error messages."""


def _scenario(question: Mapping[str, Any]) -> Scenario:
    """The scenario of a form, or of a file's text."""
    if "text" in question:
        return loads(question["text"].encode(), name=FILE)
    return scenario_of(question["scenario"])


_recent: list[Run] = []
"""The last run, for stepping."""


def played(question: Mapping[str, Any]) -> dict[str, Any]:
    """A run: verdict, picture of all requests, facts of each, JSON and scenario file."""
    arithmetic = question["arithmetic"]
    if arithmetic not in {"float", "ring"}:
        raise ScenarioError(f"arithmetic: {arithmetic!r} is not one of float, ring")
    numbers: ArithmeticName = "ring" if arithmetic == "ring" else "float"
    scenario = _scenario(question)
    wanted = chosen(scenario, question["profile"])
    result = run(scenario, wanted, arithmetic=numbers, detail=True)
    _recent[:] = [result]
    worst = min(result.steps, key=lambda step: (FATES.index(step.finding.fate), -step.missed))
    sentences = {fact.word: fact.sentence for fact in reversed(worst.facts)}
    found = {row.kind for i in range(len(result.steps)) for row in _rows(result, i)}
    memory = [kind for kind in ("recurrent", "window") if kind in found] or ["attention"]
    kinds: list[Any] = ["request", *memory, "checkpoint", "tree", "entry"]
    whole = story(result, kinds=kinds)
    short = decisive(whole)
    return {
        "scenario": result.scenario,
        "profile": result.profile,
        "fate": worst.finding.fate,
        "worst": result.steps.index(worst),
        "verdict": _verdict(result, worst),
        "cause": next((f"{word}: {sentences[word]}" for word in CAUSES if word in sentences), ""),
        "story": inline(short, "s"),
        "whole": "" if short == whole else inline(whole, "s"),
        "steps": [_step(result, index) for index in range(len(result.steps))],
        "json": document([result]),
        "toml": question["text"] if "text" in question else to_toml(scenario),
    }


def _verdict(result: Run, worst: Step) -> str:
    """The finding of the worst step; of right answers, a sentence on all."""
    steps = result.steps
    fine = all(step.answer is not None and step.reuse == "as declared" for step in steps)
    if worst.finding.fate != "right" or len(steps) < 2 or not fine:
        return worst.finding.title
    return f"All {len(steps)} answers are right; nothing was lost."


def stepped(question: Mapping[str, Any]) -> dict[str, Any]:
    """The moments of a request of the last run, as numbers of rows, and which of them matter."""
    (result,) = _recent
    found = tuple(frames(result, question["step"]))
    wide = positions_of(result)
    source = restored_label(result, question["step"])
    pool: dict[str, int] = {}
    return {
        **frame((row for fact in found for row in fact.rows), wide, "f"),
        "hatches": hatches("f"),
        "frames": [
            {
                "word": fact.word,
                "sentence": fact.sentence,
                "rows": [pool.setdefault(row_svg(row, wide, "f"), len(pool)) for row in fact.rows],
                "short": [] if source is None else deciding(fact.rows, source),
            }
            for fact in found
        ],
        "pool": list(pool),
        "begin": next((i for i, each in enumerate(found) if each.decides), _ruled(found)),
    }


def _ruled(found: Sequence["Frame"]) -> int:
    """The first moment of a rule, else of the match, else the arrival."""
    words = [each.word for each in found]
    return next((words.index(word) for word in ("rule", "match") if word in words), 0)


def opened(question: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario file as the page's form, or as text if the form lacks its keys."""
    scenario = _scenario(question)
    mapping = content_of(question["text"])
    profiles = [
        str(full_profile(scenario.engine.name, profile)) for profile in scenario.engine.profiles
    ]
    before = scenario.shows.before
    named = "" if before is None or before.profile is None else before.profile
    wanted = str(full_profile(scenario.engine.name, named)) if named else ""
    return {
        "name": scenario.name,
        "about": " ".join(scenario.about.split()),
        "profiles": profiles,
        "profile": (wanted if wanted in profiles else next(iter(profiles), "")),
        "form": form_of(mapping),
        "expect": mapping.get("expect", []),
    }


ACTIONS: Final = {"run": played, "step": stepped, "open": opened}


FORM: Final[Mapping[str, frozenset[str]]] = {
    "scenario": frozenset(
        {"format", "name", "about", "class", "kind", "source", "shows", "model", "engine", "spans"}
        | {"step", "expect"}
    ),
    "model": frozenset({"preset", "seed", "window"}),
    "engine": frozenset({"name", "profiles", "options"}),
    "step": frozenset({"name", "prompt", "predict", "slot"}),
}
"""Keys of a scenario file that the page's form covers, or that change no run."""


def form_of(mapping: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form's fields of a scenario; None if it has other keys."""
    model, engine = mapping["model"], mapping["engine"]
    spans, steps = mapping.get("spans", {}), mapping["step"]
    parts = (("scenario", mapping), ("model", model), ("engine", engine))
    fits = all(set(part) <= FORM[name] for name, part in (*parts, *(("step", s) for s in steps)))
    options = engine.get("options", {})
    if not (
        fits
        and "preset" in model
        and all(isinstance(span, int | str) for span in spans.values())
        and all(isinstance(step.get("prompt"), str) for step in steps)
        and all(isinstance(option, str | int | float) for option in options.values())
    ):
        return None
    return {
        "name": mapping["name"],
        "engine": engine["name"],
        "model": model["preset"],
        "seed": model.get("seed", 0),
        "window": model.get("window"),
        "flags": "\n".join(f"{key} = {json.dumps(value)}" for key, value in options.items()),
        "spans": [{"name": key, "length": value} for key, value in spans.items()],
        "steps": [{"name": str(number)} | step for number, step in enumerate(steps, 1)],
    }


CAUSES: Final = ("because", "consumed", "gone", "rule", "match")
"""Facts about causes, most specific first."""


def _rows(run: Run, index: int) -> Sequence[Any]:
    picture = after(run, index)
    return () if picture is None else picture.rows


def _step(run: Run, index: int) -> dict[str, Any]:
    step = run.steps[index]
    return {
        "name": step.name,
        "fate": step.finding.fate,
        "title": step.finding.title,
        "prompt": step.prompt_tokens,
        "cached": step.cached,
        "answer": step.answer,
        "error": step.error,
        "lost": step.missed,
        "facts": [[statement.word, statement.sentence] for statement in step.statements],
        "chain": [
            [link.word, run.steps[link.step].name, link.sentence] for link in chain(run, index)
        ],
    }


# -- moments of a request --------------------------------------------------------------------------

MOST: Final = 40
"""Most moments of a request; longer ones omit routine events."""

Segments: TypeAlias = tuple[tuple[int, int, BarKind, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A moment: a word, the sentence of the event or rule, and the rows."""

    word: str
    sentence: str
    rows: tuple[Row, ...]
    decides: bool = False  # the event that the verdict on the request points to


def frames(run: Run, index: int) -> Iterator[Frame]:
    """The moments of a step, from its arrival to its answer."""
    step = run.steps[index]
    if step.detail is None or run.detail is None:
        return
    total, cached = step.size, min(step.cached or 0, step.size)
    equal = max(step.explanation.equal if step.explanation else 0, cached)
    arrival: Segments = ((0, total, "pending", f"{total} tokens"),)
    matched: Segments = ((0, equal, "shared", f"{equal} match"), (equal, total, "pending", ""))
    facts = {statement.word: statement.sentence for statement in reversed(step.statements)}
    before = _state(run, step.detail.before)
    yield Frame(
        word="request",
        sentence=f"Request {step.name} arrives: {total} tokens.",
        rows=_frame_rows(run, index, arrival, before),
    )
    if "match" in facts:
        rows = _frame_rows(run, index, matched, before)
        yield Frame(word="match", sentence=facts["match"], rows=rows)
    rules = [statement.sentence for statement in step.statements if statement.word == "rule"]
    told = step.finding
    deciding = None
    if told.fate != "right" and told.step == index and told.event >= 0:
        deciding = step.events[told.event]
    done, decided = cached, False
    for event, number in _shown(step):
        progress = _processed(event, cached)
        if not decided and (progress is not None or event.name() == "memory-cut"):
            decided = True
            for rule in rules:
                rows = _frame_rows(run, index, _split(step, cached), before)
                yield Frame(word="rule", sentence=rule, rows=rows)
        if progress is not None:
            done = progress if event.name() != "batch-decoded" else done + progress
        before = _state(run, number) or before
        segments = _split(step, done) if decided else matched
        yield Frame(
            word=event.name().replace("-", " "),
            sentence=event.sentence,
            rows=_frame_rows(run, index, segments, before),
            decides=event is deciding,
        )
    last = _state(run, step.detail.at[-1]) if step.detail.at else before
    rows = (*request(run, index), *(() if last is None else held(run, last, index)))
    causes = [facts[word] for word in ("wrong", "because") if word in facts]
    yield Frame(word="answer", sentence=". ".join(causes) or _answer(step), rows=rows)


def _answer(step: Step) -> str:
    if step.error is not None or step.cached is None:
        return step.error or "The server gives no answer."
    words = {"same": "equal to that of an uncached run", None: "not compared with an uncached run"}
    return (
        f"{step.cached} of {step.prompt_tokens} tokens were cached; the answer is "
        f"{words.get(step.answer, str(step.answer))}."
    )


def _state(run: Run, number: int) -> State | None:
    return run.detail.states[number] if run.detail is not None and number >= 0 else None


def _frame_rows(run: Run, index: int, segments: Segments, state: State | None) -> tuple[Row, ...]:
    """The prompt in these segments, above the server's memory."""
    texts = texts_of(run)
    own = [{"step": index, "at": 0, "count": run.steps[index].size}]
    bars = tuple(
        replace(texts.bar(start, piece, kind), text=words)
        for start, end, kind, words in segments
        for piece in cut(own, start, end)
    )
    first = next(iter(request(run, index)), Row(kind="request", label="request", bars=()))
    return (replace(first, bars=bars), *(() if state is None else held(run, state, index)))


def _split(step: Step, done: int) -> Segments:
    """Cached tokens, those prefilled again and prefilled, and those that are still to come."""
    total, cached = step.size, min(step.cached or 0, step.size)
    at, due = min(max(done, cached), total), cached + step.missed
    found: Segments = (
        (0, cached, "shared", "cached"),
        (cached, due, "again", "prefilled again" if at >= due else "lost"),
        (due, at, "new", "prefilled"),
        (max(at, due), total, "pending", "to be prefilled"),
    )
    return tuple((a, b, kind, f"{b - a} {words}") for a, b, kind, words in found if a < b)


def _shown(step: Step) -> list[tuple[Event, int]]:
    """Decisions, and events that change memory before the reply."""
    detail = step.detail
    if detail is None:
        return []
    pairs = list(zip(step.events, detail.at, strict=True))
    prompt = step.size - (step.cached or 0)
    found: list[tuple[Event, int]] = []
    for event, number in pairs:
        progress = event.as_dict().get("n_tokens", 0) if event.name() == "batch-decoded" else None
        if progress is not None and prompt <= 0:
            continue
        prompt -= progress or 0
        if event.loudness() != "quiet" or progress is not None or event.name() == "memory-cut":
            found.append((event, number))
    if len(found) > MOST:
        loud = [event for event in found if event[0].loudness() in {"loss", "gain", "warn"}]
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
