"""The stand-in network of the memory vectors: a recurrent state counts the tokens it absorbed."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.blob import RowBytes
from cachesim.engines.llamacpp.memory.cells import NO_WINDOW, WindowMask
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.model.arithmetic import LayerShape, Output, Place
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.scenario.limits import CONTEXT
from cachesim.units import Array, Integers, Token

F32: Final = 0
WIDE: Final = 1 << 30
"""As many tokens as anybody wants to decode at once."""
LAYERS: Final = 1_000


class CounterNetwork:
    """Attention layers write zeros; a recurrent row is one number."""

    def __init__(self, shapes: tuple[LayerShape, ...]) -> None:
        self.shapes = shapes
        self.spec = ModelSpec(layers=("attention",), vocabulary=512)

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Every set's state grows by the number of its tokens."""
        count = len(ubatch.tokens)
        for shape in self.shapes:
            if shape.place != "recurrent":
                row = np.zeros((count, 1))
                store.attend(shape.layer, row, row)
                continue
            length = count // ubatch.sets
            ends = length - np.arange(min(length, store.planes))
            start = store.states(shape.layer)
            store.keep_states(shape.layer, start[:, None] + ends[None, :, None])
        wanted = count if ubatch.outputs is None else len(ubatch.outputs)
        return Output(logits=np.zeros((wanted, 1)))

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        del layer, shifts
        return keys

    def sample(self, logits: Array) -> Token:
        del logits
        return Token(0)

    def difference(self, one: Array, other: Array) -> float:
        return float(np.abs(one - other).max())

    def companion(self) -> None:
        """There is none."""
        return


def _counter_shapes(layers: Mapping[str, int]) -> tuple[LayerShape, ...]:
    places: tuple[tuple[str, Place], ...] = (
        ("kv", "attention"),
        ("swa", "window"),
        ("recurrent", "recurrent"),
    )
    found: list[LayerShape] = []
    for part, place in places:
        for _ in range(layers.get(part, 0)):
            layer = len(found)
            if place == "recurrent":
                found.append(LayerShape(layer=layer, place=place, dtype="int64", row=1))
            else:
                shape = LayerShape(layer=layer, place=place, dtype="float64", key=(1,), value=(1,))
                found.append(shape)
    return tuple(found)


def counter_context(memory: Mapping[str, Any], rules: MemoryRules) -> Context:
    """A context around the memory that a vector's line describes, sizes as given there."""
    for part in ("cells", "swa_cells", "n_seq_max"):
        if memory.get(part, 0) > CONTEXT:
            msg = f"{part}: a memory of {memory[part]:,}; {CONTEXT:,} is the most"
            raise ValueError(msg)
    if sum(memory["layers"].values()) > LAYERS:
        msg = f"layers: {memory['layers']}; {LAYERS:,} are the most"
        raise ValueError(msg)
    shapes = _counter_shapes(memory["layers"])
    return Context(
        CounterNetwork(shapes),
        _memory(memory, shapes, rules),
        rules=rules,
        n_ctx=WIDE,
        n_ctx_seq=WIDE,
        n_batch=WIDE,
        n_ubatch=WIDE,
        n_seq_max=memory["n_seq_max"],
        unified=memory["unified"],
        n_rs_seq=memory.get("n_rs_seq", 0),
    )


def _memory(
    memory: Mapping[str, Any], shapes: tuple[LayerShape, ...], rules: MemoryRules
) -> Memory:
    kind = memory["kind"]
    sizes = {shape.layer: RowBytes(key=4, value=4, r=4, s=4) for shape in shapes}

    def cache(place: Place, cells: int, mask: WindowMask) -> AttentionCache:
        return AttentionCache(
            rules,
            [shape for shape in shapes if shape.place == place],
            sizes,
            n_seq_max=memory["n_seq_max"],
            unified=memory["unified"],
            cells=cells,
            mask=mask,
            element=F32,
        )

    def recurrent() -> RecurrentMemory:
        rows = [shape for shape in shapes if shape.place == "recurrent"]
        return RecurrentMemory(
            rules, rows, sizes, n_seq_max=memory["n_seq_max"], n_rs_seq=memory["n_rs_seq"]
        )

    if kind == "recurrent":
        return recurrent()
    mask = (
        WindowMask(kind=memory["swa_type"], n_swa=memory["n_swa"])
        if "n_swa" in memory
        else NO_WINDOW
    )
    if kind == "kv":
        return cache("attention", memory["cells"], mask)
    base = cache("attention", memory["cells"], NO_WINDOW)
    if kind == "hybrid":
        return HybridMemory(base, recurrent())
    pair = WindowPair(base, cache("window", memory["swa_cells"], mask))
    return pair if kind == "iswa" else HybridMemory(pair, recurrent())
