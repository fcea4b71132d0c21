"""The bytes of the user's model, from the log's lines or from its GGUF file.

    saving prompt with length 80000, total state size = 5149.063 MiB
    created context checkpoint ... size = 149.063 MiB

A recurrent model's checkpoint is its state; the rest of an entry's bytes is its tokens'.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Final, NoReturn

from cachesim.errors import InputError
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec, Sizes
from cachesim.why.read.observed import ServerLog

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
STRING, ARRAY = 8, 9

NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Types of values, as `struct` names them."""

MOST_KEYS: Final = 1 << 16
MOST_STRINGS: Final = 1 << 21
"""Most strings of all arrays together; the largest tokenizers have some 600,000 with their merges.
"""

LONGEST_TEXT: Final = 1 << 26
"""Most bytes of a string; a chat template has some 100,000."""

MOST_KEPT: Final = 1 << 12
"""Most elements of a stored array: one for each layer of a model."""


def read_header(path: Path) -> dict[str, object]:
    """Every key with its value; arrays of strings and very long arrays as None."""
    try:
        with path.open("rb") as file:
            return _Header(str(path), file, path.stat().st_size).read()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--gguf {path}: cannot be read: {why}") from None


@dataclass(slots=True)
class _Header:
    name: str
    file: BinaryIO
    size: int
    order: str = "<"
    key: str = ""
    strings: int = 0

    def read(self) -> dict[str, object]:
        magic = self.file.read(4)
        if magic != MAGIC:
            self._refuse(f"is no GGUF file: it begins with {magic!r}, not with {MAGIC!r}")
        version = self._number("I")
        if isinstance(version, int) and not version & 0xFFFF:
            self.order = ">"
            version = int.from_bytes(int(version).to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            self._refuse(f"is GGUF version {version}; versions 2 and 3 are read")
        self._number("Q")  # tensors
        count = self._length()
        if count > MOST_KEYS:
            self._refuse(f"has {count} keys; a model's file has less than {MOST_KEYS}")
        found: dict[str, object] = {}
        for _ in range(count):
            self.key = self._text() or ""
            found[self.key] = self._value(self._kind())
        return found

    @property
    def _place(self) -> str:
        return f"key {self.key[:80]!r}"

    def _kind(self) -> int:
        kind = self._length("I")
        if kind not in NUMBERS and kind not in {STRING, ARRAY}:
            self._refuse(f"{self._place} has a value of type {kind}, which GGUF does not have")
        return kind

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._text()
        return self._array() if kind == ARRAY else self._number(NUMBERS[kind])

    def _array(self) -> list[object] | None:
        kind, count = self._kind(), self._length()
        if kind == ARRAY:
            self._refuse(f"{self._place} is an array of arrays, which no model's header has")
        if kind == STRING:
            self.strings += count
            if self.strings > MOST_STRINGS:
                self._refuse(f"{self._place} brings the strings to more than {MOST_STRINGS:,}")
            for _ in range(count):
                self._skip(self._length())
            return None
        letter = NUMBERS[kind]
        if count > MOST_KEPT:
            self._skip(count * struct.calcsize(f"={letter}"))
            return None
        return [self._number(letter) for _ in range(count)]

    def _number(self, letter: str) -> int | float | bool:
        shape = f"{self.order}{letter}"
        value: int | float | bool = struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0]
        return value

    def _length(self, letter: str = "Q") -> int:
        return int(self._number(letter))

    def _text(self) -> str:
        length = self._length()
        if length > LONGEST_TEXT and self.file.tell() + length <= self.size:
            self._refuse(f"{self._place} has a text of {length:,} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _skip(self, length: int) -> None:
        if self.file.tell() + length > self.size:
            self._end()
        self.file.seek(length, 1)

    def _bytes(self, length: int) -> bytes:
        if self.file.tell() + length > self.size:
            self._end()
        data = self.file.read(length)
        if len(data) < length:
            self._end()
        return data

    def _end(self) -> NoReturn:
        where = f"in or after {self._place}" if self.key else "before its first key"
        self._refuse(f"is cut: the file of {self.size:,} bytes ends {where}")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"--gguf {self.name}: {why}")


