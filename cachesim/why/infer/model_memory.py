"""The bytes of a real model's memory, by its `config.json` or by its name.

layers   | full |  window  |  state  | none |      as the config's own keys list them
a token  | K, V |   K, V   |    -    |  -   |      MLA keeps one latent vector in place of K, V
a state  |  -   |    -     | conv, S |  -   |

Sizes are those of vLLM's `MambaStateShapeCalculator` and `AttentionSpec`, in elements; an engine
decides in how many bytes each is kept.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

from cachesim.errors import InputError
from cachesim.files import readable
from cachesim.model.spec import Sizes
from cachesim.typed import Json

Kind: TypeAlias = Literal["full", "window", "state", "both", "none"]
"""Memory of a layer; both: attention and a state side by side."""

NAMES: Final[Mapping[str, Kind]] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "*": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "state",
    "mamba": "state",
    "recurrent": "state",
    "conv": "state",
    "M": "state",
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
    "-": "none",
    "E": "none",
}
"""The names of layers in a config's lists."""

REFUSED: Final[Mapping[str, str]] = {
    "compress_ratios": "compressed attention (DeepSeek-V4)",
    "sparse_attention_config": "block-sparse attention with an index of its own (MiniMax-M3)",
    "block_configs": "attention that differs by block (Nemotron-NAS)",
    "wkv_heads": "RWKV's states",
}
"""Keys of configs whose memory is not counted."""

HALF, SINGLE = 2, 4

STATE_BYTES: Final[Mapping[str, tuple[int, int]]] = {
    "llama.cpp": (SINGLE, SINGLE),
    "ik_llama.cpp": (SINGLE, SINGLE),
    "llama-cpp-python": (SINGLE, SINGLE),
    "mlx-lm": (HALF, SINGLE),
    "sglang": (HALF, SINGLE),
}
"""Bytes of an element of a convolution state and of the recurrent state proper. vLLM keeps both
like the model unless the config names a type; other engines are taken to do so. mlx-lm keeps the
states of Mamba-1 like the model, which is not counted here."""

ENGINES: Final = ("vllm", *STATE_BYTES)
"""The engines whose bytes of a state are known."""

MOST_BYTES: Final = 1 << 24
"""Most bytes of a config."""

MOST: Final = 1 << 24

CONTEXT: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Keys under which a config names the tokens of a request at most."""

ORIGINAL: Final = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a model, by kind of layer."""

    token: int = 0  # elements of a token in layers with full attention
    window: int = 0  # elements of a token in layers with a window
    conv: int = 0  # elements of a sequence's convolution states
    state: int = 0  # elements of a sequence's recurrent states proper
    length: int = 0  # tokens that a window sees
    index: int = 0  # bytes of a token's keys of a sparse indexer, as vLLM and SGLang keep them
    single: bool = False  # the config, or vLLM for this family, keeps recurrent states in float32
    context: int = 0  # tokens of a request at most; 0: the config does not name them
    original: int = 0  # the same before LongRoPE, which vLLM takes instead

    def longest(self, engine: str) -> int:
        """Tokens of a request at most where no flag says otherwise; 0 if not known."""
        return self.original if self.original and engine == "vllm" else self.context

    def sizes(self, engine: str) -> Sizes:
        """Bytes on an engine with its own defaults; keys and values in 16 bits."""
        if self.index and engine not in {"vllm", "sglang"}:
            raise InputError(
                f"the model has a sparse indexer, whose bytes on {engine} are not known here; "
                "write --token-bytes, or in a plan sizes = {token = ...}"
            )
        conv, state = STATE_BYTES.get(engine, (HALF, SINGLE if self.single else HALF))
        return Sizes(
            token=HALF * self.token + self.index,
            window=HALF * self.window,
            state=conv * self.conv + state * self.state,
        )


def memory_of(model: str, folder: Path = Path()) -> Memory:
    """The memory of a model by the path of its config.json, or by a name of the table."""
    found = known_models().get(model.lower())
    if found is not None:
        return memory_of_config(found, model)
    path = folder / model
    if not path.exists():
        near = ", ".join(name for name in known_models() if model.lower()[:4] in name)
        raise InputError(
            f"--sizes {model}: no file, and no model of the table"
            f"{f' ({near} are)' if near else ''}; `cachesim list models` has all of them"
        )
    with readable(f"--sizes {model}"), path.open("rb") as file:
        text = file.read(MOST_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        msg = f"--sizes {model}: not JSON; write the path of a model's config.json (--gguf: GGUF)"
        raise InputError(msg) from None
    return memory_of_config(value, model)


@lru_cache(maxsize=1)
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """The table of models: by name, the config's values and their source."""
    return tomllib.loads(Path(__file__).with_name("known_models.toml").read_text("utf-8"))


def memory_of_config(value: object, place: str) -> Memory:
    """The memory by a config's values."""
    if not isinstance(value, dict):
        raise InputError(f"--sizes {place}: not an object; write the path of a model's config.json")
    return _Config(_text_of(value), place).memory()


def _text_of(value: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config, which models with images nest."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(value.get(key), dict):
            return {**value, **value[key]}
    return value


GEMMA: Final = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gemma2": {**GEMMA, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {**GEMMA, "sliding_window": 4096, "sliding_window_pattern": 6},
    "gemma3": {**GEMMA, "sliding_window": 4096, "sliding_window_pattern": 6},
    "llama4_text": {"head_dim": 128, "no_rope_layer_interval": 4},
    "cohere2": {"sliding_window_pattern": 4},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16},
    "falcon_h1": {"layer_types": "hybrid"},
    "mamba": {"layer_types": "mamba"},
    "mamba2": {"layer_types": "mamba"},
    "falcon_mamba": {"layer_types": "mamba"},
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32"},
}
"""Defaults of Transformers' config classes for keys that a config.json leaves out."""


