"""Groups that see only what is near: sliding windows, and chunks that look at nothing before them.

Follows `SlidingWindowManager` and `ChunkedLocalAttentionManager`.
"""

from collections.abc import Sequence

from cachesim.engines.vllm.block_pool import NULL
from cachesim.engines.vllm.groups import cdiv
from cachesim.engines.vllm.managers import Found, LookUp, Manager, Mask
from cachesim.errors import UpstreamAbort


def pop_to_alignment(found: list[list[int]], block_size: int, alignment: int) -> None:
    """Drop blocks from the end until the hit ends on the alignment."""
    while block_size != alignment and len(found[0]) * block_size % alignment:
        for blocks in found:
            blocks.pop()


class SlidingWindow(Manager):
    """A hit needs the blocks that the window before its end covers (`SlidingWindowManager`)."""

    def needed(self, *, use_eagle: bool) -> int:
        """Blocks in a row that make a hit: ceil((window - 1) / block), one more for a drafter.

        Trap: 0 for a window of 1; `find` takes one block all the same, and `mask` keeps none.
        """
        whole = cdiv(self.spec.window - 1, self.block_size) + use_eagle
        return max(1, whole - 1) if self.rules.lookup.window_one_short else whole

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.spec.window + 1)

    def find(self, asked: LookUp) -> Found:
        """From right to left, the first run that is long enough.

        blocks    x  x  .  x  x  x  .     x cached
        window 2        null  null  3 4 5 -> the run 4 5 ends the hit
        """
        size, own = self.block_size, self.own(asked.hashes)
        if asked.alignment % size:
            where = "SlidingWindowManager.find_longest_cache_hit"
            raise UpstreamAbort(where, "does not support fine-grained (partial) cache hits")
        needed = self.needed(use_eagle=asked.drop_eagle_block)
        most = asked.max_length // size
        found: list[list[int]] = [[NULL] * most for _ in asked.group_ids]
        run, matched = 0, False
        keys, groups, first = self.pool.cached, self.pool.groups, asked.group_ids[0]
        for i in range(most - 1, -1, -1):
            if own[i] * groups + first not in keys:  # most positions: nothing to build for them
                run = 0
                continue
            cached = self.pool.get_cached_block(own[i], asked.group_ids)
            if cached is None:
                run = 0
                continue
            early = asked.drop_eagle_block and not self.rules.lookup.window_end_before_drop
            end = i if early else i + 1
            if run == 0 and end * size % asked.alignment:
                continue
            for each, block in zip(found, cached, strict=True):
                each[i] = block
            run += 1
            if run >= needed:
                for each in found:
                    del each[i + run :]
                matched = True
                break
        if not matched:  # a run that starts with the first block is a whole prefix
            for each in found:
                del each[run:]
            pop_to_alignment(found, size, asked.alignment)
        if asked.drop_eagle_block and found[0]:
            for each in found:
                each.pop()
            pop_to_alignment(found, size, asked.alignment)
        return found, len(found[0]) * size

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        size, alignment = self.block_size, self.alignment
        exact = self.rules.retention.window_mask == "with-drafter"
        if alignment % size or (alignment == size and not exact):
            return None
        eagle = self.use_eagle and exact
        needed = self.needed(use_eagle=eagle)
        shift = int(eagle)
        mask = [False] * (end - start)
        segment = alignment if retention is None else retention
        if segment:
            per_segment = segment // size
            if needed >= per_segment:
                return None
            for i in range(start, end):
                if i >= shift and (i - shift) % per_segment >= per_segment - needed:
                    mask[i - start] = True
        if retention is not None:
            for boundary in boundaries:
                stop = boundary // alignment * alignment // size + shift
                for i in range(max(start, stop - needed), min(end, stop)):
                    mask[i - start] = True
        return mask


class ChunkedLocalAttention(Manager):
    """A token sees its own chunk: blocks before the chunk count as present.

    Trap: a prompt that nobody ever sent has hits up to its last chunk, for a boundary of the chunk
    needs nothing.
    """

    def num_skipped(self, num_computed: int) -> int:
        return num_computed // self.spec.chunk * self.spec.chunk

    def find(self, asked: LookUp) -> Found:
        """Null blocks up to the chunk that `max_length` lies in, then a run."""
        size, own = self.block_size, self.own(asked.hashes)
        first = self.num_skipped(asked.max_length) // size
        found: list[list[int]] = [[NULL] * first for _ in asked.group_ids]
        for i in range(first, asked.max_length // size):
            cached = self.pool.get_cached_block(own[i], asked.group_ids)
            if cached is None:
                break
            for each, block in zip(found, cached, strict=True):
                each.append(block)
        return found, len(found[0]) * size
