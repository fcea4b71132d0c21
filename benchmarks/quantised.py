"""Weights in llama.cpp's blocks: Q8_0 of 32 numbers, Q4_K of 256.

Q8_0   scale (f16), 32 numbers of 8 bits
Q4_K   scale, scale of minima (f16), 8 scales and 8 minima of 6 bits, 256 numbers of 4 bits
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cachesim.model.weights import Tensor, Weights
from cachesim.prove.llama_cpp.gguf import Q4_K, Q8_0

SUB: Final = 32
"""Numbers of a Q4_K block that share a scale and a minimum."""


def quantised(weights: Weights, kind: str) -> dict[str, NDArray[Any]]:
    """Matrices in blocks of this kind; what does not divide into them stays in 32 bits."""
    to_blocks, size = {"Q8_0": (_q8_0, 32), "Q4_K": (_q4_k, 256)}[kind]

    def fits(name: str, tensor: Tensor) -> bool:
        matrix = tensor.ndim == 2 and name.endswith(".weight") and "conv" not in name
        return matrix and tensor.shape[1] % size == 0

    return {
        name: to_blocks(tensor.reshape(tensor.shape[0], -1, size)) if fits(name, tensor) else tensor
        for name, tensor in weights.items()
    }


def _q8_0(parts: Tensor) -> NDArray[Any]:
    blocks = np.zeros(parts.shape[:2], Q8_0)
    blocks["scale"] = np.abs(parts).max(axis=2) / 127
    blocks["numbers"] = np.rint(parts / _nonzero(blocks["scale"][..., None])).clip(-127, 127)
    return blocks


def _q4_k(parts: Tensor) -> NDArray[Any]:
    blocks = np.zeros(parts.shape[:2], Q4_K)
    subs = parts.reshape(*parts.shape[:2], -1, SUB)
    lowest = -np.minimum(subs.min(axis=3), 0)
    steps = (subs.max(axis=3) + lowest) / 15
    blocks["scale"], blocks["lowest"] = steps.max(axis=2) / 63, lowest.max(axis=2) / 63
    scale, least = (_nonzero(blocks[name][..., None]) for name in ("scale", "lowest"))
    s, m = (np.rint(a / b).clip(0, 63).astype("u1") for a, b in ((steps, scale), (lowest, least)))
    blocks["six"][..., :4] = s[..., :4] | s[..., 4:] >> 4 << 6
    blocks["six"][..., 4:8] = m[..., :4] | m[..., 4:] >> 4 << 6
    blocks["six"][..., 8:] = s[..., 4:] & 15 | (m[..., 4:] & 15) << 4
    numbers = np.rint((subs + (least * m)[..., None]) / _nonzero((scale * s)[..., None]))
    pairs = numbers.clip(0, 15).astype("u1").reshape(*parts.shape[:2], 4, 2, SUB)
    blocks["numbers"] = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*parts.shape[:2], -1)
    return blocks


def _nonzero(scales: NDArray[Any]) -> NDArray[np.float32]:
    found = scales.astype(np.float32)
    return np.where(found == 0, np.float32(1), found)
