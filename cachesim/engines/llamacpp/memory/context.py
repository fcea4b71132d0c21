"""A context: one memory, one network, and decode (`llama_context`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Batch, Ids, Splitter, Ubatch, as_integers, is_run
from cachesim.engines.llamacpp.memory.blob import READ_DEVICE, Blob, Reader
from cachesim.engines.llamacpp.memory.module import Memory, UbatchStore
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import BlobError, ContractError, UpstreamAbort
from cachesim.model import store as network_side
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of
from cachesim.units import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a batch is invalid (decode returns -1)."""

    reason: str


class BatchAllocr:
    """Validation of batches against a memory, before the split (`llama_batch_allocr`)."""

    def __init__(
        self,
        rules: MemoryRules,
        *,
        n_seq_max: int,
        unified: bool,
        vocabulary: int,
        sections: bool = False,
    ) -> None:
        self.rules = rules
        limit = rules.batch_ids_when_unified if unified else None
        self.n_ids = n_seq_max if limit is None else limit
        self.vocabulary = vocabulary
        self.sections = sections  # a token's position has several (M-RoPE)

    def init(self, batch: Batch, memory: Memory) -> Splitter | Refusal:
        """Follows `llama_batch_allocr::init`, in its order of checks."""
        seqs = batch.seqs or ((0,),) * len(batch)
        if not (min(batch.tokens) >= 0 and max(batch.tokens) < self.vocabulary):
            wrong = next(token for token in batch.tokens if not 0 <= token < self.vocabulary)
            return Refusal(reason=f"invalid token {wrong}")
        alike = seqs.count(seqs[0]) == len(seqs)
        distinct = {seqs[0]} if alike else set(seqs)
        # Trap: with a unified cache older releases accept ids that no sequence has.
        for ids in distinct:
            for s in ids:
                if not 0 <= s < self.n_ids:
                    return Refusal(reason=f"invalid seq_id {s} >= {self.n_ids}")
        if self.rules.hashed_ids and max(map(len, distinct)) > 1:
            # Trap: the order of a token's ids decides whose state survives a coupling.
            kept = {ids: hash_set_order(ids) for ids in distinct}
            seqs = tuple(kept[ids] for ids in seqs)
            distinct = set(seqs)
        positions = batch.positions or self.continued(seqs, memory)
        reason = self.refusal(positions, seqs, distinct, memory)
        if reason:
            return Refusal(reason=reason)
        return Splitter(positions, seqs, outputs_of(batch), distinct)

    def continued(self, seqs: Iterable[Ids], memory: Memory) -> tuple[int, ...]:
        """Positions for a batch without any: each sequence continues after its last one."""
        following: dict[int, int] = {}
        positions = []
        for ids in seqs:
            for s in ids:
                following.setdefault(s, memory.seq_pos_max(s) + 1)
            pos = following[ids[0]]
            positions.append(pos)
            # Older releases advance every id of a token, later ones the first one only.
            for s in ids if self.rules.advances_all_ids else ids[:1]:
                following[s] = following[s] + 1
        return tuple(positions)

    def refusal(
        self, positions: Sequence[int], seqs: tuple[Ids, ...], distinct: set[Ids], memory: Memory
    ) -> str:
        """The consistency checks, in upstream's order; an empty text if all hold."""
        if not self.rules.checks_positions:
            return ""
        continues = not_ahead if self.sections else not_consecutive
        if len(distinct) == 1 == len(seqs[0]) and is_run(positions):  # the others hold for it
            # The common case: one sequence that continues where it ended.
            if not self.sections and positions[0] == memory.seq_pos_max(seqs[0][0]) + 1:
                return ""
            return continues({seqs[0][0]: positions}, memory)
        by_seq: dict[int, Sequence[int]] = {}
        if len(distinct) == 1:
            by_seq = dict.fromkeys(seqs[0], positions)
        else:
            lists: dict[int, list[int]] = {}
            for pos, ids in zip(positions, seqs, strict=True):
                for s in ids:
                    lists.setdefault(s, []).append(pos)
            by_seq = {**lists}
        return (
            continues(by_seq, memory)
            or diverged(distinct, memory)
            # Upstream's check of incompatible sequence sets is here. It intersects, for each
            # id, sets that all contain the id, so it never fires: {0,1} then {1,2} is accepted.
            or (decreasing(by_seq) if self.rules.refuses_decreasing else "")
        )


