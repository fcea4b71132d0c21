"""Slots: of attention's tokens, of windows, of recurrent states; page by page, first in, first out.

Follows `TokenToKVPoolAllocator`, `PagedTokenToKVPoolAllocator`, `SWATokenToKVPoolAllocator` and
`MambaPool`. Slot 0 is nobody's: a window slot that was freed is found there.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cachesim.engines.sglang.node import NO_SLOTS
from cachesim.units import Integers


class Ring:
    """Free numbers: taken from the head, put back at either end."""

    __slots__ = ("_data", "_head", "count")

    def __init__(self, first: int, count: int) -> None:
        self._data = np.arange(first, first + max(count, 1), dtype=np.int64)
        self._head = 0
        self.count = count

    def take(self, count: int) -> Integers:
        """The first numbers."""
        taken = self._read(count)
        self._head = (self._head + count) % len(self._data)
        self.count -= count
        return taken

    def put(self, numbers: Integers) -> None:
        """Behind all others."""
        self._reach(len(numbers))
        self._write((self._head + self.count) % len(self._data), numbers)
        self.count += len(numbers)

    def put_first(self, numbers: Integers) -> None:
        """Before all others."""
        self._reach(len(numbers))
        self._head = (self._head - len(numbers)) % len(self._data)
        self._write(self._head, numbers)
        self.count += len(numbers)

    def _read(self, count: int) -> Integers:
        size, end = len(self._data), self._head + count
        if end <= size:
            return self._data[self._head : end].copy()
        return np.concatenate((self._data[self._head :], self._data[: end - size]))

    def _write(self, at: int, numbers: Integers) -> None:
        size, end = len(self._data), at + len(numbers)
        if end <= size:
            self._data[at:end] = numbers
        else:
            self._data[at:] = numbers[: size - at]
            self._data[: end - size] = numbers[size - at :]

    def _reach(self, more: int) -> None:
        """Room for more numbers than there were: a page that was freed twice is there twice."""
        if self.count + more > len(self._data):
            held = self._read(self.count)
            self._data = np.zeros(2 * (self.count + more), np.int64)
            self._data[: self.count] = held
            self._head = 0


class TokenPool:
    """Slots for tokens, in pages of `page`; page 0 is left out."""

    def __init__(self, size: int, page: int) -> None:
        self.size = size
        self.page = page
        self.free_pages = Ring(1, size // page)
        self._group: list[Integers] | None = None

    @property
    def available(self) -> int:
        """Free slots."""
        return self.free_pages.count * self.page

    def alloc(self, count: int) -> Integers | None:
        """Allocate slots, of page 1."""
        if count > self.free_pages.count:
            return None
        return self.free_pages.take(count)

    def alloc_pages(self, count: int) -> Integers | None:
        """Allocate slots in whole pages, for loads from the host."""
        page = self.page
        if count > self.available:
            return None
        pages = self.free_pages.take(count // page)
        return (pages[:, None] * page + np.arange(page, dtype=np.int64)).reshape(-1)

    def alloc_extend(self, spans: Sequence[tuple[int, int, int]]) -> Integers | None:
        """Slots for spans `(before, after, last slot)` of several requests, one after the other.

            last page      new pages            last new page
            . . x x | x x x x | x x x x | x x . .
                ^ last slot + 1

        Follows `alloc_extend_kernel`.
        """
        page = self.page
        needed = [-(-after // page) - -(-before // page) for before, after, _ in spans]
        total = sum(needed)
        if total > self.free_pages.count:
            return None
        pages = self.free_pages.take(total)
        found, at = [], 0
        for (before, after, last), count in zip(spans, needed, strict=True):
            rest = min(after, -(-before // page) * page) - before
            if rest:
                found.append(np.arange(last + 1, last + 1 + rest, dtype=np.int64))
            if count:
                grid = pages[at : at + count, None] * page + np.arange(page, dtype=np.int64)
                found.append(grid.reshape(-1)[: after - before - rest])
            at += count
        return np.concatenate(found) if found else NO_SLOTS

    def free(self, slots: Integers) -> None:
        """Give slots back; inside a group, all at its end."""
        if not len(slots):
            return
        if self._group is not None:
            self._group.append(slots)
        elif self.page == 1:
            self.free_pages.put(slots)
        else:
            self.free_pages.put_first(np.unique(slots // self.page))

    def begin_group(self) -> None:
        """Collect what is freed until `end_group`."""
        self._group = []

    def end_group(self) -> None:
        """Free what the group has gathered: pages that come twice count once."""
        group, self._group = self._group, None
        if group:
            self.free(np.concatenate(group))


class WindowPool(TokenPool):
    """Slots for full attention, each with one of the window layers as long as that is alive."""

    def __init__(self, size: int, window_size: int, page: int) -> None:
        super().__init__(size, page)
        self.windows = TokenPool(window_size, page)
        self.mapping = np.zeros(size + page + 1, np.int64)
        self.mapping[-1] = -1

    def alloc(self, count: int) -> Integers | None:
        if count > self.free_pages.count or count > self.windows.free_pages.count:
            return None
        slots = self.free_pages.take(count)
        self.mapping[slots] = self.windows.free_pages.take(count)
        return slots

    def alloc_extend(self, spans: Sequence[tuple[int, int, int]]) -> Integers | None:
        """Slots for spans in both. Follows `SWATokenToKVPoolAllocator.alloc_extend`."""
        inner = [(before, after, int(self.mapping[last])) for before, after, last in spans]
        slots, windows = super().alloc_extend(spans), self.windows.alloc_extend(inner)
        if slots is None or windows is None:
            return None
        self.mapping[slots] = windows
        return slots

    def free(self, slots: Integers) -> None:
        if not len(slots):
            return
        grouped = self._group is not None
        super().free(slots)
        if not grouped:
            self.free_window(slots)

    @property
    def available_windows(self) -> int:
        """Free window slots."""
        return self.windows.available

    def free_full(self, slots: Integers) -> None:
        """Attention's slots only. Follows `free_full_segment`."""
        super().free(slots)

    def free_window(self, slots: Integers) -> None:
        """The window slots only."""
        windows = self.mapping[slots]
        self.windows.free(windows[windows > 0])
        self.mapping[slots] = 0


class StatePool:
    """Slots for recurrent states, numbered from 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = Ring(1, size)
        self._group: list[int] = []
        self.on_copy: Callable[[int, int], None] | None = None
        self.on_alloc: Callable[[int], None] | None = None

    @property
    def available(self) -> int:
        """Free slots."""
        return self._free.count

    def begin_group(self, count: int) -> None:
        """Set slots aside for those who will ask one by one, if there are so many.

        Follows `alloc_group_begin`.
        """
        if 0 < count <= self._free.count:
            self._group = [int(slot) for slot in self._free.take(count)]

    def end_group(self) -> None:
        """Put back what nobody asked for."""
        group, self._group = self._group, []
        if group:
            self._free.put(np.array(group, np.int64))

    def alloc(self) -> int | None:
        """The slot that has been free for longest."""
        if self._group:
            return self._group.pop(0)
        if not self._free.count:
            return None
        slot = int(self._free.take(1)[0])
        if self.on_alloc is not None:
            self.on_alloc(slot)
        return slot

    def copy(self, source: int, target: int) -> None:
        """The state in one slot goes into another one, too."""
        if self.on_copy is not None:
            self.on_copy(source, target)

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._free.put(np.array([slot], np.int64))
