"""Splits of a batch into ubatches: simple, equal (with a kept tail), by sequence."""

from collections.abc import Callable, Sequence
from itertools import chain

from cachesim.engines.llamacpp.memory.batch import Ids, Ubatch
from cachesim.errors import UpstreamAbort


class Splitter:
    """A validated batch and which of its tokens are already in some ubatch.

    Upstream: `llama_batch_allocr::split_reset`.
    """

    def __init__(
        self,
        positions: Sequence[int],
        seqs: tuple[Ids, ...],
        outputs: tuple[bool, ...],
    ) -> None:
        self.positions = positions
        self.seqs = seqs
        self.outputs = outputs
        self.distinct = set(seqs)
        self.coupled = max(map(len, self.distinct)) > 1
        self._sets: list[frozenset[int]] = []
        self.reset()

    def __len__(self) -> int:
        return len(self.positions)

    def reset(self) -> None:
        """Forget all cuts (`split_reset`)."""
        self.used = [False] * len(self.positions)
        self.n_used = 0
        self._first = 0

    @property
    def all_used(self) -> bool:
        """True if every token is in a ubatch."""
        return self.n_used == len(self.positions)

    def cut(self, split: "Callable[[], Ubatch | None]") -> list[Ubatch] | None:
        """All ubatches of a fresh cut, or None if some token found none."""
        self.reset()
        pieces = []
        while not self.all_used:
            piece = split()
            if piece is None:
                return None
            pieces.append(piece)
        return pieces

    def all_simple(self, n_ubatch: int) -> list[Ubatch] | None:
        """The whole batch by `simple`."""
        return self._uncut(n_ubatch, len(self)) or self.cut(lambda: self.simple(n_ubatch))

    def all_by_sequence(self, n_ubatch: int) -> list[Ubatch] | None:
        """The whole batch by `by_sequence`."""
        return self._uncut(n_ubatch, 1) or self.cut(lambda: self.by_sequence(n_ubatch))

    def all_equal(
        self, n_ubatch: int, *, sequential: bool, keep_tail: int = 0
    ) -> list[Ubatch] | None:
        """The whole batch by `equal`."""
        uncut = self._uncut(n_ubatch, 1) if n_ubatch > keep_tail else None
        return uncut or self.cut(
            lambda: self.equal(n_ubatch, sequential=sequential, keep_tail=keep_tail)
        )

    def _uncut(self, n_ubatch: int, n_seqs: int) -> list[Ubatch] | None:
        """A batch of one sequence that fits into a ubatch: no way to cut divides it."""
        n = len(self)
        if self.coupled or len(self.distinct) > 1 or n > n_ubatch:
            return None
        return [Ubatch(range(n), n_seqs, n // n_seqs, self.positions, self.seqs)]

    def simple(self, n_ubatch: int) -> Ubatch | None:
        """Follows `split_simple`: the next tokens in batch order, sequences mixed freely."""
        start = self._first_unused()
        if start >= len(self):
            return None
        rows = tuple(range(start, min(start + n_ubatch, len(self))))
        self.used[start : rows[-1] + 1] = [True] * len(rows)
        self.n_used += len(rows)
        return self._ubatch(rows, len(rows))

    def by_sequence(self, n_ubatch: int) -> Ubatch | None:
        """Follows `split_seq`: one sequence set, which may shrink to subsets on the way."""
        row = self._first_unused()
        if row >= len(self):
            return None
        sets = self._sequence_sets()
        current = sets[row]
        rows: list[int] = []
        while True:
            rows.append(row)
            self.used[row] = True
            if len(rows) >= n_ubatch:
                break
            row += 1
            while row < len(self) and (self.used[row] or not sets[row] <= current):
                row += 1
            if row == len(self):
                break
            current = sets[row]
        self.n_used += len(rows)
        return self._ubatch(tuple(rows), 1)

    def equal(self, n_ubatch: int, *, sequential: bool, keep_tail: int = 0) -> Ubatch | None:
        """Follows `split_equal`: the same number of tokens of every set."""
        if sequential and self.coupled:
            return None
        if keep_tail and n_ubatch <= keep_tail:
            # Trap: a ubatch must be longer than n_rs_seq + 1.
            where = "llama_batch_allocr::split_equal"
            raise UpstreamAbort(where, "n_ubatch > n_keep_tail")
        pools = self._pools(n_ubatch, sequential=sequential)
        if not pools:
            return None
        taken = self._rounds(pools, n_ubatch)
        if keep_tail:
            taken = keep_tails(pools, taken, n_ubatch, keep_tail)
        firsts = (pool[:n] for pool, n in zip(pools, taken, strict=False))
        rows = tuple(chain.from_iterable(firsts))
        for row in rows:
            self.used[row] = True
        self.n_used += len(rows)
        return self._ubatch(rows, len(taken))

    def _pools(self, n_ubatch: int, *, sequential: bool) -> list[Sequence[int]]:
        """The unused tokens of each set that takes part, sets that do not overlap."""
        if self.all_used:
            return []
        if len(self.distinct) == 1:
            return [range(self._first_unused(), len(self))]
        sets = self._sequence_sets()
        chosen: list[frozenset[int]] = []
        seen: set[frozenset[int]] = set()
        members: set[int] = set()
        last = -1
        for row in range(self._first_unused(), len(self)):
            if self.used[row] or sets[row] in seen:
                continue
            if members & sets[row]:
                continue
            if sequential and chosen and self.seqs[row][0] != last + 1:
                continue
            chosen.append(sets[row])
            seen.add(sets[row])
            members |= sets[row]
            last = self.seqs[row][0]
            if len(chosen) > n_ubatch:  # so one set more than n_ubatch is possible
                break
        pools: dict[frozenset[int], list[int]] = {ids: [] for ids in chosen}
        for row in range(self._first_unused(), len(self)):
            if not self.used[row] and sets[row] in seen:
                pools[sets[row]].append(row)
        return list(pools.values())

    @staticmethod
    def _rounds(pools: list[Sequence[int]], n_ubatch: int) -> list[int]:
        """The number of tokens from each pool: one per round, the first round unconditional.

        Trap: with more sets than n_ubatch the first round alone exceeds it.
        """
        shortest = min(map(len, pools))
        return [max(1, min(shortest, n_ubatch // len(pools)))] * len(pools)

    def _ubatch(self, rows: tuple[int, ...], n_seqs: int) -> Ubatch:
        first, end, n_seq_tokens = rows[0], rows[0] + len(rows), len(rows) // n_seqs
        if rows == tuple(range(first, end)):
            positions, seqs = self.positions[first:end], self.seqs[first:end]
            return Ubatch(rows, n_seqs, n_seq_tokens, positions, seqs)
        positions = tuple(self.positions[row] for row in rows)
        seqs = tuple(self.seqs[row] for row in rows)
        return Ubatch(rows, n_seqs, n_seq_tokens, positions, seqs)

    def _sequence_sets(self) -> list[frozenset[int]]:
        if not self._sets:
            known = {ids: frozenset(ids) for ids in self.distinct}
            self._sets = [known[ids] for ids in self.seqs]
        return self._sets

    def _first_unused(self) -> int:
        while self._first < len(self.used) and self.used[self._first]:
            self._first += 1
        return self._first


def keep_tails(
    pools: list[Sequence[int]], taken: list[int], n_ubatch: int, keep_tail: int
) -> list[int]:
    """Hold the last `keep_tail` tokens of every sequence together in one ubatch (#25278).

    rem(k) = tokens of set k left over. Sets stay as long as nothing or a whole tail is left over;
    the rest goes back to the pool. If already the first set breaks a tail, it goes alone, longer
    to its end if that fits, else shorter.
    """
    left = [len(pool) - n for pool, n in zip(pools, taken, strict=True)]
    kept = 0
    while kept < len(pools) and (left[kept] == 0 or left[kept] >= keep_tail):
        kept += 1
    if kept:
        return taken[:kept]
    if taken[0] + left[0] <= n_ubatch:
        return [taken[0] + left[0]]
    return [len(pools[0]) - keep_tail]
