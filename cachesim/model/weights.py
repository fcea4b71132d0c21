"""Weights from the seed alone, under the tensor names of the real files.

Every tensor has a stream of its own, named by the tensor, so that adding a layer changes no
other. Values are float32: a GGUF file written from them carries the same numbers. Shapes are as
NumPy sees them, (out, in); GGUF lists dimensions the other way round.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cachesim.model.recall import construct
from cachesim.model.spec import ModelSpec

Tensor: TypeAlias = NDArray[np.float32]
Weights: TypeAlias = dict[str, Tensor]

NORM_SPREAD = 0.1
"""Norm weights are around 1, so that a forgotten norm weight shows."""


def draw(spec: ModelSpec) -> Weights:
    """All tensors of a model, by name, in the order of the file."""
    drawer = _Drawer(spec)
    drawer.embedding()
    for layer, kind in enumerate(spec.layers):
        drawer.norm(f"blk.{layer}.attn_norm.weight", spec.width)
        match kind:
            case "attention" | "window":
                drawer.attention(layer)
            case "ssm":
                drawer.ssm(layer)
            case "delta":
                drawer.delta(layer)
            case "conv":
                drawer.short_conv(layer)
        drawer.mlp(layer)
    if spec.mtp_layer is not None:
        drawer.mtp(spec.mtp_layer)
    if spec.recall:
        construct(spec, drawer.weights)
    return drawer.weights


def output_norm_name(spec: ModelSpec) -> str:
    """The last norm; LFM2 files keep it under another name."""
    return "token_embd_norm.weight" if "conv" in spec.layers else "output_norm.weight"


def mlp_norm_name(spec: ModelSpec, layer: int) -> str:
    """The name of the norm before the MLP, which differs for Qwen."""
    of_qwen = spec.attention_gate or "delta" in spec.layers
    return f"blk.{layer}.{'post_attention_norm' if of_qwen else 'ffn_norm'}.weight"


@dataclass(slots=True)
class _Drawer:
    spec: ModelSpec
    weights: Weights = field(default_factory=dict)

    def embedding(self) -> None:
        spec = self.spec
        self.normal(
            "token_embd.weight", spec.vocabulary, spec.width, deviation=1 / spec.embedding_scale
        )
        self.norm(output_norm_name(spec), spec.width)
        if not spec.tied_head:
            self.normal("output.weight", spec.vocabulary, spec.width, gain=3.0)
            self.weights["output.weight"][: spec.first_plain] = 0.0

    def attention(self, layer: int) -> None:
        spec, p = self.spec, f"blk.{layer}."
        queries = spec.heads * spec.head_size
        keys = spec.kv_heads * spec.head_size
        gain = 2.0 if spec.attention_gate else 1.0
        self.normal(p + "attn_q.weight", queries * (1 + spec.attention_gate), spec.width, gain=2.0)
        self.normal(p + "attn_k.weight", keys, spec.width, gain=2.0)
        self.normal(p + "attn_v.weight", keys, spec.width)
        self.normal(p + "attn_output.weight", spec.width, queries, gain=gain * spec.mix)
        if spec.qk_norm:
            self.norm(p + "attn_q_norm.weight", spec.head_size, around=1.5)
            self.norm(p + "attn_k_norm.weight", spec.head_size, around=1.5)
        if spec.post_norms:
            self.norm(p + "post_attention_norm.weight", spec.width)

    def ssm(self, layer: int) -> None:
        spec, p = self.spec, f"blk.{layer}."
        channels, heads = spec.conv_channels, spec.state_heads
        self.normal(p + "ssm_in.weight", spec.inner + channels + heads, spec.width)
        self.normal(p + "ssm_conv1d.weight", channels, spec.conv_size)
        self.normal(p + "ssm_conv1d.bias", channels, deviation=0.1)
        self.step_bias(p + "ssm_dt.bias", heads)
        self.decay(p + "ssm_a", (heads, 1), slowest=0.3, fastest=6.0)
        self.norm(p + "ssm_d", heads, 1, around=0.5)
        self.norm(p + "ssm_norm.weight", spec.groups, spec.inner // spec.groups)
        self.normal(p + "ssm_out.weight", spec.width, spec.inner, gain=spec.mix)

    def delta(self, layer: int) -> None:
        spec, p = self.spec, f"blk.{layer}."
        heads = spec.state_heads
        self.normal(p + "attn_qkv.weight", spec.conv_channels, spec.width)
        self.normal(p + "attn_gate.weight", spec.inner, spec.width)
        self.normal(p + "ssm_conv1d.weight", spec.conv_channels, spec.conv_size)
        self.step_bias(p + "ssm_dt.bias", heads)
        self.decay(p + "ssm_a", (heads,), slowest=0.3, fastest=4.0)
        self.normal(p + "ssm_beta.weight", heads, spec.width)
        self.normal(p + "ssm_alpha.weight", heads, spec.width)
        self.norm(p + "ssm_norm.weight", spec.state_size)
        self.normal(p + "ssm_out.weight", spec.width, spec.inner, gain=spec.mix)

    def short_conv(self, layer: int) -> None:
        spec, p = self.spec, f"blk.{layer}.shortconv."
        self.normal(p + "conv.weight", spec.width, spec.conv_size)
        self.normal(p + "in_proj.weight", 3 * spec.width, spec.width)
        self.normal(p + "out_proj.weight", spec.width, spec.width, gain=spec.mix)

    def mlp(self, layer: int) -> None:
        spec, p = self.spec, f"blk.{layer}."
        if not spec.mlp_width:
            return
        self.norm(mlp_norm_name(spec, layer), spec.width)
        self.normal(p + "ffn_gate.weight", spec.mlp_width, spec.width)
        self.normal(p + "ffn_up.weight", spec.mlp_width, spec.width)
        self.normal(p + "ffn_down.weight", spec.width, spec.mlp_width, gain=spec.mix)
        if spec.post_norms:
            self.norm(p + "post_ffw_norm.weight", spec.width)

    def mtp(self, layer: int) -> None:
        """A further attention block; its entry copies the token's embedding, nearly."""
        spec, p = self.spec, f"blk.{layer}."
        width = spec.width
        self.norm(p + "attn_norm.weight", width)
        self.attention(layer)
        self.mlp(layer)
        self.normal(p + "nextn.eh_proj.weight", width, 2 * width, deviation=0.05 * spec.mix)
        entry = self.weights[p + "nextn.eh_proj.weight"]
        entry[:, :width] += np.eye(width, dtype=np.float32)
        self.weights[p + "nextn.enorm.weight"] = np.ones(width, np.float32)
        self.weights[p + "nextn.hnorm.weight"] = np.ones(width, np.float32)
        self.norm(p + "nextn.shared_head_norm.weight", width)

    def normal(
        self, name: str, *shape: int, deviation: float | None = None, gain: float = 1.0
    ) -> None:
        """Bell-shaped values; by default of the deviation that keeps the input's scale."""
        scale = 1 / math.sqrt(shape[-1]) if deviation is None else deviation
        self.weights[name] = (self.bell(name, shape) * (scale * gain)).astype(np.float32)

    def norm(self, name: str, *shape: int, around: float = 1.0) -> None:
        """Values near 1 (or `around`)."""
        self.weights[name] = (around + NORM_SPREAD * self.bell(name, shape)).astype(np.float32)

    def step_bias(self, name: str, heads: int) -> None:
        """Biases whose softplus is between 0.003 and 0.3: the steps of a slow state."""
        steps = (math.exp(u) for u in self.between(name, heads, math.log(0.003), math.log(0.3)))
        bias = [step + math.log(-math.expm1(-step)) for step in steps]
        self.weights[name] = np.array(bias, np.float32)

    def decay(self, name: str, shape: tuple[int, ...], *, slowest: float, fastest: float) -> None:
        """Negative rates, spread evenly in their logarithm."""
        logs = self.between(name, math.prod(shape), math.log(slowest), math.log(fastest))
        rates = [-math.exp(u) for u in logs]
        self.weights[name] = np.array(rates, np.float32).reshape(shape)

    def between(self, name: str, count: int, low: float, high: float) -> Iterator[float]:
        """Evenly spread numbers in [low, high)."""
        for word in self.words(name, count):
            yield low + (high - low) * (int(word) >> 11) / 2**53

    def bell(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """The sum of four 16-bit draws, centred, with deviation 1: exact on every machine."""
        parts = self.words(name, math.prod(shape)).view(np.uint16).reshape(-1, 4)
        centred = parts.astype(np.int64).sum(axis=1) - 2 * 65_535
        values: NDArray[np.float64] = centred * (math.sqrt(3.0) / 65_536)
        return values.reshape(shape)

    def words(self, name: str, count: int) -> NDArray[np.uint64]:
        """Raw words of the tensor's own stream: PCG64 keeps them stable."""
        stream = np.random.PCG64([self.spec.seed, zlib.crc32(name.encode())])
        return np.asarray(stream.random_raw(count), dtype=np.uint64)
