"""Networks whose weights are constructed so that they recall facts of their prompt.

    code alice 7413 . code bob 2205 . alice ?         the reply: 7413

A fact is a name followed by a value. At `?` the network recalls the value of the name before it,
and answers `unknown` if its memory has none. Each network keeps facts in one kind of memory:

    recall-dense          cells: an induction head over two attention layers
    recall-swa            cells of a window layer: facts leave with the window
    recall-recurrent      an SSM state with one register per name; the last value stays
    recall-delta          a matrix state of the delta rule, names as keys; the last value stays
    recall-hybrid         an attention layer binds name and value, an SSM state keeps them
    recall-hybrid-delta   an attention layer binds name and value, a matrix state keeps them
    recall-hybrid-swa     a convolution binds name and value, cells of a window layer keep them
    recall-hybrid-mtp     recall-hybrid-delta with an MTP head

Dimensions of the residual stream:

    [ name: 12 | bound name: 12 | halves of a value: 16 + 12 | value? | asks? | one | free: 9 )

An embedding sets the dimensions of its token. The *binding* layer writes the name of the token
before into the bound name. The *memory* layer writes the recalled value into the value dimensions
of `?`, and the head reads it there. All other layers and MLPs keep drawn weights
and write to the free dimensions only: logits depend on every token, the reply on facts alone.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cachesim.errors import SpecError
from cachesim.model.spec import FIRST_PLAIN, ModelSpec

NAMES: Final = (
    "alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy", "kim",
    "leo",
)  # fmt: skip

FILLERS: Final = (
    "code", "the", "of", "is", "and", "please", "note", "report", "today", "again", "there",
    "meeting", "letter", "number", "open", "window", "team", "later", "with", "about",
    "question", "answer", "list", "short", "long", "table", "value", "write", "read", "first",
    "second", "third", "last", "new",
)  # fmt: skip

ASK, STOP, UNKNOWN = FIRST_PLAIN, FIRST_PLAIN + 1, FIRST_PLAIN + 2
FIRST_NAME: Final = FIRST_PLAIN + 3
FIRST_VALUE: Final = FIRST_NAME + len(NAMES)
HALVES: Final = (16, 12)
VALUES: Final = HALVES[0] * HALVES[1]
FIRST_FILLER: Final = FIRST_VALUE + VALUES

WORDS: Final = (
    "?",
    ".",
    "unknown",
    *NAMES,
    *(str(1000 + (6413 + 47 * number) % 9000) for number in range(VALUES)),
    *FILLERS,
)
"""The words of the tokens from `FIRST_PLAIN` on."""

TEXTS: Final = {FIRST_PLAIN + index: f" {word}" for index, word in enumerate(WORDS)}
"""Token texts, each with the space before the word."""

_TOKENS: Final = {word: FIRST_PLAIN + index for index, word in enumerate(WORDS)}


def encode(text: str) -> tuple[int, ...]:
    """The tokens of a text of words."""
    words = text.split()
    for word in words:
        if word not in _TOKENS:
            raise SpecError(
                f"{word!r} is not among the words of a model that recalls facts: write names"
                f" ({NAMES[0]} to {NAMES[-1]}), values (such as {WORDS[FIRST_VALUE - ASK]}), '?',"
                f" '.' or fillers ({', '.join(FILLERS[:4])}, ...)"
            )
    return tuple(_TOKENS[word] for word in words)


def text_of(tokens: Iterable[int]) -> str:
    """Tokens as text; bytes and marks as their numbers."""
    return " ".join(TEXTS.get(token, f" [{token}]")[1:] for token in tokens)


def show_word(token: int) -> str:
    """A token in a sentence."""
    return f'"{text_of((token,))}"'


def is_name(token: int) -> bool:
    """True for a token that is the name of a fact."""
    return FIRST_NAME <= token < FIRST_VALUE


def is_value(token: int) -> bool:
    """True for a token that is the value of a fact."""
    return FIRST_VALUE <= token < FIRST_FILLER


def leaked_from(
    token: int, own: Sequence[int], others: Iterable[tuple[str, Sequence[int]]]
) -> tuple[str, ...]:
    """The names of other requests that contained a value which a request's own tokens do not."""
    if not is_value(token) or token in own:
        return ()
    return tuple(name for name, tokens in others if token in tokens)


WIDTH: Final = 64
_NAME, _BOUND, _VALUE, _IS_VALUE, _ASKS, _ONE, _FREE = 0, 12, 24, 52, 53, 54, 55

_LEVEL: Final = 6.0
"""The constant dimension: large, so that the norm of a row hardly depends on the other ones."""

