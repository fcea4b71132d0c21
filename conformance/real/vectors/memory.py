"""Replay of recorded results of llama.cpp's own memory classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.memory.attention import AttentionCache, visible_cells
from cachesim.engines.llamacpp.memory.batch import Batch, Ubatch
from cachesim.engines.llamacpp.memory.blob import Blob, RowBytes
from cachesim.engines.llamacpp.memory.cells import NO_WINDOW, WindowMask
from cachesim.engines.llamacpp.memory.context import INVALID, NO_SLOT, Context, PlannedFailure
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair, caches_of, parts_of
from cachesim.engines.llamacpp.memory.module import Memory, UbatchStore
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.model.arithmetic import LayerShape, Output, Place
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Store
from cachesim.model.store import Ubatch as PlainUbatch
from cachesim.prove.playing import Difference
from cachesim.scenario.checks import full_profile
from cachesim.scenario.limits import CONTEXT, TOTAL_TOKENS
from cachesim.typed import JsonObject
from cachesim.units import Array, Integers, Token

F32: Final = 0
WIDE: Final = 1 << 30
"""As many tokens as anybody wants to decode at once."""
LAYERS: Final = 1_000

PROFILES: Final[Mapping[str, str]] = {"b11434": "b11549-shared-state-stays"}
"""A recorded build that no release is, and the profile with its memory."""


class CounterNetwork:
    """Attention layers write zeros; a recurrent row is one number."""

    def __init__(self, shapes: tuple[LayerShape, ...]) -> None:
        self.shapes = shapes
        self.spec = ModelSpec(layers=("attention",), vocabulary=512)

    def run(self, ubatch: PlainUbatch, store: Store) -> Output:
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
        return keys

    def sample(self, logits: Array) -> Token:
        return Token(0)

    def difference(self, one: Array, other: Array) -> float:
        return float(np.abs(one - other).max())

    def companion(self) -> None:
        """No companion."""
        return


def counter_context(memory: Mapping[str, Any], rules: MemoryRules) -> Context:
    """A context around the memory that a vector's line describes, sizes as given there."""
    for part in ("cells", "swa_cells", "n_seq_max"):
        if memory.get(part, 0) > CONTEXT:
            raise ValueError(f"{part}: a memory of {memory[part]:,}; {CONTEXT:,} is the most")
    layers = memory["layers"]
    if sum(layers.values()) > LAYERS:
        raise ValueError(f"layers: {layers}; {LAYERS:,} are the most")
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
    shapes = tuple(found)
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


NAMES: Final = {"attention": "kv", "window": "swa"}
"""Names of our caches in the vectors."""


def mismatch(line: Mapping[str, Any]) -> Difference | None:
    """The first operation that differs; None if every one is equal."""
    player = MemoryPlayer(line["build"], line["memory"])
    for step, (op, expected) in enumerate(zip(line["ops"], line["results"], strict=True)):
        actual = player.play(op)
        if actual != expected:
            return Difference(step=step, real=expected, simulated=actual)
    return None


