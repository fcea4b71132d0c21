"""The scenario file, format 1, as frozen values.

Every field has its reader (the accepted values) and a sentence on its purpose; the JSON Schema is
generated from both. Optional keys have a default here; `checks` has the required keys and the
consistency of the parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from cachesim.engines.chat import TEMPLATES
from cachesim.model.spec import LayerKind
from cachesim.scenario import limits
from cachesim.scenario.readers import Each, Either, Ids, Number, OneOf, Table, Text, Whole, YesNo

FORMAT: Final = 1
NAME_SHAPE: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
WORD_SHAPE: Final = r"[A-Za-z_][A-Za-z0-9_-]*"
FILE_SHAPE: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
CLASSES: Final = ("lost-reuse", "stale-state", "crash", "limits", "accounting")
ANSWERS: Final = ("same", "rounding", "by-design", "diverged", "any", "none")
ACTIONS: Final = (
    "complete", "slot-save", "slot-restore", "slot-erase", "set-lora", "restart", "sleep",
    "cancel",
)  # fmt: skip
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
LEAVES: Final = ("reading", "replying")
LAYER_KINDS: Final = get_args(LayerKind)

_word = Text(limits.NAME, WORD_SHAPE, "a word of letters, digits, '_' and '-'")
_spans = Text(limits.TEXT)
_ids = Ids()
_count = Whole(0, 2**31 - 1)
_skip = Text(8, "any|none", "a count, 'any' (not checked) or 'none' (no count)")
_scalar = Either(
    (
        (bool, YesNo()),
        (int, Whole(-(2**63), 2**63 - 1)),
        (float, Number(-1e12, 1e12)),
        (str, Text(limits.NAME)),
    ),
    "a boolean, a number or a string",
)
_scalar_or_ids = Either((*_scalar.readers, ((list, tuple), _ids)), "a scalar or a list of ids")
_spans_or_ids = Either(((str, _spans), ((list, tuple), _ids)), "span names or a list of token ids")
_count_or_skip = Either(
    ((int, _count), (str, _skip), (type(None), _skip)), "a count, 'any' or 'none'"
)
_text_or_table = Either(
    ((str, Text(limits.NAME)), (dict, Table(_scalar_or_ids, 16))), "a string or a table"
)
_request_option = Either(
    (*_scalar.readers, (dict, Table(_scalar, 16)), ((list, tuple), Each(_text_or_table, 64))),
    "a boolean, a number, a string, a table or a list of tables or strings",
)

_per_step_word = Either(
    ((str, OneOf(ANSWERS)), ((list, tuple), Each(OneOf(ANSWERS), limits.STEPS))),
    "one word or a list of words",
)
_per_step_error = Either(
    ((str, Text(limits.NAME)), ((list, tuple), Each(Text(limits.NAME), limits.STEPS))),
    "one word or a list of words",
)
_per_step_counts = Each(Either((((list, tuple), _ids), (str, _skip)), "a list"), limits.STEPS)
_span = Either(
    ((int, Whole(1, limits.PROMPT_TOKENS)), (str, _spans), ((list, tuple), _ids)),
    "a length, a text or a list of token ids",
)

Kind: TypeAlias = Literal[
    "wrong answer", "leak", "broken invariant", "crash", "refusal", "lost reuse"
]
"""Kinds of findings of a search."""

Prompt: TypeAlias = str | tuple[int, ...] | None
Counts: TypeAlias = tuple[int | str | None, ...] | None
Words: TypeAlias = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of the report."""

    issue: Annotated[str, Text(300), "The report, as OWNER/REPOSITORY#NUMBER."] = ""
    also: Annotated[
        tuple[str, ...], Each(Text(300), 32), "Other reports of the same, in the same form."
    ] = ()
    date: Annotated[
        str, Text(10, r"\d{4}(-\d\d){0,2}", "a date such as 2026-05"), "The date of the report."
    ] = ""
    upstream: Annotated[str, Text(300), "The release or commit of the report."] = ""
    note: Annotated[str, Text(2000), "Notes: scaled or disputed numbers, real runs."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Values of one step on one profile."""

    profile: Annotated[str, Text(200), "The profile."] = ""
    step: Annotated[str, _word, "The step."] = ""
    cached: Annotated[int | None, _count, "Cached tokens."] = None
    processed: Annotated[int | None, _count, "Processed tokens."] = None
    of: Annotated[int | None, _count, "Tokens of the prompt."] = None
    answer: Annotated[str | None, OneOf(ANSWERS[:4]), "The verdict on the answer."] = None
    error: Annotated[str | None, Text(limits.NAME), "The server's word for a refusal."] = None
    checkpoints: Annotated[int | None, _count, "Checkpoints of the slot after it."] = None
    checkpoint_mib: Annotated[int | None, _count, "Whole MiB of these checkpoints."] = None
    parked: Annotated[int | None, _count, "Conversations in the prompt cache after it."] = None
    parked_mib: Annotated[int | None, _count, "Whole MiB of the prompt cache."] = None
    drafted: Annotated[int | None, _count, "Drafted tokens, as the server counts them."] = None
    accepted: Annotated[int | None, _count, "Accepted drafts, as the server counts them."] = None
    companion: Annotated[int | None, _count, "Tokens of the slot that its companion holds."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shows:
    """The report in a sentence and in numbers: observed and expected results."""

    symptom: Annotated[str, Text(300), "The symptom, in users' words."] = ""
    before: Annotated[Seen, "The step with the symptom."] = field(default_factory=Seen)
    after: Annotated[Seen, "The same on a fixed profile, if any."] = field(default_factory=Seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The network: a preset or own layers, with overridden dimensions."""

    preset: Annotated[str | None, _word, "A preset; `cachesim list presets` names them."] = None
    layers: Annotated[
        tuple[str, ...] | None,
        Each(OneOf(LAYER_KINDS), limits.LAYERS),
        "The layers from first to last, instead of a preset.",
    ] = None
    seed: Annotated[int, Whole(0, 2**63 - 1), "The seed of weights and spans."] = 0
    window: Annotated[int | None, Whole(1, limits.WINDOW), "Positions a window layer sees."] = None
    chunked: Annotated[
        bool | None, YesNo(), "Windows are chunks of `window` positions, as in Llama 4 (mlx-lm)."
    ] = None
    compressed: Annotated[
        bool | None, YesNo(), "Every second window is a compressor's, as in DeepSeek V4 (vllm)."
    ] = None
    vocabulary: Annotated[int | None, Whole(8, limits.VOCABULARY), "How many tokens."] = None
    width: Annotated[int | None, Whole(1, limits.WIDTH), "Numbers per token."] = None
    mlp_width: Annotated[int | None, Whole(0, 4 * limits.WIDTH), "Width inside the MLP."] = None
    heads: Annotated[int | None, Whole(1, 64), "Attention heads."] = None
    kv_heads: Annotated[int | None, Whole(1, 64), "Heads of keys and values."] = None
    head_size: Annotated[int | None, Whole(2, 256), "Numbers per head."] = None
    conv_size: Annotated[int | None, Whole(2, 16), "Taps of a causal convolution."] = None
    state_size: Annotated[int | None, Whole(1, 256), "State per recurrent head."] = None
    inner: Annotated[int | None, Whole(1, 2 * limits.WIDTH), "Recurrent channels."] = None
    groups: Annotated[int | None, Whole(1, 64), "Groups (ssm), key heads (delta)."] = None
    state_heads: Annotated[int | None, Whole(1, 64), "Heads that decay on their own."] = None
    sizes: Annotated[
        Mapping[str, int],
        Table(Whole(0, 2**40), 3),
        "Bytes of a real model, for limits and evictions: `token` (all layers with full attention,"
        " per token), `window` (those with a window), `state` (all recurrent layers, once).",
    ] = field(default_factory=dict)
    mtp_depth: Annotated[int | None, Whole(0, 4), "Layers that draft a further token."] = None
    family: Annotated[
        str | None, _word, "mlx-lm: the model class, where the layers call for several."
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server: engine, releases and flags."""

    name: Annotated[str, Text(limits.NAME), "The engine; `cachesim list engines`."] = ""
    profiles: Annotated[
        tuple[str, ...],
        Each(Text(200), limits.PROFILES),
        "Releases with their patches, as `b9538+24143`.",
    ] = ()
    options: Annotated[
        Mapping[str, Any],
        Table(_scalar, 64),
        "The server's flags under upstream's names, as `ctx_checkpoints`.",
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The rendering of messages as tokens."""

    template: Annotated[str, OneOf(tuple(TEMPLATES)), "The chat template."] = "chatml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message of a chat; `{S}` is replaced by a span's text, `{A.reply}` by A's reply."""

    role: Annotated[str, OneOf(ROLES), "Who speaks."] = ""
    content: Annotated[str, _spans, "The text."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request or action of a client."""

    name: Annotated[str, _word, "Its name; by default the step's number."] = ""
    do: Annotated[str, OneOf(ACTIONS), "The action."] = "complete"
    prompt: Annotated[
        Prompt, _spans_or_ids, "Spans, `A.reply`, pieces such as `S[:50]`, or token ids."
    ] = None
    messages: Annotated[tuple[Turn, ...], "A chat in place of a prompt."] = ()
    suffix: Annotated[
        Prompt, _spans_or_ids, "Infill: the text after the gap; `prompt` is before it."
    ] = None
    query: Annotated[
        int, _count, "Rerank: tokens of the prompt that are the query; the rest is the document."
    ] = 0
    model: Annotated[str, _word, "One of `models`; without it `[model]`."] = ""
    predict: Annotated[
        int | None,
        Whole(-1, limits.PREDICT),
        "Tokens to generate; without it as many as `reply` has, else 8.",
    ] = None
    reply: Annotated[Prompt, _spans_or_ids, "Tokens that are taken instead of sampled ones."] = None
    forced: Annotated[
        bool, YesNo(), "False: a real server is not made to give `reply`; it replied so by itself."
    ] = True
    drafts: Annotated[
        tuple[tuple[int, ...], ...] | None,
        Each(_ids, limits.PREDICT),
        "The companion's proposals, one list per drafting step.",
    ] = None
    slot: Annotated[int, Whole(-1, limits.SLOTS - 1), "The requested slot; -1: any."] = -1
    cache_prompt: Annotated[bool, YesNo(), "False: nothing is to be reused."] = True
    completions: Annotated[int, Whole(1, limits.COPIES), "Completions of the prompt."] = 1
    leaves: Annotated[
        str | None,
        OneOf(LEAVES),
        "The client disconnects while its prompt is prefilled or its reply is generated.",
    ] = None
    held: Annotated[
        int | None,
        _count,
        "Tokens in the slot when the client leaves; a real server's clock decides.",
    ] = None
    parts: Annotated[
        bool, YesNo(), "A real server gets each line of a message as a content part of its own."
    ] = False
    with_previous: Annotated[bool, YesNo(), "Sent together with the step before."] = False
    file: Annotated[
        str | None,
        Text(limits.NAME, FILE_SHAPE, "a plain file name"),
        "The file's name for saving or restoring a slot.",
    ] = None
    of: Annotated[str | None, _word, "The step that a cancel ends; by default the one before."] = (
        None
    )
    turns: Annotated[
        int | None,
        Whole(0, limits.TURNS),
        "Turns of the server's loop before it is sent, together with the step before; a cancel"
        " waits for 1.",
    ] = None
    options: Annotated[
        Mapping[str, Any],
        Table(_request_option, 32),
        "Further fields of the request under upstream's names; of `set-lora`: `lora`; of"
        " `restart`: flags that change.",
    ] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt's token ids, where it is written as such."""
        return self.prompt if isinstance(self.prompt, tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Values expected of a profile, one item per step (or one word for all)."""

    profile: Annotated[str | None, Text(200), "The profile; if not given, every profile."] = None
    cached: Annotated[Counts, Each(_count_or_skip, limits.STEPS), "Cached tokens."] = None
    processed: Annotated[Counts, Each(_count_or_skip, limits.STEPS), "Processed tokens."] = None
    answer: Annotated[Words, _per_step_word, "The verdict on the answer."] = None
    error: Annotated[Words, _per_step_error, "The server's word for a refusal, or 'none'."] = None
    least: Annotated[Counts, Each(_count_or_skip, limits.STEPS), "Fewest cached tokens."] = None
    finding: Annotated[
        Kind | None,
        OneOf(get_args(Kind)),
        "What `cachesim check` must not find in this workload.",
    ] = None
    checkpoints: Annotated[
        tuple[tuple[int, ...] | str, ...] | None,
        _per_step_counts,
        "The tokens of every checkpoint the slot holds after the step.",
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model, a server, steps and expectations."""

    format: Annotated[int, Whole(FORMAT, FORMAT), "The format of this file: 1."] = 0
    name: Annotated[
        str, Text(limits.NAME, NAME_SHAPE, "a name such as 'llama.cpp-24143'"), "Its name."
    ] = ""
    about: Annotated[str, Text(2000), "The story in one or two sentences."] = ""
    kind: Annotated[str | None, OneOf(CLASSES), "The kind of defect."] = None
    source: Annotated[Source, "The report."] = field(default_factory=Source)
    shows: Annotated[Shows, "The reported numbers."] = field(default_factory=Shows)
    model: Annotated[Model, "Which network runs."] = field(default_factory=Model)
    models: Annotated[Mapping[str, Model], "Further models of the server, by name."] = field(
        default_factory=dict
    )
    engine: Annotated[Server, "Which server answers."] = field(default_factory=Server)
    chat: Annotated[Chat, "The chat template."] = field(default_factory=Chat)
    spans: Annotated[
        Mapping[str, int | str | tuple[int, ...]],
        Table(_span, limits.SPANS),
        "Named runs of tokens: a length (drawn from the seed; no two begin with the same token),"
        " a text, or ids.",
    ] = field(default_factory=dict)
    images: Annotated[
        tuple[str, ...],
        Each(_word, limits.SPANS),
        "Spans that are images: the server's keys have a hash of each and not its tokens.",
    ] = ()
    step: Annotated[tuple[Step, ...], "The clients' actions, in order."] = ()
    expect: Annotated[tuple[Expect, ...], "Expected values, per profile."] = ()

    def without_promises(self) -> "Scenario":
        """The scenario without its expectations, for other profiles or flags."""
        return replace(self, expect=(), shows=Shows())

    @property
    def networks(self) -> Mapping[str, Model]:
        """All models by name; the name of `model` is empty."""
        return {"": self.model, **self.models}

    @property
    def model_names(self) -> str:
        """The preset or layers of each model, those of further ones after their names."""
        named = {n: e.preset or " ".join(e.layers or ()) for n, e in self.networks.items()}
        return ", ".join(f"{name}: {model}" if name else model for name, model in named.items())

    @property
    def requests(self) -> int:
        """The number of its completions."""
        return sum(step.do == "complete" for step in self.step)

    @property
    def step_names(self) -> tuple[str, ...]:
        """Each step's name, or its number counted from 1."""
        return tuple(step.name or str(number) for number, step in enumerate(self.step, 1))

    @property
    def story(self) -> str:
        """`about` without the line breaks of the file."""
        return " ".join(self.about.split())


KEYS: Final[Mapping[tuple[type, str], str]] = {(Scenario, "kind"): "class"}
"""Fields whose key in the file is a Python keyword."""

LONGEST: Final[Mapping[type, int]] = {
    Step: limits.STEPS,
    Expect: limits.PROFILES,
    Turn: limits.MESSAGES,
}
"""Most tables of a kind in a list."""


def key_of(cls: type, attribute: str) -> str:
    """The key of a field in the file."""
    return KEYS.get((cls, attribute), attribute)