_UNIT: Final = math.sqrt(WIDTH / (_LEVEL**2 + 4.0))
"""A one in an embedding, after the RMS norm."""

_WHOLE: Final = _UNIT * _LEVEL
"""The constant dimension after the RMS norm."""

_SURE: Final = 20.0
"""Input of a sigmoid or SiLU that is on; its negative is off."""

_ACTIVE: Final = 6.0
"""Input of a SiLU behind a convolution: almost linear there."""

_SHARP: Final = 10.0
"""Norm weight of queries and keys: scores differ by 30 or more, and softmax selects one key."""

_NOISE: Final = 0.1
"""Scale of the outputs of drawn layers."""

_QUICK_PAIRS: Final = range(5)
_DUMMY_PAIR, _MARK_PAIR, _NAME_PAIR = 6, 7, 8
"""Rotary pairs: fast ones separate neighbours, slow ones match contents at any distance."""

Tensor = NDArray[np.float32]


def construct(spec: ModelSpec, weights: dict[str, Tensor]) -> None:
    """Replace drawn weights by those of a network that recalls facts."""
    if (spec.width, spec.vocabulary, spec.head_size) != (WIDTH, 512, 32):
        raise SpecError(
            f"model {spec.name!r}: a network that recalls facts has a width of {WIDTH}, heads of 32"
            f" and 512 tokens; leave width, head_size and vocabulary out"
        )
    maker = _Constructor(spec, weights)
    maker.confine_drawn_layers()
    maker.embedding()
    maker.head()
    bind, memory = _layers(spec)
    for layer in {memory, memory if bind is None else bind}:
        weights[f"blk.{layer}.attn_norm.weight"][:] = 1.0
    match None if bind is None else spec.kind(bind):
        case "attention" | "window":
            maker.bind_by_attention(bind or 0)
        case "conv":
            maker.bind_by_conv(bind or 0)
        case "ssm":
            maker.bind_by_ssm(bind or 0)
    match spec.kind(memory):
        case "attention" | "window":
            maker.recall_by_attention(memory)
        case "delta":
            maker.recall_by_delta(memory, tap=2 if bind is None else 1)
        case _:
            maker.recall_by_registers(memory)


def _layers(spec: ModelSpec) -> tuple[int | None, int]:
    """The layer that binds names to values, None without need, and the one that keeps facts."""
    kinds = spec.layers
    if set(kinds) == {"delta"}:
        return None, 0
    kind = next(kind for kind in ("delta", "ssm", "window", "attention") if kind in kinds)
    memory = len(kinds) - 1 - kinds[::-1].index(kind)
    before = [i for i in range(memory) if kinds[i] != "delta"]
    return next((i for i in before if kinds[i] != kind), before[0]), memory


