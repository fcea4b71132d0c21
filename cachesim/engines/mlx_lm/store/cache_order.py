"""`CacheOrder`: who goes first when a store is full: first in, first out, despite the name."""

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import pairwise

from cachesim.engines.mlx_lm.caches.raised import UpstreamIndexError, UpstreamValueError
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.store.trie import Key


class CacheOrder:
    """One queue per type of entry, the least worth keeping first."""

    def __init__(self, rules: StoreRules) -> None:
        self._rules = rules
        self.queues: dict[str, deque[tuple[Hashable, Key]]] = {
            name: deque() for name in rules.queues
        }

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def push(self, model: Hashable, tokens: Key, queue: str) -> None:
        """Put a key at the end of its queue."""
        self.queues[queue].append((model, tokens))

    def remove(self, model: Hashable, tokens: Key) -> None:
        """Take a key out of the first queue that has it; follows `CacheOrder.remove`."""
        for queue in self.queues.values():
            if (model, tokens) in queue:
                queue.remove((model, tokens))
                return
        if not self._rules.forgives_lost_keys:
            msg = "deque.remove(x): x not in deque"
            raise UpstreamValueError(msg)

    def pop(self) -> tuple[Hashable, Key]:
        """The next to go; follows `CacheOrder.pop`.

        A queue is taken from if it is at least as long as the one after it, else that one is asked.
        """
        names: Sequence[str] = self._rules.queues
        for one, two in pairwise(names):
            queue, following = self.queues[one], self.queues[two]
            if len(queue) >= len(following) and (queue or not self._rules.passes_empty_queues):
                return self._first(queue)
        return self._first(self.queues[names[-1]])

    @staticmethod
    def _first(queue: deque[tuple[Hashable, Key]]) -> tuple[Hashable, Key]:
        if not queue:
            msg = "pop from an empty deque"
            raise UpstreamIndexError(msg)
        return queue.popleft()
