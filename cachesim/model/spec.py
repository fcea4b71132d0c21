"""The spec of a model: its layers, widths and norms, and the bytes its cells and rows take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cachesim.errors import LimitError, SpecError

LayerKind: TypeAlias = Literal["attention", "window", "ssm", "delta", "conv"]
RopeStyle: TypeAlias = Literal["none", "pairs", "halves"]
Activation: TypeAlias = Literal["silu", "gelu", "gelu-table"]

ATTENTION_KINDS: Final = ("attention", "window")
RECURRENT_KINDS: Final = ("ssm", "delta", "conv")

F16_BYTES: Final = 2  # keys and values of the real servers, by default
F32_BYTES: Final = 4  # recurrent rows of the real servers

LARGEST: Final[dict[str, int]] = {
    "vocabulary": 65_536,
    "width": 4_096,
    "mlp_width": 16_384,
    "heads": 256,
    "kv_heads": 256,
    "head_size": 512,
    "window": 1 << 30,
    "conv_size": 64,
    "state_size": 512,
    "inner": 16_384,
    "groups": 256,
    "state_heads": 1_024,
    "seed": (1 << 63) - 1,
}
"""The stated limits: past these a toy is no longer a toy."""

COMPRESSOR_WINDOW: Final = 8
"""Tokens of two groups of 4, which a compressor of DeepSeek V4 makes one key of."""

MOST_BYTES: Final = 1 << 40
MOST_LAYERS: Final = 128

FIRST_PLAIN: Final = 265
"""The first id of a 512-word vocabulary that is not a byte, a role or a control token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The bytes of another model's memory, all layers of a kind together."""

    token: int = 0  # bytes per token of all layers with full attention
    window: int = 0  # bytes per token of all layers with a window
    state: int = 0  # bytes of one sequence's recurrent state

    def __post_init__(self) -> None:
        for name in ("token", "window", "state"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MOST_BYTES:
                msg = f"sizes: {name} is {value!r}; write a number of bytes up to {MOST_BYTES}"
                raise SpecError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A network, completely described: equal specs are equal networks, bit for bit."""

    name: str = "custom"
    layers: tuple[LayerKind, ...]
    seed: int = 0
    vocabulary: int = 512
    width: int = 64
    mlp_width: int = 128  # 0: layers without an MLP (Mamba-2)
    activation: Activation = "silu"  # gelu-table: as ggml looks it up, mlx computes it
    norm_epsilon: float = 1e-6
    post_norms: bool = False  # a norm after attention and MLP too (Gemma 3)
    embedding_scale: float = 1.0
    tied_head: bool = False

    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    window: int = 0  # positions a window layer sees, the query's own included
    chunked: bool = False  # windows are chunks of this many positions (Llama 4); see `turns`
    compressed: bool = False  # every second window is a compressor's (DeepSeek V4)
    rope: RopeStyle = "pairs"
    rope_base: float = 10000.0
    qk_norm: bool = False
    attention_gate: bool = False  # the query projection carries a sigmoid gate (Qwen3-Next)

    conv_size: int = 4  # taps of the causal convolution of ssm, delta and conv layers
    state_size: int = 16  # per head of a recurrent layer
    inner: int = 128  # channels of a recurrent layer's values
    groups: int = 2  # groups of B and C (ssm), key heads (delta)
    state_heads: int = 8  # heads that decay on their own (ssm), value heads (delta)

    family: str = ""  # the model class of mlx-lm; "": the one that the layers call for

    sizes: Sizes | None = None  # bytes of another model, which decide what is evicted

    mtp_depth: int = 0  # extra layers that guess the token after the next
    mix: float = 1.0  # scales what each block adds to the residual stream
    recall: bool = False  # weights by construction: facts of the prompt are recalled

    def __post_init__(self) -> None:
        """Refuse a spec that cannot be built, before any allocation."""
        if not isinstance(self.layers, tuple) or not self.layers:
            raise _refuse(
                self, "layers", 'name at least one layer, as in ("attention", "attention")'
            )
        if len(self.layers) > MOST_LAYERS:
            msg = f"model {self.name!r} has {len(self.layers)} layers; {MOST_LAYERS} is the most"
            raise LimitError(msg)
        kinds = get_args(LayerKind)
        for kind in self.layers:
            if kind not in kinds:
                raise _refuse(self, "layers", f"{kind!r} is none of {', '.join(kinds)}")
        if self.rope not in get_args(RopeStyle):
            raise _refuse(self, "rope", f"write one of {', '.join(get_args(RopeStyle))}")
        if self.activation not in get_args(Activation):
            raise _refuse(self, "activation", f"write one of {', '.join(get_args(Activation))}")
        _check_sizes(self)
        _check_attention(self)
        _check_recurrent(self)
        if self.mtp_depth not in {0, 1}:
            raise _refuse(
                self, "mtp_depth", "write 0 or 1; real heads of this family have one layer"
            )
        if self.post_norms and "delta" in self.layers:
            raise _refuse(
                self, "post_norms", "no family has them beside delta layers; leave them off"
            )
        for field in ("norm_epsilon", "mix", "embedding_scale"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise _refuse(self, field, "write a finite number above 0")
        if not (math.isfinite(self.rope_base) and self.rope_base > 1):
            raise _refuse(self, "rope_base", "write a finite number above 1")

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers whose cells live as long as the sequence."""
        return tuple(i for i, kind in enumerate(self.layers) if kind == "attention")

    @property
    def window_layers(self) -> tuple[int, ...]:
        """The layers whose cells may be dropped once the window has passed."""
        return tuple(i for i, kind in enumerate(self.layers) if kind == "window")

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        """The layers that keep one row per sequence."""
        return tuple(i for i, kind in enumerate(self.layers) if kind in RECURRENT_KINDS)

    @property
    def mtp_layer(self) -> int | None:
        """The number of the MTP layer, which follows the last main layer, or None."""
        return len(self.layers) if self.mtp_depth else None

    @property
    def first_plain(self) -> int:
        """The first id that greedy decoding may yield; rows of the head below it are zero."""
        return FIRST_PLAIN if self.vocabulary > FIRST_PLAIN and not self.tied_head else 0

    @property
    def reach(self) -> int | None:
        """The number of trailing tokens that can matter for the last logits; None: all of them."""
        if set(self.layers) & {"attention", "ssm", "delta"}:
            return None
        conv = self.conv_size - 1
        kinds = enumerate(self.layers)
        return 1 + sum(conv if kind == "conv" else self.window_of(at) - 1 for at, kind in kinds)

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution of ssm and delta layers."""
        return self.inner + 2 * self.groups * self.state_size

    def turns(self, layer: int) -> bool:
        """True if a layer's keys are turned; beside chunked layers only those of the chunks are."""
        return self.rope != "none" and not (self.chunked and self.kind(layer) == "attention")

    def window_of(self, layer: int) -> int:
        """Positions that a layer with a window sees."""
        states = self.compressed and layer in self.window_layers[1::2]
        return COMPRESSOR_WINDOW if states else self.window

    def conv_row(self, layer: int) -> int:
        """Numbers of a layer's convolution state (upstream: n_embd_r)."""
        kind = self.kind(layer)
        if kind == "conv":
            return (self.conv_size - 1) * self.width
        return (self.conv_size - 1) * self.conv_channels if kind in RECURRENT_KINDS else 0

    def state_row(self, layer: int) -> int:
        """Numbers of a layer's recurrent state proper (upstream: n_embd_s)."""
        return self.state_size * self.inner if self.kind(layer) in {"ssm", "delta"} else 0

    def key_bytes(self, layer: int) -> int:
        """Bytes of one cell's keys on the real server (f16)."""
        kind = self.kind(layer)
        if self.sizes is not None:
            return self._share(layer, {"attention": self.sizes.token, "window": self.sizes.window})
        return F16_BYTES * self.kv_heads * self.head_size if kind in ATTENTION_KINDS else 0

    def value_bytes(self, layer: int) -> int:
        """Bytes of one cell's values on the real server (f16)."""
        return 0 if self.sizes is not None else self.key_bytes(layer)

    def _share(self, layer: int, sizes: Mapping[str, int]) -> int:
        kind = self.kind(layer)
        return sizes.get(kind, 0) if layer == (*self.layers, kind).index(kind) else 0

    def conv_bytes(self, layer: int) -> int:
        """Bytes of one row's convolution state on the real server (f32; upstream: R)."""
        if self.sizes is not None:
            return 0
        return F32_BYTES * self.conv_row(layer)

    def state_bytes(self, layer: int) -> int:
        """Bytes of one row's recurrent state on the real server (f32; upstream: S)."""
        if self.sizes is not None:
            first = next((i for i, kind in enumerate(self.layers) if kind in RECURRENT_KINDS), -1)
            return self.sizes.state if layer == first else 0
        return F32_BYTES * self.state_row(layer)

    def kind(self, layer: int) -> LayerKind:
        """The kind of a layer; the MTP layer counts as attention."""
        if self.mtp_depth and layer == len(self.layers):
            return "attention"
        return self.layers[layer]


def _refuse(spec: ModelSpec, field: str, remedy: str) -> SpecError:
    value = getattr(spec, field)
    return SpecError(f"model {spec.name!r}: {field} = {value!r} cannot be built; {remedy}")


def _check_sizes(spec: ModelSpec) -> None:
    may_be_zero = {"window", "mlp_width", "seed"}
    for field, most in LARGEST.items():
        value = getattr(spec, field)
        if type(value) is not int:
            raise _refuse(spec, field, "write a whole number")
        least = 0 if field in may_be_zero else 1
        if value < least:
            raise _refuse(spec, field, f"write {least} or more")
        if value > most:
            raise LimitError(f"model {spec.name!r}: {field} = {value} is past the limit of {most}")
    if spec.vocabulary < 2:
        raise _refuse(spec, "vocabulary", "write 2 or more")


def _check_attention(spec: ModelSpec) -> None:
    if spec.chunked and "window" not in spec.layers:
        raise _refuse(spec, "chunked", "only layers with a window see chunks: leave it out")
    windows = spec.layers.count("window")
    if spec.compressed and (spec.chunked or windows < 2 or "attention" not in spec.layers):
        raise _refuse(spec, "compressed", "it takes full attention and two layers with windows")
    if not set(spec.layers) & set(ATTENTION_KINDS) and not spec.mtp_depth:
        return
    if spec.heads % spec.kv_heads:
        raise _refuse(spec, "kv_heads", f"write a divisor of heads = {spec.heads}")
    if spec.rope != "none" and spec.head_size % 2:
        raise _refuse(spec, "head_size", 'RoPE turns pairs: write an even number, or rope = "none"')
    if "window" in spec.layers and spec.window < 1:
        raise _refuse(spec, "window", "window layers need a window of 1 or more")


def _check_recurrent(spec: ModelSpec) -> None:
    kinds = set(spec.layers)
    if kinds & set(RECURRENT_KINDS) and spec.conv_size < 2:
        raise _refuse(spec, "conv_size", "a convolution state needs 2 taps or more")
    if not kinds & {"ssm", "delta"}:
        return
    if spec.inner % spec.state_heads:
        raise _refuse(spec, "state_heads", f"write a divisor of inner = {spec.inner}")
    if spec.state_heads % spec.groups:
        raise _refuse(spec, "groups", f"write a divisor of state_heads = {spec.state_heads}")
    if "delta" in kinds and spec.inner != spec.state_heads * spec.state_size:
        square = spec.state_heads * spec.state_size
        raise _refuse(spec, "inner", f"delta layers keep square states: write inner = {square}")
