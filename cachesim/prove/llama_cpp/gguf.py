"""The simulator's own networks as GGUF files that llama.cpp loads: same weights, same answers."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from cachesim.engines.chat import FILL_MIDDLE, FILL_PREFIX, FILL_SUFFIX
from cachesim.engines.ik_llama.family import FAMILY as IK_LLAMA
from cachesim.engines.llamacpp.memory.blob import ARCHITECTURES
from cachesim.engines.llamacpp.options import TRAINED_CONTEXT
from cachesim.errors import OptionError, SpecError
from cachesim.model import recall
from cachesim.model.adapters import RANK, deltas
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import draw

MAGIC: Final = b"GGUF"
VERSION: Final = 3
ALIGNMENT: Final = 32

F32: Final = np.dtype("<f4")
Q8_0: Final = np.dtype([("scale", "<f2"), ("numbers", "i1", 32)])
Q4_K: Final = np.dtype(
    [("scale", "<f2"), ("lowest", "<f2"), ("six", "u1", 12), ("numbers", "u1", 128)]
)
TYPES: Final[Mapping[np.dtype[Any], tuple[int, int]]] = {
    F32: (0, 1),
    Q8_0: (8, 32),
    Q4_K: (12, 256),
}
"""Number of a tensor's type, and the weights of a block."""

STATE: Final = 64
"""Size of a recurrent state for which the server has a fused kernel (`iqk_fused_delta_net`).

It has kernels for 64 and 128. With any other size a fresh server computes one answer where it reads
a token in a prompt, and another where it decodes the token, so no reply can be compared.
"""

SWA_LAYERS: Final = ("window",) * 5 + ("attention",)
"""Layers of a window model that the server loads: a whole period of its family."""

Kind: TypeAlias = Literal["u32", "i32", "f32", "bool", "string"]
Scalar: TypeAlias = int | float | bool | str

_CODES: Final[Mapping[Kind, int]] = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "string": 8}
_LAYOUT: Final[Mapping[Kind, str]] = {"u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?"}
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class Value:
    """A key's value, with its explicit type."""

    kind: Kind
    value: Scalar | Sequence[Scalar]


u32, i32, f32, flag, text = (partial(Value, kind) for kind in get_args(Kind))
"""Values of one type, or lists of them."""


