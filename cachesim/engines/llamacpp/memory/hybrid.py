"""Attention and recurrent rows side by side (`llama_memory_hybrid`, `llama_memory_hybrid_iswa`)."""

from cachesim.engines.llamacpp.memory.attention import AttentionCache, Writer
from cachesim.engines.llamacpp.memory.batch import Splitter, Ubatch
from cachesim.engines.llamacpp.memory.blob import Field, Reader
from cachesim.engines.llamacpp.memory.cells import MAX, SlotInfo, apply_ubatch, normalised, prepare
from cachesim.engines.llamacpp.memory.module import Plan, UbatchStore
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.errors import BlobError


class WindowPair:
    """`base` has the layers with full attention, `swa` those with a window.

    Every operation is applied to base, then to swa. Positions are those of swa alone: its `pos_min`
    is the only sign of reclaimed positions.
    """

    def __init__(self, base: AttentionCache, swa: AttentionCache) -> None:
        self.base = base
        self.swa = swa
        self.streams = base.streams

    @property
    def can_shift(self) -> bool:
        """True if both caches can shift and have the same number of cells."""
        equal = self.base.streams.size == self.swa.streams.size
        return self.base.can_shift and self.swa.can_shift and equal

    def clear(self, *, data: bool) -> None:
        self.base.clear(data=data)
        self.swa.clear(data=data)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove from both caches."""
        # Trap: always true, though a window may lack needed positions.
        base = self.base.seq_rm(seq, p0, p1)
        swa = self.swa.seq_rm(seq, p0, p1)
        return base and swa

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        self.base.seq_cp(src, dst, p0, p1)
        self.swa.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        self.base.seq_keep(seq)
        self.swa.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.base.seq_add(seq, p0, p1, delta)
        self.swa.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self.base.seq_div(seq, p0, p1, divisor)
        self.swa.seq_div(seq, p0, p1, divisor)

    def seq_pos_min(self, seq: int) -> int:
        return self.swa.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.swa.seq_pos_max(seq)

    def update(self) -> None:
        self.base.update()
        self.swa.update()

    def init_batch(self, split: Splitter, n_ubatch: int, *, all_outputs: bool) -> Plan | None:
        """Follows `llama_kv_cache_iswa::init_batch`."""
        unified = self.streams.unified
        if unified:
            pieces = split.all_simple(n_ubatch)
            slots = None if pieces is None else self.prepare(pieces)
            if pieces is not None and slots is not None:
                return Plan(pieces, slots)
        # Trap: a second attempt with equal pieces, which groups tokens differently; purges of the
        # first attempt are not undone.
        pieces = split.all_equal(n_ubatch, sequential=not unified)
        slots = None if pieces is None else self.prepare(pieces)
        return None if pieces is None or slots is None else Plan(pieces, slots)

    def prepare(self, ubatches: list[Ubatch]) -> tuple[list[SlotInfo], ...] | None:
        """Find cells in base, then in swa."""
        base = prepare(self.base.streams, ubatches)
        if base is None:
            return None
        swa = prepare(self.swa.streams, ubatches)
        return None if swa is None else (base, swa)

    def apply(self, plan: Plan, k: int) -> None:
        """Write the cells of ubatch `k` in both."""
        apply_ubatch(self.base.streams, plan.slots[0][k], plan.ubatches[k])
        apply_ubatch(self.swa.streams, plan.slots[1][k], plan.ubatches[k])

    def writers(self, plan: Plan, k: int) -> list[Writer]:
        """The writers of ubatch `k`."""
        return [
            Writer(self.base, plan.slots[0][k], plan.ubatches[k]),
            Writer(self.swa, plan.slots[1][k], plan.ubatches[k]),
        ]

    def set_inputs(self, plan: Plan, k: int) -> UbatchStore:
        """The store of ubatch `k`."""
        return UbatchStore(self.writers(plan, k))

    def state_write(self, seq: int, *, partial: bool) -> list[Field]:
        """Base then swa; `partial` (PARTIAL_ONLY): swa alone."""
        base = [] if partial else self.base.state_write(seq, partial=False)
        return base + self.swa.state_write(seq, partial=False)

    def state_read(self, reader: Reader, seq: int, *, partial: bool) -> None:
        """Restore base, then swa, without undo between them."""
        if not partial:
            self.base.state_read(reader, seq, partial=False)
        # Trap: if swa fails, base keeps its new content while positions are -1.
        self.swa.state_read(reader, seq, partial=False)

    def check_integrity(self) -> None:
        self.base.check_integrity()
        self.swa.check_integrity()


class HybridMemory:
    """An attention part (plain, or a window pair) and a recurrent part under the same ids.

    Upstream: `llama_memory_hybrid`.
    """

    def __init__(self, attention: AttentionCache | WindowPair, recurrent: RecurrentMemory) -> None:
        self.attention = attention
        self.recurrent = recurrent
        self.rules = recurrent.rules

    @property
    def can_shift(self) -> bool:
        """True if the attention part can shift."""
        return self.attention.can_shift

    def clear(self, *, data: bool) -> None:
        self.attention.clear(data=data)
        self.recurrent.clear(data=data)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove from the recurrent part, then from attention."""
        # The recurrent part decides: if it refuses, attention stays unchanged. Trap: it accepts a
        # range that ends at or before its position, so cells are removed whose tokens the state
        # includes.
        return self.recurrent.seq_rm(seq, p0, p1) and self.attention.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Attention, then recurrent (which ignores the range)."""
        self.attention.seq_cp(src, dst, p0, p1)
        self.recurrent.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        self.attention.seq_keep(seq)
        self.recurrent.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.attention.seq_add(seq, p0, p1, delta)
        self.recurrent.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self.attention.seq_div(seq, p0, p1, divisor)
        self.recurrent.seq_div(seq, p0, p1, divisor)

    def seq_pos_min(self, seq: int) -> int:
        """The larger position of both parts."""
        if self.rules.hybrid_starts_with_attention:
            return self.attention.seq_pos_min(seq)
        # Trap: equal to pos_max in normal use, because a state has one position only.
        return max(self.attention.seq_pos_min(seq), self.recurrent.seq_pos_min(seq))

    def seq_pos_max(self, seq: int) -> int:
        """The smaller position of both parts."""
        one, other = self.attention.seq_pos_max(seq), self.recurrent.seq_pos_max(seq)
        # Trap: -1 if one part lacks the sequence, whatever the other one holds.
        return min(other, one)

    def update(self) -> None:
        """Update the attention part; the recurrent one has no updates."""
        self.attention.update()

    def init_batch(self, split: Splitter, n_ubatch: int, *, all_outputs: bool) -> Plan | None:
        """Find cells of both parts for the batch."""
        # With one attempt, unlike a window pair; recurrent cells first.
        pieces = self.recurrent.cut(
            split, n_ubatch, all_outputs=all_outputs, sequential=not self.attention.streams.unified
        )
        rows = None if pieces is None else self.recurrent.prepare(pieces)
        if pieces is None or rows is None:
            return None
        slots = self.attention.prepare(pieces)
        return None if slots is None else Plan(pieces, slots, rows)

    def apply(self, plan: Plan, k: int) -> None:
        """Attention, then recurrent."""
        self.attention.apply(plan, k)
        self.recurrent.apply(plan, k)

    def set_inputs(self, plan: Plan, k: int) -> UbatchStore:
        """The store of ubatch `k`."""
        return UbatchStore(self.attention.writers(plan, k), self.recurrent.keeper(plan, k))

    def state_write(self, seq: int, *, partial: bool) -> list[Field]:
        """Attention, then recurrent; `partial`: only parts that cannot be cut (windows, rows)."""
        fields: list[Field] = []
        # Partial: only the parts that cannot be cut. Trap: full attention keeps its later cells,
        # and a decode before they are removed gets positions twice.
        if not partial or isinstance(self.attention, WindowPair):
            fields += self.attention.state_write(seq, partial=partial)
        return fields + self.recurrent.state_write(seq, partial=partial)

    def state_read(self, reader: Reader, seq: int, *, partial: bool) -> None:
        """Restore in the order of writing."""
        if not partial or isinstance(self.attention, WindowPair):
            self.attention.state_read(reader, seq, partial=partial)
        try:
            self.recurrent.state_read(reader, seq, partial=partial)
        except BlobError:
            # Trap: without undo (older releases, and any with a window) a failure in the recurrent
            # part leaves the attention part restored.
            undoes = self.rules.undoes_hybrid_restore and not partial
            if undoes and isinstance(self.attention, AttentionCache):
                if seq == -1:
                    self.attention.clear(data=True)
                else:
                    self.attention.zero_rows(seq)
                    self.attention.seq_rm(seq, *normalised(0, MAX))
            raise

    def check_integrity(self) -> None:
        self.attention.check_integrity()
        self.recurrent.check_integrity()


def parts_of(memory: object) -> tuple[AttentionCache | WindowPair | None, RecurrentMemory | None]:
    """The attention part and the recurrent part of any memory; None for a missing one."""
    match memory:
        case HybridMemory():
            return memory.attention, memory.recurrent
        case RecurrentMemory():
            return None, memory
        case AttentionCache() | WindowPair():
            return memory, None
        case _:
            return None, None


def caches_of(attention: AttentionCache | WindowPair | None) -> dict[str, AttentionCache]:
    """The attention caches of an attention part, by name."""
    if isinstance(attention, WindowPair):
        return {"attention": attention.base, "window": attention.swa}
    return {} if attention is None else {"attention": attention}