MIB: Final = 1 << 20
STEP: Final = MIB / 1000
"""Bytes per step of a printed size."""

F16, F32 = 2, 4

PRINTED, BOUNDED, ASSUMED, GIVEN = "printed", "bounded", "assumed", "given"
"""Source of a byte count: the log's lines, a bound from them, an assumption, the user."""

WHOSE: Final = {
    ASSUMED: (
        "Memory figures are for a small network with the same layer types; `cachesim why --tune "
        "--gguf FILE` takes your model's."
    ),
    BOUNDED: (
        "Memory figures count a checkpoint as the log prints it, and an attention token as in a "
        "small network; `cachesim why --tune --gguf FILE` takes your model's."
    ),
}
"""Notes on byte counts that are not the user's model's."""


def how_known(log: ServerLog, spec: ModelSpec) -> str:
    """Source of the bytes: the log's own lines, those of checkpoints only, or none."""
    if spec.sizes is None:
        return ASSUMED
    is_printed = _rates(log, spec.sizes.state) or "attention" not in spec.layers
    return PRINTED if is_printed else BOUNDED


def sizes_of(log: ServerLog, spec: ModelSpec) -> Sizes | None:
    """Sizes from the log's lines; None without any, or with the preset's own."""
    recurrent = bool(set(spec.layers) & set(RECURRENT_KINDS))
    states = [mib for _, mib in log.checkpoint_mib]
    state = round(median(states) * MIB) if states and recurrent else 0
    rates = _rates(log, state)
    if not rates and not state:
        return None
    if rates:
        token = max(0, round(median(rates)))
    else:
        attending = [layer for layer, kind in enumerate(spec.layers) if kind == "attention"]
        token = sum(spec.key_bytes(layer) + spec.value_bytes(layer) for layer in attending)
    if state < SMALL * STEP and token < SMALL * STEP:
        return None  # a toy: three decimals of a MiB say less than its preset does
    window = 0
    if "window" in spec.layers and not recurrent:
        spans = [mib * MIB / max(1, min(n, spec.window)) for n, mib in log.checkpoint_mib if n]
        window = round(median(spans)) if spans else 0
    attends = "attention" in spec.layers
    return Sizes(token=token if attends else 0, window=window if attends else token, state=state)


def _rates(log: ServerLog, state: int) -> list[float]:
    """Bytes of a token, by each prompt-cache entry of sufficient length."""
    return [
        (mib * MIB - state) / tokens
        for tokens, mib in log.sizes
        if tokens >= MANY and mib * MIB > state
    ]


MANY: Final = 200
"""Tokens of a prompt-cache entry from which bytes per token are computed."""

SMALL: Final = 100
"""Number of steps below which a printed size is mostly rounding."""


def context_bytes(spec: ModelSpec, options: Mapping[str, Any]) -> int:
    """Bytes of a server's context; a window has few cells unless `--swa-full` is set.

    Without `ctx_size` its memory grows with what it holds, which is counted there.
    """
    kinds = {"attention", "window"} if options.get("swa_full") else {"attention"}
    each = sum(
        spec.key_bytes(layer) + spec.value_bytes(layer)
        for layer, kind in enumerate(spec.layers)
        if kind in kinds
    )
    return int(options.get("ctx_size", 0)) * each


def sizes_of_gguf(path: Path) -> tuple[Sizes, dict[str, Any]]:
    """The bytes of a model's memory from its file's metadata, and the metadata."""
    fields = read_header(path)
    name = fields.get("general.architecture")
    missing = next((key for key in NEEDED if not _is_count(fields.get(f"{name}.{key}"))), None)
    if not isinstance(name, str) or missing is not None:
        key = f"{name[:80]}.{missing}" if isinstance(name, str) else "general.architecture"
        msg = f"--gguf {path}: has no usable key {key!r}, so the bytes of its memory are unknown"
        raise InputError(msg)
    return sizes_of_fields(fields), fields


NEEDED: Final = ("block_count", "embedding_length")
"""Keys that every language model has."""

MOST: Final = 1 << 31


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 < value < MOST


