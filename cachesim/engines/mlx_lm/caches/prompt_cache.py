"""The cache classes of `mlx_lm.models.cache`, and operations on a whole prompt cache."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.batch_kv_cache import BatchKVCache, BatchRotatingKVCache
from cachesim.engines.mlx_lm.caches.kv_cache import (
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from cachesim.engines.mlx_lm.caches.layer_cache import (
    LayerCache,
    State,
    UpstreamKeyError,
    UpstreamRuntimeError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.errors import BlobError
from cachesim.units import Array


def can_trim_prompt_cache(cache: Sequence[LayerCache]) -> bool:
    """Check whether every layer can be trimmed now; follows `can_trim_prompt_cache`."""
    return all(layer_cache.is_trimmable() for layer_cache in cache)


def trim_prompt_cache(cache: Sequence[LayerCache], num_tokens: int) -> int:
    """Trim all layers or none; return the first one's result. Follows `trim_prompt_cache`."""
    if not can_trim_prompt_cache(cache) or len(cache) == 0:
        return 0
    trimmed = [layer_cache.trim(num_tokens) for layer_cache in cache]
    return trimmed[0]


def copy_prompt_cache(cache: Sequence[LayerCache]) -> list[LayerCache]:
    """Independent layers, arrays included; upstream's `copy.deepcopy` of a prompt cache."""
    return [layer_cache.copy() for layer_cache in cache]


__all__ = [
    "ArraysCache", "BatchKVCache", "BatchRotatingKVCache", "CacheList", "ChunkedKVCache",
    "KVCache", "LayerCache", "QuantizedKVCache", "RotatingKVCache", "can_trim_prompt_cache",
    "copy_prompt_cache", "trim_prompt_cache",
]  # fmt: skip


# Prompt caches as bytes: upstream's save and load, in a container of cachesim's own.
#
#     magic | version | length of header | header (JSON) | arrays, one after the other | checksum
#
# Upstream has two incompatible formats: arrays cut to their tokens with strings beside them, and
# from 0.32.0 whole states. The container records its format.

MAGIC: Final = b"CSIMPROMPT"
VERSION: Final = 1
_FIXED: Final = struct.Struct("<HI")
_SUM: Final = struct.Struct("<I")


def save_prompt_cache(
    caches: Sequence[LayerCache], metadata: Mapping[str, str] | None = None, *, rules: CacheRules
) -> bytes:
    """A list of caches as bytes. Follows `save_prompt_cache`.

    In the sliced form an empty cache has no state to save, and a missing slot cannot be written.
    """
    whole = rules.state_form == "whole"
    states = [cache.state for cache in caches]
    scalars = None if whole else [cache.meta_state for cache in caches]
    arrays: list[Array] = []
    header = {
        "form": rules.state_form,
        "states": _packed(states, arrays, rules),
        "meta_states": scalars,
        "metadata": dict(metadata or {}),
        "classes": [type(cache).__name__ for cache in caches],
    }
    header["arrays"] = [{"dtype": array.dtype.str, "shape": array.shape} for array in arrays]
    text = json.dumps(header, sort_keys=True).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    blob = MAGIC + _FIXED.pack(VERSION, len(text)) + text + body
    return blob + _SUM.pack(zlib.crc32(blob))


def load_prompt_cache(blob: bytes, *, rules: CacheRules) -> tuple[list[LayerCache], dict[str, str]]:
    """The caches and the user's metadata. Follows `load_prompt_cache`.

    A file of the other form raises upstream's error; damage is refused before that.
    """
    header, arrays = _opened(blob)
    if header["form"] != rules.state_form:
        if rules.state_form == "whole":
            msg = "the positions of converted scalars are missing: the file is of an older release"
            raise UpstreamValueError(msg)
        raise UpstreamKeyError(0)
    states = _unpacked(header["states"], arrays)
    scalars = header["meta_states"] or [None] * len(states)
    caches = [
        LayerCache.named(name).from_state(state, meta, rules=rules)
        for name, state, meta in zip(header["classes"], states, scalars, strict=True)
    ]
    return caches, header["metadata"]


def _packed(state: State, arrays: list[Array], rules: CacheRules) -> State:
    """The state with every array replaced by its index (`save_prompt_cache`)."""
    if isinstance(state, np.ndarray):
        if state.size == 0 and not rules.saves_empty_arrays:
            raise UpstreamValueError("an array without elements cannot be saved")
        arrays.append(state)
        return {"array": len(arrays) - 1}
    if isinstance(state, list | tuple):
        return [_packed(part, arrays, rules) for part in state]
    if state is None and rules.state_form == "sliced":
        raise UpstreamRuntimeError("None is not an array: a slot was never written")
    return state


def _unpacked(tree: object, arrays: Sequence[Array]) -> State:
    if isinstance(tree, dict):
        return arrays[tree["array"]]
    if isinstance(tree, list):
        return [_unpacked(part, arrays) for part in tree]
    return tree


def _opened(blob: bytes) -> tuple[dict[str, Any], list[Array]]:
    """Header and arrays, checked (`load_prompt_cache`)."""
    start = len(MAGIC) + _FIXED.size
    if len(blob) < start + _SUM.size or not blob.startswith(MAGIC):
        raise BlobError("this is not a saved prompt cache: its first bytes are not those of one")
    version, length = _FIXED.unpack_from(blob, len(MAGIC))
    if version != VERSION:
        msg = f"the saved prompt cache has version {version}; only version {VERSION} can be read"
        raise BlobError(msg)
    if _SUM.unpack(blob[-_SUM.size :])[0] != zlib.crc32(blob[: -_SUM.size]):
        msg = "the saved prompt cache is damaged: its checksum does not fit its content; save again"
        raise BlobError(msg)
    header = json.loads(blob[start : start + length])
    arrays, at = [], start + length
    for array in header["arrays"]:
        dtype, shape = np.dtype(array["dtype"]), tuple(array["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(blob, dtype, count, at).reshape(shape).copy())
        at += count * dtype.itemsize
    return header, arrays
