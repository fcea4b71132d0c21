"""The interface of all memories, and the plan of a batch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cachesim.engines.llamacpp.memory.batch import Splitter, Ubatch
from cachesim.engines.llamacpp.memory.blob import Field, Reader
from cachesim.engines.llamacpp.memory.cells import SlotInfo
from cachesim.engines.llamacpp.memory.recurrent_cells import Found, PlaneWriter
from cachesim.errors import ContractError
from cachesim.model.store import Lanes
from cachesim.units import Array


class Plan(NamedTuple):
    """A batch cut into ubatches, with cells for all of it before the first one is computed."""

    ubatches: list[Ubatch]
    slots: tuple[list[SlotInfo], ...] = ()  # per attention cache: one for each ubatch
    found: Sequence[Found | None] = ()  # the recurrent cells after each ubatch; None: not searched


class CacheWriter(Protocol):
    """An attention cache during one ubatch."""

    @property
    def layers(self) -> Sequence[int]:
        """The layers with keys and values in the cache."""
        ...

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write keys and values, then return the visible ones."""
        ...


class UbatchStore:
    """The `Store` of a network for one ubatch, over a memory of any kind."""

    def __init__(self, caches: Sequence[CacheWriter], recurrent: PlaneWriter | None = None) -> None:
        self._caches = caches
        self.recurrent = recurrent
        self.planes = 1 if recurrent is None else recurrent.planes

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the ubatch's keys and values into its cells, then return the visible ones."""
        for cache in self._caches:
            if layer in cache.layers:
                return cache.attend(layer, keys, values)
        raise ContractError(f"no cache keeps the keys of layer {layer}")

    def states(self, layer: int) -> Array:
        """The initial state of each set."""
        if self.recurrent is None:
            raise _nobody_keeps(layer)
        return self.recurrent.states(layer)

    def keep_states(self, layer: int, states: Array) -> None:
        """Store the final states of each set."""
        if self.recurrent is None:
            raise _nobody_keeps(layer)
        self.recurrent.keep_states(layer, states)


def _nobody_keeps(layer: int) -> ContractError:
    return ContractError(f"no memory keeps the states of layer {layer}")


class Memory(Protocol):
    """A memory module, under upstream's names (`llama_memory_i`)."""

    @property
    def can_shift(self) -> bool:
        """True if positions may be moved; advisory, `seq_add` does not test it."""
        ...

    def clear(self, *, data: bool) -> None:
        """Clear all cells; `data` zeroes the buffers too."""
        ...

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove [p0, p1) of a sequence; a negative end is open, sequence -1 is all."""
        ...

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Add `dst` to the content of `src`."""
        ...

    def seq_keep(self, seq: int) -> None:
        """Drop all other sequences."""
        ...

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions."""
        ...

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide positions."""
        ...

    def seq_pos_min(self, seq: int) -> int:
        """Lowest position, -1 if none."""
        ...

    def seq_pos_max(self, seq: int) -> int:
        """Highest position, -1 if none."""
        ...

    def update(self) -> None:
        """Apply pending updates: copies of streams, rotations of shifted keys."""
        ...

    def init_batch(self, split: Splitter, n_ubatch: int, *, all_outputs: bool) -> Plan | None:
        """Cut a batch and find cells for all of it, or None."""
        ...

    def apply(self, plan: Plan, k: int) -> None:
        """Write the cells of ubatch `k`."""
        ...

    def set_inputs(self, plan: Plan, k: int) -> UbatchStore:
        """The store for the network; pending rollbacks are reset."""
        ...

    def state_write(self, seq: int, *, partial: bool) -> list[Field]:
        """The fields of a saved state; sequence -1 is the whole memory."""
        ...

    def state_read(self, reader: Reader, seq: int, *, partial: bool) -> None:
        """Restore a saved state; BlobError if it fails, possibly halfway as upstream."""
        ...

    def check_integrity(self) -> None:
        """Raise ContractError if the accounts are inconsistent."""
        ...