def write_gguf(
    out: BinaryIO, keys: Mapping[str, Value], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a whole file; tensors keep their order."""
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(keys))]
    head += [_string(name) + _typed(value) for name, value in keys.items()]
    offset = 0
    for name, tensor in tensors.items():
        kind, block = TYPES[tensor.dtype]
        width, *rest = tensor.shape[::-1]
        sizes = struct.pack(f"<I{tensor.ndim}Q", tensor.ndim, block * width, *rest)
        head.append(_string(name) + sizes + struct.pack("<IQ", kind, offset))
        offset += _padded(tensor.nbytes)
    start = b"".join(head)
    out.write(start.ljust(_padded(len(start)), b"\0"))
    for tensor in tensors.values():
        data = np.ascontiguousarray(tensor).tobytes()
        out.write(data.ljust(_padded(len(data)), b"\0"))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Value) -> bytes:
    code = _CODES[value.kind]
    if isinstance(value.value, str) or not isinstance(value.value, Sequence):
        return struct.pack("<I", code) + _plain(value.kind, value.value)
    items = b"".join(_plain(value.kind, item) for item in value.value)
    return struct.pack("<IIQ", _ARRAY, code, len(value.value)) + items


def _plain(kind: Kind, value: Scalar) -> bytes:
    return _string(str(value)) if kind == "string" else struct.pack(_LAYOUT[kind], value)


Keys: TypeAlias = dict[str, Value]

ROPE_SECTIONS: Final = (3, 3, 2, 0)
"""Rotary pairs of Qwen 3.5 for time, height and width; text rotates all of them alike."""


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
        **tokenizer_keys(spec.vocabulary, recall.TEXTS if spec.recall else {}),
    }


def architecture(spec: ModelSpec) -> str:
    """The name of the family whose equations a network follows."""
    kinds = set(spec.layers)
    for wanted, family in ARCHITECTURES.items():
        if kinds == wanted and _fits(spec, family):
            return family
    raise SpecError(
        f"model {spec.name!r} with layers {', '.join(sorted(kinds))} follows no family that "
        f"llama.cpp loads; a preset does: dense, swa, recurrent, hybrid, hybrid-delta, "
        f"recall-hybrid-delta, ..."
    )


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
        and (family != "granitehybrid" or spec.inner == 2 * spec.width)  # as the loader asserts
        and (family != "lfm2" or spec.heads * spec.head_size == spec.width)  # its query tensor
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
    if family == "mamba2":  # older releases read heads here, newer ones as the time step's rank
        keys["attention.head_count"] = u32(spec.state_heads)
    else:
        attends = [kind in {"attention", "window"} for kind in spec.layers]
        mixed = not all(attends) and "delta" not in spec.layers
        per_layer = [spec.kv_heads if attend else 0 for attend in attends]
        keys |= {
            "attention.head_count": u32(spec.heads),
            "attention.head_count_kv": u32(per_layer if mixed else spec.kv_heads),
            "attention.key_length": u32(spec.head_size),
            "attention.value_length": u32(spec.head_size),
            "rope.dimension_count": u32(spec.head_size),
            "rope.freq_base": f32(spec.rope_base),
        }
    if set(spec.layers) & {"ssm", "delta"}:
        keys |= {
            "ssm.conv_kernel": u32(spec.conv_size),
            "ssm.inner_size": u32(spec.inner),
            "ssm.state_size": u32(spec.state_size),
            "ssm.time_step_rank": u32(spec.state_heads),
            "ssm.group_count": u32(spec.groups),
        }
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


def _every(spec: ModelSpec, kind: str) -> int:
    period = spec.layers.index(kind) + 1 if kind in spec.layers else len(spec.layers) + 1
    regular = all(
        (layer == kind) == ((index + 1) % period == 0) for index, layer in enumerate(spec.layers)
    )
    if not regular:
        msg = f"model {spec.name!r}: {kind} layers must come at a fixed period in this family"
        raise SpecError(msg)
    return period


BOS, EOS, UNKNOWN, END_OF_TURN = 1, 2, 0, 260

CHAT_TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ '' if loop.first else '\n' }}"
    "{{ t['function']['name'] }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TokenType(IntEnum):
    """Types of tokens, in the format's numbers."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


SPECIAL: Final = (
    ("<unk>", TokenType.UNKNOWN),
    ("<s>", TokenType.CONTROL),
    ("</s>", TokenType.CONTROL),
    *((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
    ("<|im_start|>", TokenType.CONTROL),
    ("<|im_end|>", TokenType.CONTROL),
    *((word, TokenType.USER_DEFINED) for word in ("system", "user", "assistant", "\n")),
)


def word(token: int, texts: Mapping[int, str] = MappingProxyType({})) -> str:
    """The text of an id; the server reads it as that id again (bytes and controls aside)."""
    return SPECIAL[token][0] if token < len(SPECIAL) else texts.get(token, f"[{token}]")


def tokenizer_keys(size: int, texts: Mapping[int, str]) -> dict[str, Value]:
    """The tokenizer's keys for a vocabulary of that many ids, with these texts of plain ones."""
    if size < len(SPECIAL):
        raise SpecError(f"a GGUF file needs a vocabulary of {len(SPECIAL)} ids or more, not {size}")
    plain = ((word(token, texts), TokenType.USER_DEFINED) for token in range(len(SPECIAL), size))
    words = (*SPECIAL, *plain)
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.pre": text("default"),
        "tokenizer.ggml.tokens": text([word for word, _ in words]),
        "tokenizer.ggml.scores": f32([0.0] * size),
        "tokenizer.ggml.token_type": i32([kind.value for _, kind in words]),
        "tokenizer.ggml.bos_token_id": u32(BOS),
        "tokenizer.ggml.eos_token_id": u32(EOS),
        "tokenizer.ggml.unknown_token_id": u32(UNKNOWN),
        "tokenizer.ggml.eot_token_id": u32(END_OF_TURN),
        "tokenizer.ggml.fim_pre_token_id": u32(FILL_PREFIX),
        "tokenizer.ggml.fim_suf_token_id": u32(FILL_SUFFIX),
        "tokenizer.ggml.fim_mid_token_id": u32(FILL_MIDDLE),
        "tokenizer.ggml.add_bos_token": flag(value=False),
        "tokenizer.ggml.add_eos_token": flag(value=False),
        "tokenizer.ggml.add_space_prefix": flag(value=False),
        "tokenizer.chat_template": text(CHAT_TEMPLATE),
    }


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, which the server reads as the same tokens again."""
    return "".join(word(token) for token in tokens)


def as_ggml_computes(spec: ModelSpec) -> ModelSpec:
    """The same model with GELU from ggml's table."""
    return replace(spec, activation="gelu-table") if spec.activation == "gelu" else spec


def exact_spec(spec: ModelSpec) -> ModelSpec:
    """The network in sizes that ik_llama.cpp loads, and computes alike in prompt and reply."""
    if set(spec.layers) & {"ssm", "conv"}:
        raise OptionError(
            f"{IK_LLAMA.name} loads no {spec.name!r}; it loads {', '.join(IK_LLAMA.loads)}"
        )
    if "delta" in spec.layers and spec.state_size not in {64, 128}:
        return replace(spec, state_size=STATE, inner=STATE * spec.state_heads)
    if "window" in spec.layers and len(spec.layers) != len(SWA_LAYERS):
        return replace(spec, layers=SWA_LAYERS)
    return spec