@dataclass(frozen=True, slots=True)
class _Config:
    values: Mapping[str, Any]
    place: str

    def memory(self) -> Memory:
        for key, what in REFUSED.items():
            if self.values.get(key):
                self._refuse(f"{key}: {what} is not counted; write --token-bytes and the like")
        if self.values.get("is_encoder_decoder"):
            self._refuse("is_encoder_decoder: only decoders are counted")
        kinds = self._kinds()
        own = kinds[: len(kinds) - self.number("num_kv_shared_layers", 0)]
        full = sum(kind in {"full", "both"} for kind in own)
        windows, states = own.count("window"), sum(kind in {"state", "both"} for kind in kinds)
        conv, state = self._state() if states else (0, 0)
        index = self.number("index_head_dim", 0)
        types = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
        return Memory(
            token=full * self._token("global_" if windows else "") if full else 0,
            window=windows * self._token("swa_") if windows else 0,
            conv=states * conv,
            state=states * state,
            length=self._length() if windows else 0,
            index=full * (index + index // 128 * 4),
            single=self._is_kda or "float32" in [self._get(key) for key in types],
            context=self._context(),
            original=self.number(ORIGINAL, 0) if self._rope("longrope") else 0,
        )

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"--sizes {self.place}: {why}")

    def _get(self, *keys: str) -> Json:
        """The value of the first key that the config has, or that its family assumes."""
        family = DEFAULTS.get(str(self.values.get("model_type")), {})
        found = (values[key] for values in (self.values, family) for key in keys if key in values)
        return next((value for value in found if value is not None), None)

    def number(self, *keys: str | int) -> int:
        """The whole number under the first of some keys; the last value is the default, if any."""
        names = [key for key in keys if isinstance(key, str)]
        default = keys[-1] if isinstance(keys[-1], int) else None
        value = self._get(*names)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST:
            return value
        has = f"is {str(value)[:40]}" if value is not None else "is missing"
        return self._refuse(f"{' or '.join(names)} {has}; write the number of the model's config")

    # -- how long a request may be

    def _context(self) -> int:
        """Upstream: vLLM 0.33.0's `derive_max_model_len_and_key` and `_get_and_verify_max_len`.

        A scaling that the config's length does not hold yet multiplies it.
        """
        lengths = [self.number(key) for key in CONTEXT if self._get(key) is not None]
        longest = self.number("model_max_length", min(lengths, default=0))
        scaled = self._rope("linear", "dynamic") or 1
        return int(longest * scaled)

    def _rope(self, *types: str) -> float:
        """The factor by which rotary positions of these types are scaled; 0 without one."""
        value = self._get("rope_scaling", "rope_parameters")
        if "gemma3" in str(self.values.get("model_type")) or not isinstance(value, dict):
            return 0
        factor = value.get("factor") or 1
        known = value.get("rope_type", value.get("type")) in types
        return factor if known and isinstance(factor, int | float) and 0 < factor < MOST else 0

    # -- what each layer keeps

    def _kinds(self) -> list[Kind]:
        listed = self._get("layers_block_type", "hybrid_override_pattern", "layer_types")
        if not isinstance(listed, list | str | None):
            self._refuse(f"the layers' types are {str(listed)[:40]!r}; write a list of their names")
        layers = len(listed) if isinstance(listed, list) else self.number("num_hidden_layers", 0)
        layers = layers or len(listed or ())
        if not 0 < layers <= 1024:
            self._refuse(f"num_hidden_layers is {layers}; write the number of the model's layers")
        if isinstance(listed, str) and listed in NAMES:  # a family of one kind
            return [NAMES[listed]] * layers
        if listed:
            for name in listed:
                if not isinstance(name, str) or name not in NAMES:
                    self._refuse(f"a layer of type {str(name)[:40]!r} is not counted")
            return [self._windowed(NAMES[name]) for name in listed]
        for key, rule in RULES.items():
            value = self._get(key)
            if value is not None:
                try:
                    return [self._windowed(rule(self, value, at)) for at in range(layers)]
                except (TypeError, LookupError, ZeroDivisionError, AttributeError):
                    self._refuse(f"{key} is {str(value)[:40]}, which is no list of layers")
        every = range(layers)
        return [self._windowed("window" if self._is_window(at) else "full") for at in every]

    def _windowed(self, kind: Kind) -> Kind:
        return "full" if kind == "window" and not self._length() else kind

    def _length(self) -> int:
        return self.number("sliding_window", "attention_chunk_size", "attention_window_size", 0)

    def _is_window(self, layer: int) -> bool:
        """Without a pattern every layer has the window, or those from `max_window_layers` on."""
        if self._get("use_sliding_window") is False:
            return False
        first = self.number("max_window_layers", 0) if self._get("use_sliding_window") else 0
        return layer >= first

    # -- how much a layer keeps

    def _token(self, prefix: str) -> int:
        rank = self.number("kv_lora_rank", 0)
        if rank:
            return rank + self.number("qk_rope_head_dim")
        heads = self.number("num_attention_heads")
        own = "num_global_" if prefix == "global_" else f"{prefix}num_"
        kv_heads = self.number(f"{own}key_value_heads", "num_key_value_heads", heads)
        width = self.number("hidden_size", 0) // max(1, heads)
        size = self.number(f"{prefix}head_dim", "head_dim", "attention_head_dim", width)
        if not kv_heads * size:
            self._refuse("neither head_dim nor hidden_size says how wide a key is")
        return kv_heads * (size + self.number(f"{prefix}v_head_dim", "v_head_dim", size))

    @property
    def _is_kda(self) -> bool:
        return self._get("linear_attn_config", "linear_num_heads") is not None

    def _state(self) -> tuple[int, int]:
        """Elements of a layer's convolution state and of its recurrent state proper."""
        taps = (
            self.number(
                "linear_conv_kernel_dim",
                "mamba_d_conv",
                "conv_kernel",
                "conv_L_cache",
                "conv1d_width",
                4,
            )
            - 1
        )
        if self._is_kda:  # Kimi delta attention
            linear = self._get("linear_attn_config")
            given = linear if isinstance(linear, dict) else {}
            part = _Config({**self.values, **given}, self.place)
            heads = part.number("linear_num_heads", "num_heads")
            size = part.number("linear_head_dim", "head_dim")
            taps = part.number("linear_conv_kernel_dim", "short_conv_kernel_size") - 1
            return taps * 3 * heads * size, heads * size**2
        if self._get("linear_num_value_heads") is not None:  # gated delta rule
            keys = self.number("linear_num_key_heads") * self.number("linear_key_head_dim")
            size = self.number("linear_value_head_dim")
            values = self.number("linear_num_value_heads") * size
            return taps * (2 * keys + values), values * self.number("linear_key_head_dim")
        if self._get("conv_L_cache") is not None:  # short convolutions
            return taps * self.number("hidden_size"), 0
        if self._get("lru_width") is not None:
            return taps * self.number("lru_width"), self.number("lru_width")
        size = self.number("mamba_d_state", "ssm_state_size", "state_size", 0)
        if not size:  # lightning attention
            heads = self.number("num_attention_heads")
            width = self.number("head_dim", self.number("hidden_size") // max(1, heads))
            return 0, heads * width**2
        heads = self.number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", 0)
        if self._get("model_type") == "mamba2":
            heads = self.number("num_heads")
        if not heads:  # Mamba
            inner = self.number("mamba_expand", "expand", 2) * self.number("hidden_size")
            return taps * inner, inner * size
        each = self.number("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
        groups = self.number("mamba_n_groups", "mamba_ngroups", "n_groups", 1)
        return taps * (heads * each + 2 * groups * size), heads * each * size


Rule: TypeAlias = Callable[[_Config, Any, int], Kind]


def _every(_: _Config, interval: int, layer: int) -> Kind:
    return "window" if (layer + 1) % interval else "full"


def _pattern(config: _Config, pattern: str | int, layer: int) -> Kind:
    if isinstance(pattern, str):  # as LLLG
        return "window" if pattern[layer % len(pattern)] == "L" else "full"
    return _every(config, pattern, layer) if pattern else "full"


RULES: Final[Mapping[str, Rule]] = {
    "linear_attn_config": lambda _, v, at: "full" if at + 1 in v["full_attn_layers"] else "state",
    "full_attention_interval": lambda _, v, at: "state" if (at + 1) % v else "full",
    "attn_layer_period": lambda config, v, at: (
        "full" if at % v == config.number("attn_layer_offset", 0) else "state"
    ),
    "attn_layer_indices": lambda _, v, at: "full" if at in v else "state",
    "full_attn_idxs": lambda _, v, at: "full" if at in v else "state",
    "attn_type_list": lambda _, v, at: "full" if v[at] else "state",
    "hybrid_layer_pattern": lambda _, v, at: "window" if v[at] else "full",
    "block_types": lambda _, v, at: "state" if v[at % len(v)] == "recurrent" else "window",
    "no_rope_layers": lambda _, v, at: "window" if v[at] else "full",
    "no_rope_layer_interval": _every,
    "sliding_window_pattern": _pattern,
    "_sliding_window_pattern": _pattern,
}
"""Keys on the memory of layers, by layer."""
