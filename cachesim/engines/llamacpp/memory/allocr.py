"""Validation of batches (`llama_batch_allocr::init`) and the fields it fills in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.engines.llamacpp.memory.batch import Batch, Ids
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.engines.llamacpp.memory.split import Splitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason for which a batch is invalid (decode returns -1)."""

    reason: str


class BatchAllocr:
    """Checks batches against a memory and makes them ready to be cut (`llama_batch_allocr`)."""

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
        for ids in distinct:
            for s in ids:
                if not 0 <= s < self.n_ids:
                    return Refusal(reason=f"invalid seq_id {s} >= {self.n_ids}")
        if self.rules.hashed_ids and max(map(len, distinct)) > 1:
            # Trap: the order of ids on a token decides whose state survives a coupling.
            kept = {ids: hash_set_order(ids) for ids in distinct}
            seqs = tuple(kept[ids] for ids in seqs)
            distinct = set(seqs)
        positions = batch.positions or self.continued(seqs, memory)
        reason = self.refusal(positions, seqs, distinct, memory)
        if reason:
            return Refusal(reason=reason)
        return Splitter(positions, seqs, outputs_of(batch))

    def continued(self, seqs: Iterable[Ids], memory: Memory) -> tuple[int, ...]:
        """Positions for a batch that names none: each sequence goes on behind its last one."""
        following: dict[int, int] = {}
        positions = []
        for ids in seqs:
            for s in ids:
                following.setdefault(s, memory.seq_pos_max(s) + 1)
            pos = following[ids[0]]
            positions.append(pos)
            for s in ids if self.rules.advances_all_ids else ids[:1]:
                following[s] = following[s] + 1
        return tuple(positions)

    def refusal(
        self,
        positions: Sequence[int],
        seqs: tuple[Ids, ...],
        distinct: set[Ids],
        memory: Memory,
    ) -> str:
        """The consistency checks, in upstream's order; an empty string when all hold."""
        if not self.rules.checks_positions:
            return ""
        by_seq: dict[int, list[int]] = {}
        if len(distinct) == 1:
            by_seq = {s: list(positions) for s in seqs[0]}
        else:
            for pos, ids in zip(positions, seqs, strict=True):
                for s in ids:
                    by_seq.setdefault(s, []).append(pos)
        return (
            (not_ahead if self.sections else not_consecutive)(by_seq, memory)
            or diverged(distinct, memory)
            # Upstream's check on incompatible sequence sets stands here. It intersects, for each
            # id, sets that all contain the id, so it never fires: {0,1} then {1,2} is accepted.
            or (decreasing(by_seq) if self.rules.refuses_decreasing else "")
        )


def outputs_of(batch: Batch) -> tuple[bool, ...]:
    """Whose logits are wanted: the last token's alone where the batch does not say."""
    return batch.outputs or (False,) * (len(batch) - 1) + (True,)


def not_consecutive(by_seq: dict[int, list[int]], memory: Memory) -> str:
    """Every sequence continues where memory ends, without gaps.

    Traps: a sequence without positions may start anywhere; positions given twice are accepted and
    use two cells; holes in memory are invisible, since only `pos_max` is asked.
    """
    for s, positions in sorted(by_seq.items()):
        low, high = min(positions), max(positions)
        last = memory.seq_pos_max(s)
        if last >= 0 and low != last + 1:
            return f"sequence {s} has last position {last} and the batch starts at {low}"
        if high - low + 1 > len(set(positions)):
            return f"sequence {s} positions are not continuous"
    return ""


def not_ahead(by_seq: dict[int, list[int]], memory: Memory) -> str:
    """Positions of several sections (M-RoPE) need only lie behind the last one; gaps may be."""
    for s in sorted(by_seq):
        last = memory.seq_pos_max(s)
        if last >= 0 and min(by_seq[s]) <= last:
            return f"sequence {s} has last position {last} and the batch is not ahead of it"
    return ""


def diverged(distinct: set[Ids], memory: Memory) -> str:
    """Sequences coupled by a token hold the same positions."""
    for ids in distinct:
        for s in ids[1:]:
            if memory.seq_pos_min(s) != memory.seq_pos_min(ids[0]):
                return f"sequence {s} is coupled to {ids[0]}, but they have diverged"
            if memory.seq_pos_max(s) != memory.seq_pos_max(ids[0]):
                return f"sequence {s} is coupled to {ids[0]}, but they have diverged"
    return ""


def decreasing(by_seq: dict[int, list[int]]) -> str:
    """Positions of a sequence never go down in batch order."""
    for s, positions in by_seq.items():
        if positions != sorted(positions):
            return f"sequence {s} positions are decreasing"
    return ""


BUCKETS: Final = (13, 29, 59, 127, 257, 541)
"""Bucket counts of the standard library's growing hash set; an integer hashes to itself."""


def hash_set_order(ids: Iterable[int]) -> tuple[int, ...]:
    """The order in which the ids come out after being inserted one by one.

    A value that meets an empty bucket goes to the front of the one list that threads all
    buckets, one that meets others goes in front of them: so up to 13 small ids come out reversed,
    and a token given as [0, 1] has the primary id 1.
    """
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
    """Values inserted one after the other into a table of this many buckets."""
    order: list[int] = []
    for value in values:
        _insert(order, value, buckets)
    return order


def _insert(order: list[int], value: int, buckets: int) -> None:
    mates = (i for i, other in enumerate(order) if other % buckets == value % buckets)
    order.insert(next(mates, 0), value)
