"""What a model is: its layers, widths and norms, and the presets that follow real families."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

LayerKind: TypeAlias = Literal["attention", "window", "ssm", "delta", "conv"]
RopeStyle: TypeAlias = Literal["none", "pairs", "halves"]
Activation: TypeAlias = Literal["silu", "gelu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A network, completely described: equal specs are equal networks, bit for bit."""

    name: str = "custom"
    layers: tuple[LayerKind, ...]
    seed: int = 0
    vocabulary: int = 512
    width: int = 64
    mlp_width: int = 128  # 0: layers without an MLP (Mamba-2)
    activation: Activation = "silu"
    norm_epsilon: float = 1e-6
    post_norms: bool = False  # a norm after attention and MLP too (Gemma 3)
    embedding_scale: float = 1.0
    tied_head: bool = False

    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    window: int = 0  # positions a window layer sees, the query's own included
    rope: RopeStyle = "pairs"
    rope_base: float = 10000.0
    qk_norm: bool = False
    attention_gate: bool = False  # the query projection carries a sigmoid gate (Qwen3-Next)

    conv_size: int = 4  # taps of the causal convolution of ssm, delta and conv layers
    state_size: int = 16  # per head of a recurrent layer
    inner: int = 128  # channels of a recurrent layer's values
    groups: int = 2  # groups of B and C (ssm), key heads (delta)
    state_heads: int = 8  # heads that decay on their own (ssm), value heads (delta)

    mtp_depth: int = 0  # extra layers that guess the token after the next
    mix: float = 1.0  # scales what each block adds to the residual stream
