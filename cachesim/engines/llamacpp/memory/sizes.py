"""Bytes that the real server keeps per cell or row: they decide evictions and are reported."""

from dataclasses import dataclass
from typing import Final

from cachesim.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """One layer's share: key and value of an attention cell, or R and S of a recurrent row."""

    key: int = 0
    value: int = 0
    r: int = 0
    s: int = 0


MARKS: Final = -1
"""The element type of layers that the real server does not have, and that cost no bytes."""


def row_bytes(spec: ModelSpec, layer: int) -> RowBytes:
    """Keys and values are f16, recurrent rows f32 (`n_embd_k_gqa`, `n_embd_r`, `n_embd_s`)."""
    return RowBytes(
        key=spec.key_bytes(layer),
        value=spec.value_bytes(layer),
        r=spec.conv_bytes(layer),
        s=spec.state_bytes(layer),
    )
