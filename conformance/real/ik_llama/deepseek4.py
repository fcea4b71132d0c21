"""A toy of DeepSeek 4 and its predictor: the model on which `--swa-compress` refuses a cut.

Three layers attend within a window, one of them beside a summary of 4 and one of 128 tokens. The
predictor is a file of its own with a single layer, given to the server as `-md`. All weights are
random: the server's replies are compared with its own, never with the simulator's.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cachesim.prove.llama_cpp.gguf import (
    F32,
    Keys,
    Value,
    f32,
    flag,
    i32,
    text,
    tokenizer_keys,
    u32,
    write_gguf,
)

FAMILY: Final = "deepseek4"
WIDTH: Final = 64
HEADS: Final = 4
HEAD: Final = 64
LOW_RANK: Final = 32
GROUPS: Final = 2
STREAMS: Final = 4
"""Parallel residual streams, mixed before and after each block (`hyper_connection`)."""

EXPERTS: Final = 4
HIDDEN: Final = 32
RATIOS: Final = (0, 4, 128, 0)
"""Tokens that a layer sums up into one row; the last layer is the predictor's."""

LAYERS: Final = 3
SQRT_SOFTPLUS: Final = 4
PLAIN: Final = 265
"""The first token that may be sampled: those before are bytes and controls."""

CONTEXT: Final = 65536

Tensors = dict[str, NDArray[Any]]


def write_target(path: Path, vocabulary: int, window: int) -> None:
    """Write the model itself."""
    _write(path, _Drawn(vocabulary), range(LAYERS), window=window, predicts=False)


def write_predictor(path: Path, vocabulary: int, window: int) -> None:
    """Write its predictor: the layer behind those of the model, and no other."""
    _write(path, _Drawn(vocabulary), range(LAYERS, LAYERS + 1), window=window, predicts=True)


def _write(path: Path, drawn: "_Drawn", layers: range, *, window: int, predicts: bool) -> None:
    drawn.ends()
    for layer in layers:
        drawn.layer(layer)
        if predicts:
            drawn.joins(layer)
    keys = _keys(drawn.vocabulary, layers.stop, window, predicts=predicts)
    with path.open("wb") as out:
        write_gguf(out, keys, drawn.tensors)