def outputs_of(batch: Batch) -> tuple[bool, ...]:
    """The tokens with an output; by default the last one alone."""
    return batch.outputs or (False,) * (len(batch) - 1) + (True,)


def not_consecutive(by_seq: dict[int, Sequence[int]], memory: Memory) -> str:
    """Refusal of a sequence that does not continue the memory, without gaps, as upstream."""
    for s, positions in sorted(by_seq.items()):
        run, last = is_run(positions), memory.seq_pos_max(s)
        low = positions[0] if run else min(positions)
        # Traps: a sequence without positions may start anywhere; and gaps in memory are invisible,
        # since only `pos_max` is checked.
        if last >= 0 and low != last + 1:
            return f"sequence {s} has last position {last} and the batch starts at {low}"
        # Trap: repeated positions are accepted, and use two cells.
        if not run and max(positions) - low + 1 > len(set(positions)):
            return f"sequence {s} positions are not continuous"
    return ""


def not_ahead(by_seq: dict[int, Sequence[int]], memory: Memory) -> str:
    """Refusal of positions of several sections (M-RoPE) not after the last one."""
    for s in sorted(by_seq):
        last = memory.seq_pos_max(s)
        if last >= 0 and min(by_seq[s]) <= last:
            return f"sequence {s} has last position {last} and the batch is not ahead of it"
    return ""


def diverged(distinct: set[Ids], memory: Memory) -> str:
    """Refusal of coupled sequences with different positions, as upstream."""
    for ids in distinct:
        for s in ids[1:]:
            # Both ends are compared, so a state at one position can be coupled only with one at the
            # same.
            if memory.seq_pos_min(s) != memory.seq_pos_min(ids[0]):
                return f"sequence {s} is coupled to {ids[0]}, but they have diverged"
            if memory.seq_pos_max(s) != memory.seq_pos_max(ids[0]):
                return f"sequence {s} is coupled to {ids[0]}, but they have diverged"
    return ""


def decreasing(by_seq: dict[int, Sequence[int]]) -> str:
    """Refusal of a sequence with decreasing positions, in batch order."""
    for s, positions in by_seq.items():
        if list(positions) != sorted(positions):
            return f"sequence {s} positions are decreasing"
    return ""


BUCKETS: Final = (13, 29, 59, 127, 257, 541)
"""Bucket counts of the standard library's growing hash set; an integer hashes to itself."""


def hash_set_order(ids: Iterable[int]) -> tuple[int, ...]:
    """The order of the ids in a hash set after their insertion one by one."""
    order: list[int] = []
    grown = 0
    for value in ids:
        if value in order:
            continue
        if len(order) == BUCKETS[grown]:
            grown += 1
            order = threaded(order, BUCKETS[grown])
        _insert(order, value, BUCKETS[grown])
    return tuple(order)


def threaded(values: Iterable[int], buckets: int) -> list[int]:
    """Values inserted one by one into a table of this many buckets."""
    order: list[int] = []
    for value in values:
        _insert(order, value, buckets)
    return order


def _insert(order: list[int], value: int, buckets: int) -> None:
    # A value for an empty bucket is put at the front of the one list that links all buckets, a
    # value for a used bucket in front of the others in it: so up to 13 small ids are reversed, and
    # a token with the ids [0, 1] has the primary id 1.
    mates = (i for i, other in enumerate(order) if other % buckets == value % buckets)
    order.insert(next(mates, 0), value)


OK: Final = 0
NO_SLOT: Final = 1
INVALID: Final = -1
NO_GRAPH: Final = -2

NAMES: Final = 1 << 62
"""Start of token names, outside of any vocabulary, for contexts without a network."""

UNSEEN: Final[Array] = np.zeros(1, np.uint64)
"""The logits of tokens that bypassed the network."""

FailCode: TypeAlias = Literal[2, -2, -3]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFailure:
    """A failure of ubatch `ubatch` of a decode with this code, after its cells were written."""

    ubatch: int
    code: FailCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """A removal after a failed ubatch; upstream ignores its result."""

    seq: int
    p0: int
    p1: int
    removed: bool


