"""Results of a scenario on a profile, as frozen values: a run, its steps, their statements.

    run = run_scenario(mapping, profile="llama.cpp@b11549")
    run.steps[2].cached              values
    run.steps[2].facts               sentences, composed once; every report only shows them
    run.to_json()                    one entry of "runs" in the JSON output

Each field is annotated with a sentence, from which the JSON Schema of the output is generated.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import partial
from importlib import import_module
from math import isfinite
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event, Tone
from cachesim.engines.facts import causes_of, engines, events_of
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.states import State
from cachesim.scenario import limits
from cachesim.scenario.format import LONGEST, Scenario, key_of
from cachesim.scenario.labels import Evidence
from cachesim.scenario.readers import WORD
from cachesim.typed import Json
from cachesim.verify.explain import Divergence
from cachesim.verify.verdict import Answer, Reuse, WrongStep

Fate: TypeAlias = Literal[
    "wrong",
    "aborted",
    "hung",
    "unanswered",
    "refused",
    "failed",
    "not-run",
    "by-design",
    "lost",
    "right",
]
"""Outcome of a step, worst first."""

FATES: Final[tuple[Fate, ...]] = get_args(Fate)


CLAIMS: Final = frozenset[Fate]({"wrong", "aborted", "hung", "unanswered"})
"""Outcomes that are a release's fault; such a step has an evidence label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement on a step: a word, and the sentence behind it."""

    word: Annotated[str, "The kind of statement: equal, rule, wrong, because, kept by, ..."]
    sentence: Annotated[str, "The statement."]
    fields: Annotated[Mapping[str, Any], "The values in it."] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on a step: its outcome, a title, and the place to look at."""

    fate: Annotated[Fate, "The outcome of the step."]
    title: Annotated[str, "The verdict in one sentence."]
    step: Annotated[int, "The step to look at, which may be an earlier one."]
    event: Annotated[int, "The event of that step to look at; -1 where it has none."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first wrong memory: its correct prefix and the content behind it."""

    layer: Annotated[int, "The first layer of that kind."]
    place: Annotated[str, "attention, window or recurrent."]
    read_by: Annotated[int, "The position of the token whose computation read it."]
    position: Annotated[int, "The first position with a wrong token."]
    holds: Annotated[int | None, "The token held there; null without one."]
    expected: Annotated[int | None, "The right token there; null without one."]
    holds_tokens: Annotated[int, "Tokens of its history."]
    expected_tokens: Annotated[int, "Tokens of the right history."]
    matches: Annotated[int, "Right leading tokens of its history."]
    padding: Annotated[int, "Padding among its tokens from there on."]
    comes_from: Annotated[str | None, "The step, and its part, that computed the token."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Causes of tokens not reused, and of a wrong answer."""

    equal: Annotated[int, "Tokens that match the best candidate."]
    equal_with: Annotated[str, "What that was."]
    parting: Annotated[Divergence | None, "The first token that does not match."]
    ideal: Annotated[int, "Tokens that a cache with every state would have reused."]
    lost: Annotated[int, "Tokens not reused of these."]
    sentences: Annotated[tuple[str, ...], "The match, and one sentence for each cause."]
    wrong: Annotated[WrongStep | None, "The first generated token whose logits are not cold."]
    fault: Annotated[Culprit | None, "The first wrong memory that caused it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of the slot."""

    pos_min: Annotated[int, "Its first position."]
    pos_max: Annotated[int, "Its last position."]
    n_tokens: Annotated[int, "Tokens that it covers."]
    bytes: Annotated[int | None, "Its size; null if the engine does not report it."] = None

    def __str__(self) -> str:
        return f"{self.n_tokens}[{self.pos_min}..{self.pos_max}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCount:
    """Token count of a slot."""

    id: Annotated[int, "Its number."]
    n_tokens: Annotated[int, "Its tokens."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """A named part of a prompt."""

    name: Annotated[str, "Its span, message or reply."]
    start: Annotated[int, "Its first token."]
    end: Annotated[int, "The token after its last one."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogit:
    """A token with its logits."""

    token: Annotated[int, "The token."]
    cached: Annotated[float, "Its logit in the server's row."]
    cold: Annotated[float, "Its logit in the cold row."]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRow:
    """A generated token: logits of the server and of the uncached run, with greedy samples."""

    index: Annotated[int, "Which generated token."]
    token: Annotated[int, "The generated token."]
    cached: Annotated[int, "The greedy token of the server's row."]
    cold: Annotated[int, "The greedy token of the cold row."]
    difference: Annotated[float, "The distance of the rows."]
    top: Annotated[tuple[TopLogit, ...], "The largest logits of both rows."]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDetail:
    """Detail of `--detail`: the prompt, the state before, and the state after each event."""

    prompt: Annotated[tuple[int, ...], "The prompt's tokens."]
    parts: Annotated[tuple[PromptPart, ...], "Its named parts."]
    before: Annotated[int, "The state before the step, by its number in the run; -1: not seen."]
    at: Annotated[tuple[int, ...], "The state after each event."]
    logits: Annotated[tuple[LogitRow, ...], "The first generated tokens, cached and cold."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """Detail of `--detail`: the scenario and all states, by number."""

    about: Annotated[str, "The scenario's story."]
    issue: Annotated[str | None, "The report it comes from."]
    kind: Annotated[str | None, "Its class."]
    model: Annotated[str, "The preset, or the layers."]
    options: Annotated[Mapping[str, Any], "The server's flags."]
    toml: Annotated[str, "The scenario as a file."]
    words: Annotated[bool, "True if the model recalls facts: its tokens are words."]
    states: Annotated[tuple[State, ...], "The states, without repeats."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A finished step of a scenario."""

    name: Annotated[str, "The step's name."]
    do: Annotated[str, "What was done."]
    prompt_tokens: Annotated[int | None, "Tokens of its prompt; null if it was not run."]
    cached: Annotated[int | None, "Tokens reused; null where there is no count."]
    processed: Annotated[int | None, "Prompt tokens processed; null where there is no count."]
    generated: Annotated[tuple[int, ...], "The reply's tokens."]
    answer: Annotated[
        Answer | None,
        "The answer against an uncached run; null if not compared. Texts write `same` as"
        " matches, `diverged` as WRONG.",
    ]
    max_difference: Annotated[float | None, "The largest difference of any logits."]
    reuse: Annotated[Reuse | None, "The reuse against an ideal cache."]
    why: Annotated[tuple[Loss, ...], "The causes that changed the number of usable tokens."]
    slot: Annotated[int | None, "The slot that served it."]
    truncated: Annotated[bool, "True if tokens of its context were dropped."]
    checkpoints: Annotated[tuple[Saved, ...], "The slot's checkpoints after the step."]
    prompt_cache: Annotated[tuple[Mapping[str, Any], ...], "Prompt-cache entries after it."]
    events: Annotated[tuple[Event, ...], "The events, in order."]
    error: Annotated[str | None, "The server's own error."]
    message: Annotated[str, "The server's sentence."]
    explanation: Annotated[Account | None, "The account of reuse, and the first error."]
    slots: Annotated[tuple[SlotCount, ...], "Every slot after the step."]
    forced: Annotated[bool, "True if the scenario gave the reply."]
    finding: Annotated[Finding, "The verdict on the step."]
    facts: Annotated[tuple[Fact, ...], "Its statements, in order of relevance."]
    drafted: Annotated[int | None, "Tokens a companion drafted, as the server counts."] = None
    accepted: Annotated[int | None, "Accepted drafts, as the server counts."] = None
    companion: Annotated[int | None, "Tokens the slot has in its companion's memory."] = None
    evidence: Annotated[
        Evidence | None,
        "The evidence that the release answers wrongly or ends, or that a right answer the scenario"
        " shows is as on the real engine; null otherwise, and for patched releases.",
    ] = None
    detail: Annotated[StepDetail | None, "Written with --detail."] = None

    @property
    def size(self) -> int:
        """How many tokens its prompt has; 0 if it was not run."""
        return self.prompt_tokens or 0

    @property
    def lost(self) -> int:
        """The difference between the reuse of an ideal cache and this one, in tokens."""
        return 0 if self.explanation is None else self.explanation.lost

    @property
    def missed(self) -> int:
        """The number in the column `lost`: 0 where no reuse was due, or the answer is wrong.

        Every picture draws this many tokens as prefilled again, after the cached ones.
        """
        return self.lost if self.reuse == "lost" else 0

    @property
    def statements(self) -> tuple[Fact, ...]:
        """The step's facts, and its evidence label."""
        label = [] if self.evidence is None else [Fact(word="evidence", sentence=self.evidence)]
        return (*self.facts, *label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A scenario on one profile."""

    scenario: Annotated[str, "The scenario's name."]
    profile: Annotated[str, "Engine, release and patches."]
    as_expected: Annotated[bool, "True if every expectation was met."]
    steps: Annotated[tuple[Step, ...], "The steps, in order."]
    arithmetic: Annotated[ArithmeticName, "float or ring."]
    mismatches: Annotated[tuple[str, ...], "Expectations that were not met."]
    device: Annotated[str | None, "The machine by which the server chose flags, if it did."] = None
    detail: Annotated[RunDetail | None, "Written with --detail."] = None

    def _repr_html_(self) -> str:
        """The run in a notebook. `cachesim.report` draws it, and is imported only for that."""
        drawn: str = import_module("cachesim.report.html").show(self)._repr_html_()
        return drawn

    def to_json(self, *, detail: bool = True) -> dict[str, Any]:
        """An entry of "runs"; without the detail if `detail` is False."""
        entry: dict[str, Any] = as_json(self)
        if not detail:
            entry.pop("detail", None)
            for step in entry["steps"]:
                step.pop("detail", None)
        return entry


def as_json(value: Json) -> Json:
    """A value as JSON; an absent detail is omitted."""
    if isinstance(value, Event):
        entry: dict[str, Any] = as_json(value.as_dict())
        return entry | {"tone": value.loudness(), "sentence": value.sentence}
    if isinstance(value, Loss):
        return as_json(value.as_dict())
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {n: as_json(part) for n, part in named if not (n == "detail" and part is None)}
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [as_json(part) for part in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)  # JSON has no word for `nan`
    return int(value)


# The JSON Schemas: of the scenario file, written from its fields, and of the output.

Schema: TypeAlias = dict[str, Any]

Annotation: TypeAlias = Any
"""A type annotation."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "Scenario": ("format", "name", "model", "engine", "step"),
    "Server": ("name",),
    "Turn": ("role", "content"),
}
"""Required keys of a file."""


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors and checkers."""
    schema = _table(Scenario)
    return schema_head("scenario", "cachesim scenario, format 1") | schema


def schema_head(name: str, title: str) -> dict[str, Any]:
    """The beginning of a published schema; `$id` changes with the version of its format."""
    return {"$schema": DIALECT, "$id": f"urn:cachesim:schema:{name}:1", "title": title}


def _table(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    required = REQUIRED.get(cls.__name__, ())
    return {
        "type": "object",
        "description": (cls.__doc__ or "").split("\n")[0],
        "properties": {key_of(cls, field.name): _field(field, hints) for field in fields(cls)},
        "additionalProperties": False,
    } | ({"required": list(required)} if required else {})


def _field(each: "Field[Any]", hints: Mapping[str, Any]) -> dict[str, Any]:
    kind, *notes = get_args(hints[each.name])
    about = next(note for note in notes if isinstance(note, str))
    reader = next((note for note in notes if hasattr(note, "schema")), None)
    schema = reader.schema() if reader is not None else _nested(kind)
    default = each.default
    if isinstance(default, str | int) and default != "" and each.name != "format":
        schema = schema | {"default": default}
    return {**schema, "description": about}


def _nested(kind: type) -> dict[str, Any]:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return {"type": "array", "items": _table(inner), "maxItems": LONGEST[inner]}
    if get_origin(kind) is Mapping:
        return {
            "type": "object",
            "additionalProperties": _table(get_args(kind)[1]),
            "propertyNames": {"pattern": f"^{WORD}$"},
            "maxProperties": limits.MODELS,
        }
    return _table(kind)


def output_schema() -> dict[str, Any]:
    """The JSON Schema of the output of `cachesim run --format json`."""
    top = _closed(
        "Every run, in the requested order.",
        {"format": {"const": 1}, "runs": {"type": "array", "items": _value(Run)}},
    )
    return schema_head("output", "cachesim output, format 1") | top


def _closed(about: str, properties: dict[str, Any], optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _value(kind: Annotation) -> Schema:
    """The schema of a type, as `as_json` writes its values."""
    if is_dataclass(kind):
        return SPECIAL.get(kind, partial(_dataclass, kind))()
    origin: object = get_origin(kind)
    inside = get_args(kind)
    if origin is None:
        # The type behind a plain NewType (`Count`, `Pos`).
        while hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        names = {bool: "boolean", int: "integer", float: "number", str: "string"}
        return {"type": next(word for base, word in names.items() if issubclass(kind, base))}
    if origin is Annotated:
        return _value(inside[0]) | {"description": inside[1]}
    if origin in {UnionType, Union}:
        schema = _value(next(choice for choice in inside if choice is not type(None)))
        if "enum" in schema:
            return {**schema, "enum": [*schema["enum"], None]}
        return {**schema, "type": [schema["type"], "null"]}
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is tuple:
        return {"type": "array", "items": _value(inside[0])}
    return {"type": "object"}


def _dataclass(kind: Annotation) -> Schema:
    hints = get_type_hints(kind, include_extras=True)
    properties = {field.name: _value(hints[field.name]) for field in fields(kind)}
    optional = tuple(name for name in ("detail", "device") if name in properties)
    return _closed((kind.__doc__ or "").split("\n")[0], properties, optional)


def _event() -> Schema:
    known = sorted({event.name() for engine in engines() for event in events_of(engine)})
    properties: dict[str, Any] = {
        "event": {"type": "string", "examples": known},
        "slot": {"type": "integer", "description": "The slot, or -1."},
        "task": {"type": "integer", "description": "The task, or -1."},
        "tone": {"enum": list(get_args(Tone)), "description": "Its effect on the tokens."},
        "sentence": {"type": "string", "description": "The event in words."},
    }
    return _closed("An event, with fields of its own.", properties)


def _loss() -> Schema:
    """An entry of `why`: its cause is declared by some engine."""
    known = sorted({cause.id for engine in engines() for cause in causes_of(engine)})
    properties: dict[str, Any] = {
        "rule": {"type": "string", "examples": known, "description": "The cause."},
        "from": {"type": "integer", "description": "Usable tokens before."},
        "to": {"type": "integer", "description": "Usable tokens after."},
        "detail": {"type": "object", "description": "The numbers of the applied test."},
        "sentence": {"type": "string", "description": "The event in words."},
    }
    return _closed("A cause that changed the number of usable tokens.", properties)


SPECIAL: Final[Mapping[Any, Callable[[], Schema]]] = {Event: _event, Loss: _loss}
"""Types whose schema does not follow from their fields."""