def _keys(vocabulary: int, layers: int, window: int, *, predicts: bool) -> Keys:
    own: dict[str, Value] = {
        "context_length": u32(CONTEXT),
        "embedding_length": u32(WIDTH),
        "block_count": u32(layers),
        "vocab_size": u32(vocabulary),
        "feed_forward_length": u32(HIDDEN),
        "attention.layer_norm_rms_epsilon": f32(1e-6),
        "attention.head_count": u32(HEADS),
        "attention.head_count_kv": u32(1),
        "attention.key_length": u32(HEAD),
        "attention.value_length": u32(HEAD),
        "attention.q_lora_rank": u32(LOW_RANK),
        "attention.kv_lora_rank": u32(HEAD),
        "attention.indexer.head_count": u32(2),
        "attention.indexer.key_length": u32(HEAD),
        "attention.indexer.top_k": u32(64),
        "attention.sliding_window": u32(window),
        "attention.output_group_count": u32(GROUPS),
        "attention.output_lora_rank": u32(LOW_RANK),
        "attention.compress_ratios": i32(RATIOS[:layers]),
        "rope.dimension_count": u32(HEAD // 2),
        "rope.freq_base": f32(10000.0),
        "rope.freq_base_swa": f32(10000.0),
        "expert_feed_forward_length": u32(HIDDEN),
        "expert_count": u32(EXPERTS),
        "expert_used_count": u32(2),
        "expert_shared_count": u32(1),
        "expert_weights_scale": f32(1.0),
        "expert_weights_norm": flag(value=True),
        "expert_gating_func": u32(SQRT_SOFTPLUS),
        "swiglu_clamp_exp": f32([10.0] * layers),
        "hyper_connection.count": u32(STREAMS),
        "hyper_connection.sinkhorn_iterations": u32(3),
        "hyper_connection.epsilon": f32(1e-6),
        "hash_layer_count": u32(0),
    }
    if predicts:
        own["nextn_predict_layers"] = u32(1)
    return {
        "general.architecture": text(FAMILY),
        "general.name": text(FAMILY),
        "general.file_type": u32(0),
        **{f"{FAMILY}.{name}": value for name, value in own.items()},
        **tokenizer_keys(vocabulary, {}),
    }


class _Drawn:
    """Tensors, drawn in the order in which they are named; sizes as the format has them."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.tensors: Tensors = {}
        self._rng = np.random.default_rng(5)

    def _put(self, name: str, values: NDArray[Any]) -> None:
        self.tensors[name] = np.ascontiguousarray(values, dtype=F32)

    def _matrix(self, name: str, *sizes: int, gain: float = 1.0) -> None:
        deviation = gain / sizes[0] ** 0.5
        self._put(name, self._rng.normal(0, deviation, size=sizes[::-1]))

    def _norm(self, name: str, size: int) -> None:
        self._put(name, 1 + 0.1 * self._rng.normal(size=size))

    def ends(self) -> None:
        """The embedding, the output, and the head that joins the residual streams."""
        self._put("token_embd.weight", self._rng.normal(size=(self.vocabulary, WIDTH)))
        self._norm("output_norm.weight", WIDTH)
        output = self._rng.normal(0, 3 / WIDTH**0.5, size=(self.vocabulary, WIDTH))
        output[:PLAIN] = 0
        self._put("output.weight", output)
        self._matrix("hc_head_fn.weight", STREAMS * WIDTH, STREAMS)
        self._put("hc_head_base.weight", np.zeros(STREAMS))
        self._put("hc_head_scale.weight", np.ones(1))

    def layer(self, number: int) -> None:
        """One layer: attention of low rank, experts, and the mixing of the streams around both."""
        at = f"blk.{number}."
        self._norm(f"{at}attn_norm.weight", WIDTH)
        self._put(f"{at}attn_sinks.weight", np.zeros(HEADS))
        self._matrix(f"{at}attn_q_a.weight", WIDTH, LOW_RANK)
        self._norm(f"{at}attn_q_a_norm.weight", LOW_RANK)
        self._matrix(f"{at}attn_q_b.weight", LOW_RANK, HEADS * HEAD, gain=2)
        self._matrix(f"{at}attn_kv.weight", WIDTH, HEAD, gain=2)
        self._norm(f"{at}attn_kv_a_norm.weight", HEAD)
        self._matrix(f"{at}attn_output_a.weight", HEADS * HEAD // GROUPS, GROUPS * LOW_RANK)
        self._matrix(f"{at}attn_output_b.weight", GROUPS * LOW_RANK, WIDTH, gain=2)
        for part in ("attn", "ffn"):
            mixed = STREAMS * STREAMS + 2 * STREAMS
            self._matrix(f"{at}hc_{part}_fn.weight", STREAMS * WIDTH, mixed)
            self._put(f"{at}hc_{part}_base.weight", 0.1 * self._rng.normal(size=mixed))
            self._put(f"{at}hc_{part}_scale.weight", np.ones(3))
        self._norm(f"{at}ffn_norm.weight", WIDTH)
        self._matrix(f"{at}ffn_gate_inp.weight", WIDTH, EXPERTS, gain=3)
        self._put(f"{at}exp_probs_b.bias", np.zeros(EXPERTS))
        for part, size, out in (
            ("gate", WIDTH, HIDDEN),
            ("up", WIDTH, HIDDEN),
            ("down", HIDDEN, WIDTH),
        ):
            self._matrix(f"{at}ffn_{part}_exps.weight", size, out, EXPERTS)
            self._matrix(f"{at}ffn_{part}_shexp.weight", size, out)
        self._summary(at, RATIOS[number])

    def _summary(self, at: str, ratio: int) -> None:
        """The tensors that sum up `ratio` tokens; with 4 an index chooses among the sums."""
        doubled = 2 if ratio == 4 else 1
        for part in {0: (), 4: ("attn", "indexer"), 128: ("attn",)}[ratio]:
            for name in ("kv", "gate"):
                self._matrix(f"{at}{part}_compressor_{name}.weight", WIDTH, doubled * HEAD)
            places = 0.1 * self._rng.normal(size=(ratio, doubled * HEAD))
            self._put(f"{at}{part}_compressor_ape.weight", places)
            self._norm(f"{at}{part}_compressor_norm.weight", HEAD)
        if ratio == 4:
            self._matrix(f"{at}indexer.attn_q_b.weight", LOW_RANK, 2 * HEAD)
            self._matrix(f"{at}indexer.proj.weight", WIDTH, 2)

    def joins(self, number: int) -> None:
        """What joins a token's embedding to the model's last hidden row."""
        at = f"blk.{number}.nextn."
        joined = 0.01 * self._rng.normal(size=(WIDTH, 2 * WIDTH))
        joined[:, :WIDTH] += np.eye(WIDTH)
        self._put(f"{at}eh_proj.weight", joined)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self._put(f"{at}{name}.weight", np.ones(WIDTH))
