"""The simulator's own networks as GGUF files that llama.cpp loads: same weights, same answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from cachesim.engines.llamacpp.options import TRAINED_CONTEXT
from cachesim.errors import SpecError
from cachesim.model.adapters import RANK, deltas
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import draw
from cachesim.real.llama_cpp.gguf_file import Value, f32, i32, text, u32, write_gguf
from cachesim.real.llama_cpp.vocabulary import tokenizer_keys

Keys: TypeAlias = dict[str, Value]

ROPE_SECTIONS: Final = (3, 3, 2, 0)
"""How Qwen 3.5 splits its rotary pairs among time, height and width; text turns them all alike."""


def write_model(spec: ModelSpec, path: Path) -> None:
    """Write a network as the file of the family it follows."""
    keys = model_keys(spec)
    with path.open("wb") as out:
        write_gguf(out, keys, draw(spec))


def write_adapter(spec: ModelSpec, name: str, path: Path) -> None:
    """Write an adapter of a network as the file that `--lora` takes; its strength there is 1."""
    keys = {
        "general.architecture": text(architecture(spec)),
        "general.type": text("adapter"),
        "adapter.type": text("lora"),
        "adapter.lora.alpha": f32(float(RANK)),
    }
    with path.open("wb") as out:
        write_gguf(out, keys, deltas(spec, name))


def model_keys(spec: ModelSpec) -> Keys:
    """All keys of a model's file."""
    family = architecture(spec)
    own = {f"{family}.{name}": value for name, value in _family_keys(spec, family).items()}
    return {
        "general.architecture": text(family),
        "general.name": text(spec.name),
        "general.file_type": u32(0),
        **own,
        **tokenizer_keys(spec.vocabulary),
    }


def architecture(spec: ModelSpec) -> str:
    """The name of the family whose equations a network follows."""
    kinds = set(spec.layers)
    for wanted, family in _FAMILIES.items():
        if kinds == wanted and _fits(spec, family):
            return family
    msg = (
        f"model {spec.name!r} with layers {', '.join(sorted(kinds))} follows no family that "
        f"llama.cpp loads; a preset does: dense, swa, recurrent, hybrid, hybrid-delta, ..."
    )
    raise SpecError(msg)


_FAMILIES: Final[Mapping[frozenset[str], str]] = {
    frozenset({"attention"}): "llama",
    frozenset({"window", "attention"}): "gemma3",
    frozenset({"ssm"}): "mamba2",
    frozenset({"ssm", "attention"}): "granitehybrid",
    frozenset({"delta", "attention"}): "qwen35",
    frozenset({"conv", "window"}): "lfm2",
    frozenset({"conv", "attention"}): "lfm2",
}


def _fits(spec: ModelSpec, family: str) -> bool:
    """True when the details are the family's too, not just the kinds of layers."""
    rope = {"llama": "pairs", "granitehybrid": "pairs", "mamba2": spec.rope}.get(family, "halves")
    return (
        spec.rope == rope
        and not spec.tied_head
        and spec.qk_norm == (family in {"gemma3", "qwen35", "lfm2"})
        and spec.post_norms == (family == "gemma3")
        and spec.attention_gate == (family == "qwen35")
        and (spec.activation == "silu") == (family != "gemma3")
        and bool(spec.mlp_width) == (family != "mamba2")
        and spec.embedding_scale == (spec.width**0.5 if family == "gemma3" else 1.0)
        and (not spec.mtp_depth or family == "qwen35")
    )


def _family_keys(spec: ModelSpec, family: str) -> Keys:
    keys: Keys = {
        "context_length": u32(TRAINED_CONTEXT),
        "embedding_length": u32(spec.width),
        "block_count": u32(len(spec.layers) + spec.mtp_depth),
        "vocab_size": u32(spec.vocabulary),
        "feed_forward_length": u32(spec.mlp_width),
        "attention.layer_norm_rms_epsilon": f32(spec.norm_epsilon),
    }
    keys |= _attention_keys(spec) if family != "mamba2" else _heads_of_states(spec)
    if set(spec.layers) & {"ssm", "delta"}:
        keys |= _state_keys(spec)
    match family:
        case "gemma3":
            keys["attention.sliding_window"] = u32(spec.window)
            keys["attention.sliding_window_pattern"] = u32(_every(spec, "attention"))
        case "qwen35":
            keys["rope.dimension_sections"] = i32(ROPE_SECTIONS)
            keys["full_attention_interval"] = u32(_every(spec, "attention"))
            if spec.mtp_depth:
                keys["nextn_predict_layers"] = u32(spec.mtp_depth)
        case "lfm2":
            keys["shortconv.l_cache"] = u32(spec.conv_size)
            if spec.window:
                keys["attention.sliding_window"] = u32(spec.window)
    return keys


def _attention_keys(spec: ModelSpec) -> Keys:
    """Heads; families that mix kinds say per layer how many keys and values there are."""
    attends = [kind in {"attention", "window"} for kind in spec.layers]
    mixed = not all(attends) and "delta" not in spec.layers
    per_layer = [spec.kv_heads if each else 0 for each in attends]
    return {
        "attention.head_count": u32(spec.heads),
        "attention.head_count_kv": u32(per_layer if mixed else spec.kv_heads),
        "attention.key_length": u32(spec.head_size),
        "attention.value_length": u32(spec.head_size),
        "rope.dimension_count": u32(spec.head_size),
        "rope.freq_base": f32(spec.rope_base),
    }


def _heads_of_states(spec: ModelSpec) -> Keys:
    """Mamba-2: older releases read the number of heads here, newer ones as the time step's rank."""
    return {"attention.head_count": u32(spec.state_heads)}


def _state_keys(spec: ModelSpec) -> Keys:
    return {
        "ssm.conv_kernel": u32(spec.conv_size),
        "ssm.inner_size": u32(spec.inner),
        "ssm.state_size": u32(spec.state_size),
        "ssm.time_step_rank": u32(spec.state_heads),
        "ssm.group_count": u32(spec.groups),
    }


def _every(spec: ModelSpec, kind: str) -> int:
    """The period at which a kind of layer comes: every second, every third, ..."""
    period = spec.layers.index(kind) + 1 if kind in spec.layers else len(spec.layers) + 1
    regular = all(
        (each == kind) == ((index + 1) % period == 0) for index, each in enumerate(spec.layers)
    )
    if not regular:
        msg = f"model {spec.name!r}: {kind} layers must come at a fixed period in this family"
        raise SpecError(msg)
    return period