def sizes_of_fields(fields: Mapping[str, Any]) -> Sizes:
    """Bytes from a file's metadata, layer by layer: keys and values are f16, states f32.

    Upstream: `n_embd_k_gqa`, `n_embd_v_gqa`, `n_embd_r`, `n_embd_s` and `has_kv` of the hparams; a
    cache of MLA has no values.
    """
    name = str(fields.get("general.architecture", ""))

    def number(key: str, default: int = 0, layer: int = 0) -> int:
        value = fields.get(f"{name}.{key}", default)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else default
        return value if isinstance(value, int) and 0 <= value < MOST else default

    layers = number("block_count") - number("nextn_predict_layers")
    recurrent = _recurrent_layers(fields, name, layers)
    attending = [layer for layer in range(layers) if layer not in recurrent]
    windows = _window_layers(fields, name, attending)
    own = layers - number("attention.shared_kv_layers", SHARED.get(name, 0))
    latent = bool(number("attention.key_length_mla"))
    token = window = 0
    for layer in (layer for layer in attending if layer < own):
        heads = number("attention.head_count", 1, layer) or 1
        width, swa = number("embedding_length") // heads, "_swa" if layer in windows else ""
        key, value = (
            number(f"attention.{part}_length{swa}", number(f"attention.{part}_length", width))
            for part in ("key", "value")
        )
        size = F16 * number("attention.head_count_kv", heads, layer)
        size *= key + (0 if latent else value)
        token, window = (token, window + size) if layer in windows else (token + size, window)
    return Sizes(token=token, window=window, state=F32 * _row(number, recurrent))


SHARED: Final = {"gemma3n": 15}
"""Layers that read another layer's keys, where the file does not say and upstream's loader does."""


def _row(number: Callable[..., int], recurrent: set[int]) -> int:
    """Elements of a sequence's state in all recurrent layers."""
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    taps, groups = max(0, number("ssm.conv_kernel") - 1), number("ssm.group_count", 1)
    row = state * inner + taps * (inner + 2 * groups * state)
    if each := number("kda.head_dim"):
        heads = number("attention.head_count", 1)
        row = heads * each * (each + 3 * taps)
    row += max(0, number("shortconv.l_cache") - 1) * number("embedding_length")
    return row * len(recurrent)


def _recurrent_layers(fields: Mapping[str, Any], name: str, layers: int) -> set[int]:
    """Layers without attention: those without key heads, or all but every n-th."""
    if not any(fields.get(f"{name}.{key}") for key in STATES):
        return set()
    heads, mlp = (
        fields.get(f"{name}.{key}") for key in ("attention.head_count_kv", "feed_forward_length")
    )
    if isinstance(heads, list):
        alone = mlp if name in MLP_ALONE and isinstance(mlp, list) else []
        return {at for at, n in enumerate(heads[:layers]) if not n and not any(alone[at : at + 1])}
    every = fields.get(f"{name}.full_attention_interval")
    if isinstance(every, int) and every > 0:
        return {at for at in range(layers) if (at + 1) % every}
    return set() if heads else set(range(layers))


STATES: Final = ("ssm.inner_size", "shortconv.l_cache", "kda.head_dim")
"""Keys of models with recurrent layers."""

MLP_ALONE: Final = ("nemotron_h", "nemotron_h_moe")
"""Families with layers that are an MLP and nothing else."""


def _window_layers(fields: Mapping[str, Any], name: str, attending: Sequence[int]) -> set[int]:
    """Layers with a sliding window, by the pattern; none without a window."""
    if not fields.get(f"{name}.attention.sliding_window"):
        return set()
    pattern = fields.get(f"{name}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return {layer for layer, is_window in enumerate(pattern) if is_window}
    if not isinstance(pattern, int):
        pattern = PATTERNS.get(name, 2)
    full = attending[pattern - 1 :: pattern] if pattern > 1 else []
    return set(attending) - set(full)


PATTERNS: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "llama4": 4,
    "exaone4": 4,
    "lfm2": 0,
}
"""Interval of layers with full attention, where the file has none and upstream's loader does; 0 for
none. Other families default to 2.
"""
