"""Check whether a stored state is the one its key promises: asked of the rows themselves.

A `Traced` network keeps marks beside the real layers. Of a prompt cache it tells, place by
place, which tokens each row and each recurrent state has really seen.
"""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.chunked_kv_cache import ChunkedKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamRaise, name_of
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.caches.sparse_cache import SparseCache
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.histories import NodeId
from cachesim.model.trace import Traced
from cachesim.units import Integers, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Content of the layers of one place, beside the key's tokens.

    `tokens` says it where it is not what the key promises.
    """

    place: str
    sound: bool
    tokens: Tokens


def holdings(network: Network, cache: PromptCache, key: Tokens) -> tuple[Holding, ...]:
    """An entry for each place of a traced network; none if it is not traced."""
    if not isinstance(network, Traced):
        return ()
    clean = network.histories.clean(key)
    marks = [pair for pair in zip(network.shapes, leaves(cache), strict=False) if pair[0].marks]
    return tuple(
        _holding(network, shape, layer, clean, place) for place, (shape, layer) in enumerate(marks)
    )


def is_sound(network: Network, cache: PromptCache, key: Tokens) -> bool | None:
    """Check whether a prompt cache holds exactly the key's tokens; None if nobody wrote it down."""
    held = holdings(network, cache, key)
    return all(each.sound for each in held) if held else None


def _holding(
    network: Traced, shape: LayerShape, layer: LayerCache, key_nodes: list[NodeId], place: int
) -> Holding:
    if isinstance(layer, ArraysCache):
        state = layer[-1]
        node = 0 if state is None else int(state[0, 0])
        sound = node == key_nodes[-1]
        tokens = () if sound else network.histories.tokens(node, place)
        return Holding(place=shape.place, sound=sound, tokens=tokens)
    count = len(key_nodes) - 1
    positions, nodes = _cells(network, layer)
    needed = _seen_next(layer, count)
    newest = slice(len(nodes) - needed, None)
    expected = np.arange(count - needed, count)
    sound = bool(
        getattr(layer, "offset", None) == count
        and len(nodes) >= needed
        and np.array_equal(positions[newest], expected)
        and np.array_equal(nodes[newest], np.array(key_nodes)[expected + 1])
    )
    tokens = () if sound else tuple(network.histories.token(int(node)) for node in nodes)
    return Holding(place=shape.place, sound=sound, tokens=tokens)


def _seen_next(layer: LayerCache, count: int) -> int:
    if isinstance(layer, RotatingKVCache) or (isinstance(layer, SparseCache) and not layer.groups):
        return min(count, layer.max_size)
    return count % layer.chunk_size if isinstance(layer, ChunkedKVCache) else count


def _cells(network: Traced, layer: LayerCache) -> tuple[Integers, Integers]:
    """Positions and nodes of the used rows, oldest first.

    A ring may hold more rows than its window, padding among them; no query sees those.
    """
    if isinstance(layer, RotatingKVCache) and layer.keys is not None:
        keys = layer.temporal_order(layer.keys)
    elif getattr(layer, "keys", None) is not None:
        keys, _ = layer.keys_and_values()
    else:
        keys = np.zeros((1, 1, 0, 2))
    rows = keys[0, 0].astype(np.int64)
    return rows[:, -1] - 1, network.nodes_of_births(rows[:, 0])


def described(network: Network, cache: PromptCache) -> tuple[dict[str, Any], ...]:
    """The real layers of a prompt cache as plain data, those of a draft model last, no marks."""
    shapes = network.shapes
    pairs = zip_longest(shapes, leaves(cache))
    return tuple(_described(layer) for shape, layer in pairs if shape is None or not shape.marks)


def _described(layer: LayerCache) -> dict[str, Any]:
    entry: dict[str, Any] = {"class": layer.upstream_name or type(layer).__name__}
    if isinstance(layer, ArraysCache):
        entry["filled"] = [state is not None for state in layer.cache]
    else:
        keys = getattr(layer, "keys", None)
        entry["offset"] = int(getattr(layer, "offset", 0))
        entry["rows"] = 0 if keys is None else int(keys.shape[2])  # allocated ones
        if isinstance(layer, SparseCache):
            entry["rows"] = layer.window_rows
    entry["trimmable"] = layer.is_trimmable()
    entry["nbytes"] = nbytes_or_error(layer)
    return entry


def nbytes_or_error(layer: LayerCache) -> int | str:
    """Bytes by the layer's own count; releases before #906 have no such property."""
    try:
        return layer.nbytes
    except UpstreamRaise as error:
        return name_of(error)
