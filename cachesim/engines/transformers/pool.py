"""Sectors of memory, and the free blocks in those that an allocator has.

sector   | 2             | 3             | 4             |     0 and 1 are never given away
blocks   | 4   5   (full)| 3   (window)  |     free      |     numbered through the memory
"""

from collections.abc import Iterable, Sequence
from typing import Final

RESERVED: Final = 2
"""Sectors at the beginning, for padding."""


class RegularTrees:
    """Free blocks by sector; sectors are taken in the order of their first free block."""

    def __init__(self, per_tree: int) -> None:
        self.per_tree = per_tree
        self.trees: dict[int, list[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add_tree(self, root: int) -> None:
        """Add a sector, all of whose blocks are free; the lowest is taken first."""
        size = self.per_tree
        self.trees[root] = list(range((root + 1) * size - 1, root * size - 1, -1))
        self._length += size

    def add_leaves(self, leaves: Iterable[int]) -> None:
        """Free blocks; of a sector, the block freed last is taken first."""
        for leaf in leaves:
            self.trees.setdefault(leaf // self.per_tree, []).append(leaf)
            self._length += 1

    def pop_leaves(self, count: int) -> list[int]:
        """Take blocks: whole sectors first to last, of the last one its newest. As upstream, a
        sector that is taken whole comes from its oldest block on.
        """
        self._length -= count
        leaves: list[int] = []
        for root, tree in list(self.trees.items()):
            if not count:
                break
            if len(tree) <= count:
                del self.trees[root]
                taken = tree
            else:
                self.trees[root], taken = tree[:-count], tree[-count:]
            leaves.extend(taken)
            count -= len(taken)
        return leaves

    def delete_full_trees(self) -> list[int]:
        """Give up the sectors without a block in use."""
        full = [root for root, tree in self.trees.items() if len(tree) == self.per_tree]
        for root in full:
            del self.trees[root]
        self._length -= len(full) * self.per_tree
        return full


class CachePool:
    """Free sectors, and the free blocks of each allocator."""

    def __init__(self, num_sectors: int, blocks_per_sector: Sequence[int]) -> None:
        self.num_sectors = num_sectors
        self.free_sectors = list(range(RESERVED, RESERVED + num_sectors))
        self.free = [RegularTrees(each) for each in blocks_per_sector]

    def allocate_sector(self, index: int) -> None:
        """Give the last free sector to an allocator."""
        self.free[index].add_tree(self.free_sectors.pop())

    def try_to_free_sectors(self) -> None:
        """Take back the sectors without a block in use."""
        for free in self.free:
            self.free_sectors.extend(free.delete_full_trees())