class Context:
    """A memory and a network: decode, the outputs of the last batch, save and restore.

    Upstream: `llama_context`.
    """

    def __init__(
        self,
        network: Network,
        memory: Memory,
        *,
        rules: MemoryRules,
        n_ctx: int,
        n_ctx_seq: int,
        n_batch: int,
        n_ubatch: int,
        n_seq_max: int,
        unified: bool,
        n_rs_seq: int = 0,
        sections: bool = False,
    ) -> None:
        self.network = network
        self.computes = arithmetic_of(network) != "counts"
        self.memory = memory
        self.rules = rules
        self.n_ctx = n_ctx
        self.n_ctx_seq = n_ctx_seq
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self.n_seq_max = n_seq_max
        self.n_rs_seq = n_rs_seq
        self.all_outputs = False  # an embedding context: every token has an output
        self.allocr = BatchAllocr(
            rules,
            n_seq_max=n_seq_max,
            unified=unified,
            vocabulary=network.spec.vocabulary if self.computes else NAMES,
            sections=sections,
        )
        self.reached: list[tuple[Ubatch, UbatchStore | None]] = []  # ubatches of the last decode
        self.refusal = ""  # why the last batch was invalid
        self.cleanup: list[Cleanup] = []  # after the last failure
        self.device: dict[int, Blob] = {}
        self._forget_outputs()

    # --- decode

    def decode(self, batch: Batch, *, fail: PlannedFailure | None = None) -> int:
        """Follows `llama_context::decode`; returns 0, or the error.

        1   no place for the batch, or it cannot be cut        2  aborted
        -1  invalid batch       -2  no graph                   -3  compute failed
        """
        self.cleanup, self.reached = [], []
        n_tokens = len(batch.tokens)
        if not n_tokens:
            self.refusal = "n_tokens == 0"
            return INVALID
        split = self.allocr.init(batch, self.memory)
        if isinstance(split, Refusal):
            self.refusal = split.reason
            return INVALID
        if n_tokens > self.n_batch:
            where = "llama_context::decode"
            raise UpstreamAbort(where, f"{n_tokens} tokens > n_batch")
        self.memory.update()  # also if a later step fails
        plan = self.memory.init_batch(split, self.n_ubatch, all_outputs=self.all_outputs)
        if plan is None:
            return NO_SLOT
        self._forget_outputs()  # a batch refused before this leaves those of the one before
        tokens = np.array(batch.tokens, dtype=np.int64)
        wanted = (True,) * n_tokens if self.all_outputs else split.outputs
        for k, ubatch in enumerate(plan.ubatches):
            self.memory.apply(plan, k)
            code = fail.code if fail is not None and fail.ubatch == k else None
            # The cells of this and of earlier ubatches are written; only this one's are removed.
            if code == NO_GRAPH:  # before the inputs are set: rollbacks stay pending
                self.reached.append((ubatch, None))
                return self._give_up(ubatch, code)
            store = self.memory.set_inputs(plan, k)
            self.reached.append((ubatch, store))
            if code is not None:
                return self._give_up(ubatch, code)
            rows = ubatch.rows
            if len(rows) == n_tokens and isinstance(rows, range):  # the whole batch in its order
                outputs = list(compress(rows, wanted))
            else:
                outputs = [i for i, row in enumerate(rows) if wanted[row]]
            output = self.network.run(network_ubatch(ubatch, tokens, outputs, batch.hidden), store)
            for i, logits in zip(outputs, output.logits, strict=True):
                self._logits[rows[i]] = logits
            if output.hidden is not None:
                self._hidden.update(zip(ubatch.rows, output.hidden, strict=True))
        return OK

    def pass_over(self, put: Callable[[Memory], bool]) -> bool:
        """Put tokens into the memory without the network; False if they have to be decoded."""
        self._forget_outputs()
        self.cleanup, self.reached = [], []
        self.memory.update()
        self._unseen = put(self.memory)
        return self._unseen

    def _give_up(self, ubatch: Ubatch, code: int) -> int:
        """Remove the failed ubatch from memory, sequence by sequence."""
        lowest: dict[int, int] = {}
        for ids, pos in zip(ubatch.seqs, ubatch.positions, strict=True):
            # Trap: secondary ids keep their cells, and reclaimed cells are not restored.
            lowest[ids[0]] = min(lowest.get(ids[0], pos), pos)
        for seq in sorted(lowest):
            # Trap: upstream ignores the result, so a recurrent part that refuses keeps positions
            # without a state.
            removed = self.memory.seq_rm(seq, lowest[seq], -1)
            self.cleanup.append(Cleanup(seq=seq, p0=lowest[seq], p1=-1, removed=removed))
        return code

    # --- outputs of the last decode

    def _forget_outputs(self) -> None:
        self._logits: dict[int, Array] = {}
        self._hidden: dict[int, Array] = {}
        self._unseen = False  # the last tokens bypassed the network

    def logits(self, row: int) -> Array:
        """The logits of one token of the last batch, which must have an output."""
        if self._unseen:
            return UNSEEN
        if row not in self._logits:
            raise ContractError(f"row {row} of the last batch did not ask for logits")
        return self._logits[row]

    def hidden(self, row: int) -> Array:
        """The last hidden state of one token of the last batch, for companions."""
        if row not in self._hidden:
            raise ContractError(f"row {row} of the last batch was not computed")
        return self._hidden[row]

    # --- memory, as the public calls forward to it

    @property
    def can_shift(self) -> bool:
        """True if positions may be moved (`llama_memory_can_shift`)."""
        return self.memory.can_shift

    def clear(self, *, data: bool) -> None:
        self.memory.clear(data=data)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return self.memory.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        self.memory.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        self.memory.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.memory.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self.memory.seq_div(seq, p0, p1, divisor)

    def seq_pos_min(self, seq: int) -> int:
        return self.memory.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.memory.seq_pos_max(seq)

    # --- state

    def state_seq_get_size(
        self, seq: int, *, partial: bool = False, on_device: bool = False
    ) -> int:
        """Real bytes of a saved sequence (`llama_state_seq_get_size_ext`)."""
        blob = self.state_write(seq, partial=partial)
        return (blob.on_device().size if on_device else blob.size) + self.rules.sequence_header

    def state_seq_get_data(
        self, seq: int, *, partial: bool = False, on_device: bool = False
    ) -> Blob:
        """Save a sequence (`llama_state_seq_get_data_ext`), without applying pending updates."""
        blob = self.state_write(seq, partial=partial)
        if not on_device:
            return blob
        # Trap: there is one set of buffers per sequence, so each save overwrites the rows of the
        # previous one; an earlier blob then restores the later rows.
        self.device[seq] = blob
        return blob.on_device()

    def state_seq_set_data(self, blob: Blob, seq: int, *, partial: bool = False) -> int:
        """Restore into a sequence; return the real bytes consumed, 0 on failure."""
        if blob.rows_elsewhere:
            held = self.device.get(blob.source)
            if held is None:
                raise UpstreamAbort(READ_DEVICE, f"no rows of sequence {blob.source}")
            rows = blob.with_rows(held, across_chunks=self.rules.on_device_chunks)
            consumed = self.state_read(rows, seq, partial=partial)
            return 0 if consumed is None else blob.size + self.rules.sequence_header
        # Trap: flags are not in the blob; a restore with other flags than the save misreads it.
        consumed = self.state_read(blob, seq, partial=partial)
        return 0 if consumed is None else consumed + self.rules.sequence_header

    def state_write(self, seq: int, *, partial: bool = False) -> Blob:
        """The saved state of a sequence, or (-1) of the whole memory."""
        return Blob(fields=tuple(self.memory.state_write(seq, partial=partial)), source=seq)

    def state_read(self, blob: Blob, seq: int, *, partial: bool = False) -> int | None:
        """Restore a sequence, or (-1) everything; return the real bytes read, None on failure."""
        reader = Reader(blob)
        try:
            self.memory.state_read(reader, seq, partial=partial)
        except BlobError:
            # Trap: a failed restore has usually changed its destination. Older releases even move
            # the rows queued before the failure.
            if not self.rules.clears_failed_restore:
                reader.move_rows()
            return None
        reader.move_rows()
        return reader.consumed

    def check_integrity(self) -> None:
        """Raise ContractError if the memory's accounts are inconsistent."""
        self.memory.check_integrity()


def network_ubatch(
    ubatch: Ubatch, tokens: Array, outputs: list[int], hidden: Array | None
) -> network_side.Ubatch:
    """A ubatch for the network: tokens and positions, no ids."""
    rows: slice | Array = slice(0, len(ubatch.rows))
    if not isinstance(ubatch.rows, range):
        rows = as_integers(ubatch.rows)
    return network_side.Ubatch(
        tokens=tokens[rows],
        positions=as_integers(ubatch.positions),
        sets=ubatch.n_seqs,
        outputs=np.array(outputs, dtype=np.int64),
        hidden=None if hidden is None else hidden[rows],
    )
