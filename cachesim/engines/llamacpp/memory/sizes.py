"""Bytes that the real server keeps per cell or row: they decide evictions and are reported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cachesim.errors import OptionError
from cachesim.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """The bytes of a layer: key and value of an attention cell, or R and S of a recurrent row."""

    key: int = 0
    value: int = 0
    r: int = 0
    s: int = 0


MARKS: Final = -1
"""The element type of layers that the real server does not have, and that cost no bytes."""


BLOCKS: Final[Mapping[str, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
}
"""Type of an element -> how many make a block, and its bytes."""

F16_BYTES: Final = 2


def row_bytes(spec: ModelSpec, layer: int, type_k: str = "f16", type_v: str = "f16") -> RowBytes:
    """Keys and values as they are kept, recurrent rows f32.

    Upstream: `ggml_row_size` of `n_embd_k_gqa`, `n_embd_v_gqa`, `n_embd_r`, `n_embd_s`. Sizes that
    a scenario gives are those of the model as it is run, whatever the types.
    """
    key, value = spec.key_bytes(layer), spec.value_bytes(layer)
    if spec.sizes is None:
        key, value = _as_kept(spec, key, type_k), _as_kept(spec, value, type_v)
    return RowBytes(
        key=key,
        value=value,
        r=spec.conv_bytes(layer),
        s=spec.state_bytes(layer),
    )


def _as_kept(spec: ModelSpec, f16: int, kept: str) -> int:
    block, size = BLOCKS[kept]
    if f16 and spec.head_size % block:
        msg = (
            f"a cache of type {kept} has blocks of {block}, and a head has {spec.head_size} "
            "values: the real server does not start"
        )
        raise OptionError(msg)
    return f16 // F16_BYTES // block * size
