"""Two attention caches, one for windowed layers (`llama_kv_cache_iswa`)."""

from cachesim.engines.llamacpp.memory.attention import AttentionCache, Writer
from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.blob import Field, Reader
from cachesim.engines.llamacpp.memory.find_slot import SlotInfo, apply_ubatch, prepare
from cachesim.engines.llamacpp.memory.module import Plan, UbatchStore
from cachesim.engines.llamacpp.memory.split import Splitter


class WindowPair:
    """`base` keeps the layers that see everything, `swa` those with a window.

    Everything is done to base, then to swa. Positions are those of swa alone: its `pos_min` is the
    only sign that old positions have been reclaimed.
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
        """Remove from both caches. Trap: always true, though a window may lack needed positions."""
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
        """Follows `llama_kv_cache_iswa::init_batch`.

        Trap: where the simple split finds no room, the equal one is tried, which groups tokens
        otherwise; what the first attempt purged stays purged.
        """
        del all_outputs
        unified = self.streams.unified
        if unified:
            pieces = split.all_simple(n_ubatch)
            slots = None if pieces is None else self.prepare(pieces)
            if pieces is not None and slots is not None:
                return Plan(pieces, slots)
        pieces = split.all_equal(n_ubatch, sequential=not unified)
        slots = None if pieces is None else self.prepare(pieces)
        return None if pieces is None or slots is None else Plan(pieces, slots)

    def prepare(self, ubatches: list[Ubatch]) -> tuple[list[SlotInfo], ...] | None:
        """Cells in base, then in swa."""
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
        """Base then swa, without undo between them.

        Trap: if swa fails, base keeps what it just got while positions say -1.
        """
        if not partial:
            self.base.state_read(reader, seq, partial=False)
        self.swa.state_read(reader, seq, partial=False)

    def check_integrity(self) -> None:
        self.base.check_integrity()
        self.swa.check_integrity()