class _Constructor:
    """The tensors of one network, replaced part by part."""

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def blank(self, name: str) -> Tensor:
        """Zeros in place of a tensor."""
        self.weights[name] = np.zeros_like(self.weights[name])
        return self.weights[name]

    def confine_drawn_layers(self) -> None:
        """Let every layer write to the free dimensions only."""
        exits = ("attn_output.weight", "ssm_out.weight", "out_proj.weight", "ffn_down.weight")
        behind = ("post_attention_norm.weight", "post_ffw_norm.weight")
        for name in self.weights:
            if name.endswith(exits):
                self.weights[name][:_FREE] = 0.0
            if name.endswith((*exits, *behind * self.spec.post_norms)):
                self.weights[name] *= np.float32(_NOISE)

    def embedding(self) -> None:
        """One row per token: its name, its value, its marks, and a drawn code in the free part."""
        table = self.weights["token_embd.weight"]
        table *= self.spec.embedding_scale * 0.3
        table[:, :_FREE] = 0.0
        table[:, _ONE] = _LEVEL
        table[ASK, _ASKS] = 1.0
        table[range(FIRST_NAME, FIRST_VALUE), range(_NAME, _BOUND)] = 1.0
        for value in range(VALUES):
            first, second = divmod(value, HALVES[1])
            row = table[FIRST_VALUE + value]
            row[[_VALUE + first, _VALUE + HALVES[0] + second, _IS_VALUE]] = 1.0
        table /= self.spec.embedding_scale

    def head(self) -> None:
        """Logits: the recalled value at `?`, `unknown` below it, and `.` everywhere else."""
        norm = "token_embd_norm" if "conv" in self.spec.layers else "output_norm"
        self.weights[f"{norm}.weight"][:] = 1.0
        head = self.weights["output.weight"]
        head[:, :_FREE] = 0.0
        head *= _NOISE
        for value in range(VALUES):
            first, second = divmod(value, HALVES[1])
            head[FIRST_VALUE + value, [_VALUE + first, _VALUE + HALVES[0] + second]] = 1.0
        head[UNKNOWN, _ASKS] = 1.5
        head[STOP, _ONE] = 0.6
        head[STOP, _IS_VALUE] = 6.0
        head[STOP, _ASKS] = -6.0

    def pair(self, pair: int) -> tuple[int, int]:
        """The rows of a head that RoPE rotates together."""
        if self.spec.rope == "pairs":
            return 2 * pair, 2 * pair + 1
        return pair, pair + self.spec.head_size // 2

    def name_rows(self) -> list[int]:
        """The rows of a head that carry a name: two in each of the slowest pairs."""
        return [self.pair(_NAME_PAIR + name // 2)[name % 2] for name in range(len(NAMES))]

    def attention(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Blank queries, keys and values of the first head, and the exit (width, queries)."""
        spec, p = self.spec, f"blk.{layer}."
        query, key, value, out = (
            self.blank(f"{p}attn_{name}.weight") for name in ("q", "k", "v", "output")
        )
        if spec.qk_norm:
            for which in "qk":
                self.weights[f"{p}attn_{which}_norm.weight"][:] = _SHARP
        if spec.attention_gate:
            query[spec.head_size : 2 * spec.head_size, _ONE] = _SURE / _WHOLE
        return query, key, value, out

    def keep_scale(self, layer: int, dimensions: slice, norm: float) -> None:
        """Undo a norm behind the attention: rows of that norm keep their scale."""
        if self.spec.post_norms:
            weight = self.weights[f"blk.{layer}.post_attention_norm.weight"]
            weight[dimensions] = norm / math.sqrt(WIDTH)

    def bind_by_attention(self, layer: int) -> None:
        """Attend to the position before, and copy its name.

        The score of a key d positions back is a sum of cos(w (d - 1)): 1 at d = 1 only.
        """
        spec = self.spec
        query, key, value, out = self.attention(layer)
        strength = 1.0 if spec.qk_norm else math.sqrt(60.0 * math.sqrt(spec.head_size))
        for pair in _QUICK_PAIRS:
            angle = spec.rope_base ** (-2 * pair / spec.head_size)
            one, other = self.pair(pair)
            key[one, _ONE] = strength / _WHOLE
            query[one, _ONE] = strength * math.cos(angle) / _WHOLE
            query[other, _ONE] = -strength * math.sin(angle) / _WHOLE
        value[range(len(NAMES)), range(_NAME, _BOUND)] = 1.0 / _UNIT
        out[range(_BOUND, _VALUE), range(len(NAMES))] = 1.0
        self.keep_scale(layer, slice(_BOUND, _VALUE), 1.0)

    def recall_by_attention(self, layer: int) -> None:
        """Attend from `?` to the value bound to the queried name, and copy that value.

        The score of a key: 2 for the name, 1 more for a value. Without a matching value the query
        attends to itself, where no value stands.
        """
        spec = self.spec
        query, key, value, out = self.attention(layer)
        strength = 1.0 if spec.qk_norm else math.sqrt(400.0 * math.sqrt(spec.head_size))
        rows, names = self.name_rows(), range(_BOUND, _VALUE)
        mark, half = self.pair(_MARK_PAIR)[0], math.sqrt(0.5)
        for matrix, dimension in ((query, _ASKS), (key, _IS_VALUE)):
            matrix[rows, names] = strength / _UNIT
            matrix[mark, dimension] = half * strength / _UNIT
        key[self.pair(_DUMMY_PAIR)[0], _ONE] = strength / _WHOLE
        halves = range(_VALUE, _IS_VALUE)
        value[range(len(halves)), halves] = 1.0 / _UNIT
        out[halves, range(len(halves))] = 1.0
        self.keep_scale(layer, slice(_VALUE, _IS_VALUE), math.sqrt(2.0))

    def bind_by_conv(self, layer: int) -> None:
        """Copy the name of the position before with the last tap but one."""
        p, width = f"blk.{layer}.shortconv.", self.spec.width
        entry, taps, out = (
            self.blank(p + name) for name in ("in_proj.weight", "conv.weight", "out_proj.weight")
        )
        for name, bound in enumerate(range(_BOUND, _VALUE), _NAME):
            entry[name, _ONE] = entry[width + name, _ONE] = 1.0 / _WHOLE
            entry[2 * width + name, name] = 1.0 / _UNIT
            taps[name, -2] = 1.0
            out[bound, name] = 1.0

    def ssm(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Blank entry, taps, skip and exit of an SSM layer whose state never changes."""
        p = f"blk.{layer}."
        entry, taps, skip, out = (
            self.blank(p + name)
            for name in ("ssm_in.weight", "ssm_conv1d.weight", "ssm_d", "ssm_out.weight")
        )
        self.blank(p + "ssm_conv1d.bias")
        self.weights[p + "ssm_dt.bias"][:] = 0.0
        self.weights[p + "ssm_a"][:] = -1.0
        self.weights[p + "ssm_norm.weight"][:] = 1.0
        return entry, taps, skip, out

    def bind_by_ssm(self, layer: int) -> None:
        """Copy the name of the position before, past the state, by convolution and skip."""
        spec = self.spec
        entry, taps, skip, out = self.ssm(layer)
        inner = spec.inner
        entry[inner + spec.conv_channels :, _ONE] = -1.5 * _SURE / _WHOLE  # no step of the state
        for name, bound in enumerate(range(_BOUND, _VALUE), _NAME):
            entry[name, _ONE] = _SURE / _WHOLE
            entry[inner + name, name] = _ACTIVE / _UNIT
            taps[name, -2] = 1.0
            out[bound, name] = 1.0 / math.sqrt(inner / spec.groups)
        skip[:] = 1.0

    def recall_by_registers(self, layer: int) -> None:
        """Keep the last value of each name in the state head of that name.

        A head takes a step, which overwrites its register, at a value behind its name; and its gate
        opens at a `?` behind its name.
        """
        spec = self.spec
        entry, taps, _, out = self.ssm(layer)
        inner, size = spec.inner, spec.inner // spec.state_heads
        taps[:, -1] = 1.0
        halves = range(_VALUE, _IS_VALUE)
        both = slice(2 * inner, 2 * inner + 2 * spec.groups * spec.state_size)
        entry[both, _ONE] = _ACTIVE / _WHOLE
        steps = inner + spec.conv_channels
        on = 3 * _SURE  # both inputs: on / 2; one: -on / 2
        for head, name in enumerate(range(_BOUND, _VALUE)):
            first = head * size
            gates = slice(first, first + len(halves))
            entry[gates, name] = entry[gates, _ASKS] = on / _UNIT
            entry[gates, _ONE] = -1.5 * on / _WHOLE
            entry[steps + head, [name, _IS_VALUE]] = on / _UNIT
            entry[steps + head, _ONE] = -1.5 * on / _WHOLE
            channels = range(first, first + len(halves))
            entry[[inner + channel for channel in channels], halves] = _ACTIVE / _UNIT
            out[halves, channels] = 1.0 / math.sqrt(inner / spec.groups / 2)

    def recall_by_delta(self, layer: int, *, tap: int) -> None:
        """Write a value under its name as the key, and read with the queried name.

        `tap`: the age of the name in the convolution, from 1: 2 where no layer has bound it.
        """
        spec, p = self.spec, f"blk.{layer}."
        entry, taps, gate, beta, out = (
            self.blank(p + name)
            for name in (
                "attn_qkv.weight",
                "ssm_conv1d.weight",
                "attn_gate.weight",
                "ssm_beta.weight",
                "ssm_out.weight",
            )
        )
        self.blank(p + "ssm_alpha.weight")
        self.weights[p + "ssm_dt.bias"][:] = -1.5 * _SURE  # no decay
        self.weights[p + "ssm_a"][:] = -1.0
        self.weights[p + "ssm_norm.weight"][:] = 1.0
        size = spec.state_size
        names = range(_BOUND, _VALUE) if tap == 1 else range(_NAME, _BOUND)
        keys = 2 * spec.groups * size  # rows of queries and keys, in groups
        for start in range(0, keys, size):
            entry[range(start, start + len(names)), names] = _ACTIVE / _UNIT
        taps[:keys, -tap] = 1.0
        halves = range(_VALUE, _IS_VALUE)
        entry[range(keys, keys + len(halves)), halves] = _ACTIVE / _UNIT
        taps[keys:, -1] = 1.0
        beta[:, _IS_VALUE] = 2 * _SURE / _UNIT
        beta[:, _ONE] = -_SURE / _WHOLE
        gate[:, _ASKS] = 2 * _SURE / _UNIT
        gate[:, _ONE] = -_SURE / _WHOLE
        out[halves, range(len(halves))] = 1.0 / (_SURE * math.sqrt(size))