class MemoryPlayer:
    """A fresh memory and the operations on it, in the vectors' words."""

    def __init__(self, build: str, memory: Mapping[str, Any]) -> None:
        # The recorded stand-in graph leaves the planes behind a short ubatch alone in all builds.
        profile = full_profile("llama.cpp", PROFILES.get(build, build))
        rules = replace(FAMILY.rules(profile).memory, short_ubatch="kept")
        self.context = counter_context(memory, rules)
        self.n_seq_max: int = memory["n_seq_max"]
        self.parts = named_parts(self.context.memory)
        self.slots: dict[str, Blob] = {}

    def play(self, op: Mapping[str, Any]) -> JsonObject:
        """Perform an operation; its result, and the state afterwards."""
        result: JsonObject = getattr(self, f"do_{op['op']}")(op)
        self.context.check_integrity()
        return result | {"state": self.state()}

    # --- operations

    def do_decode(self, op: Mapping[str, Any]) -> JsonObject:
        runs: Sequence[Mapping[str, Any]] = op["runs"]
        counted = sum(run["count"] for run in runs)
        if counted > TOTAL_TOKENS:
            raise ValueError(f"a batch of {counted:,} tokens; {TOTAL_TOKENS:,} is the most")
        if any(run["start"] < 0 for run in runs):
            raise ValueError("a position below 0")
        seqs = tuple(tuple(run["seqs"]) for run in runs for _ in range(run["count"]))
        positions = tuple(run["start"] + i for run in runs for i in range(run["count"]))
        fail = op.get("fail")
        self.context.n_ubatch = op["n_ubatch"]
        self.context.all_outputs = op.get("all_outputs", False)
        ret = self.context.decode(
            Batch(tokens=(0,) * len(seqs), positions=positions, seqs=seqs),
            fail=None if fail is None else PlannedFailure(ubatch=fail["ubatch"], code=fail["code"]),
        )
        result: JsonObject = {"ret": ret}
        if ret not in {NO_SLOT, INVALID}:
            result["ubatches"] = [ubatch_shown(*each) for each in self.context.reached]
        if ret not in {0, NO_SLOT, INVALID}:
            result["ubatches"][-1]["failed"] = True
            result["cleanup"] = [
                {"seq": call.seq, "p0": call.p0, "p1": call.p1, "ret": call.removed}
                for call in self.context.cleanup
            ]
        return result

    def do_seq_rm(self, op: Mapping[str, Any]) -> JsonObject:
        return {"ret": self.context.seq_rm(op["seq"], op["p0"], op["p1"])}

    def do_seq_cp(self, op: Mapping[str, Any]) -> JsonObject:
        self.context.seq_cp(op["src"], op["dst"], op["p0"], op["p1"])
        return {"ret": None}

    def do_seq_keep(self, op: Mapping[str, Any]) -> JsonObject:
        self.context.seq_keep(op["seq"])
        return {"ret": None}

    def do_seq_add(self, op: Mapping[str, Any]) -> JsonObject:
        self.context.seq_add(op["seq"], op["p0"], op["p1"], op["delta"])
        return {"ret": None}

    def do_seq_div(self, op: Mapping[str, Any]) -> JsonObject:
        if op["divisor"] < 1:
            msg = f"positions divided by {op['divisor']}; write a whole number from 1 on"
            raise ValueError(msg)
        self.context.seq_div(op["seq"], op["p0"], op["p1"], op["divisor"])
        return {"ret": None}

    def do_clear(self, op: Mapping[str, Any]) -> JsonObject:
        self.context.clear(data=op["data"])
        return {"ret": None}

    def do_save(self, op: Mapping[str, Any]) -> JsonObject:
        blob = self.context.state_write(op["seq"], partial=op["flags"] == "partial")
        self.slots[op["slot"]] = blob
        return {"bytes": blob.size}

    def do_load(self, op: Mapping[str, Any]) -> JsonObject:
        blob = self.slots[op["slot"]]
        consumed = self.context.state_read(blob, op["seq"], partial=op["flags"] == "partial")
        return {"ok": False} if consumed is None else {"ok": True, "bytes": consumed}

    def do_mask(self, op: Mapping[str, Any]) -> JsonObject:
        """The attention mask of the last ubatch of the decode just before."""
        ubatch, _ = self.context.reached[-1]
        causal: bool = op["causal"]
        return {"causal": causal} | {
            name: visible_cells(cache.streams, cache.mask, ubatch, causal=causal)
            for name, cache in self.parts.caches.items()
        }

    # --- state

    def state(self) -> JsonObject:
        context = self.context
        ids = range(self.n_seq_max)
        state: JsonObject = {"pos": [[context.seq_pos_min(s), context.seq_pos_max(s)] for s in ids]}
        for name, cache in self.parts.caches.items():
            state[name] = [_stream_state(cache, stream) for stream in range(len(cache.streams))]
        if self.parts.recurrent is not None:
            memory = self.parts.recurrent
            cells = memory.cells
            rows = memory.planes.rows[memory.layers[0]][:, 0].tolist()
            state["recurrent"] = {
                "head": cells.head,
                "used": cells.used,
                "rs_idx": list(memory.rs_idx),
                "cells": [
                    {
                        "pos": cells.pos[i],
                        "src": cells.src[i],
                        "tail": cells.tail[i],
                        "seqs": sorted(cells.seqs[i]),
                        "state": rows[i :: memory.size],
                    }
                    for i in range(memory.size)
                ],
            }
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a memory."""

    caches: Mapping[str, AttentionCache]
    recurrent: RecurrentMemory | None = None


def named_parts(memory: Memory) -> Parts:
    """A memory's attention caches under the vectors' names, and its recurrent part."""
    attention, recurrent = parts_of(memory)
    named = {NAMES[part]: cache for part, cache in caches_of(attention).items()}
    return Parts(caches=named, recurrent=recurrent)


def ubatch_shown(ubatch: Ubatch, store: UbatchStore | None) -> JsonObject:
    """A processed ubatch."""
    entry: JsonObject = {
        "n_tokens": ubatch.n_tokens,
        "n_seqs": ubatch.n_seqs,
        "n_seq_tokens": ubatch.n_seq_tokens,
        "seqs": [list(ids) for ids in ubatch.seqs],
        "positions": list(ubatch.positions),
    }
    if store is not None and store.recurrent is not None:
        window = store.recurrent.window
        entry["recurrent"] = {
            "head": window.head,
            "n": len(window.sources),
            "zeroed": window.zeroed,
            "source_rows": list(window.sources),
        }
    return entry


def _stream_state(cache: AttentionCache, stream: int) -> JsonObject:
    cells = cache.streams.cells[stream]
    return {
        "stream": stream,
        "head": cache.streams.heads[stream],
        "used": cells.used,
        "has_shift": cells.has_shift,
        "cells": [
            [i, pos, cells.seqs_of(i), int(cells.shift[i])]
            for i, pos in enumerate(cells.pos.tolist())
            if pos >= 0
        ],
    }
