"""`CacheList`: several caches of one layer that go together."""

from collections.abc import Sequence

from cachesim.engines.mlx_lm.caches.layer_cache import Announced, LayerCache, State
from cachesim.engines.mlx_lm.caches.raised import UpstreamRuntimeError
from cachesim.engines.mlx_lm.rules import CacheRules


class CacheList(LayerCache):
    """A layer that keeps, say, a recurrent state and keys and values (`CacheList`)."""

    has_merge = True

    def __init__(self, rules: CacheRules, *caches: LayerCache) -> None:
        super().__init__(rules)
        self.caches: Sequence[LayerCache] = caches

    def __getitem__(self, member: int) -> LayerCache:
        return self.caches[member]

    @property
    def merges(self) -> bool:
        """Since #743."""
        return self.rules.batches_recurrent

    def is_trimmable(self) -> bool:
        return all(each.is_trimmable() for each in self.caches)

    def trim(self, n: int) -> int:
        """Trim every member; what the last one says counts. Follows `CacheList.trim`."""
        trimmed = [each.trim(n) for each in self.caches]
        return trimmed[-1]

    def size(self) -> int:
        """The largest member's; before #769 there was none."""
        if not self.rules.batches_recurrent:
            return super().size()
        return max(each.size() for each in self.caches)

    def empty(self) -> bool:
        return self.caches[0].empty()

    def count_bytes(self) -> int:
        return sum(each.nbytes for each in self.caches)

    @property
    def state(self) -> State:
        """The members' states; before #886 in one flat list, which cannot be taken apart again."""
        if self.rules.state_form == "whole":
            return [(each.state, type(each).__name__) for each in self.caches]
        if self.rules.list_state_by_member:
            return [each.state for each in self.caches]
        return [part for each in self.caches for part in each.state]

    @property
    def meta_state(self) -> State:
        """The members' classes and their own `meta_state`."""
        if not self.rules.list_state_by_member:
            return ""
        return [type(each).__name__ for each in self.caches], [
            each.meta_state for each in self.caches
        ]

    def put_state(self, state: State, meta_state: State) -> None:
        """Rebuild the members by the names of their classes; follows `CacheList.from_state`."""
        if self.rules.state_form == "whole":
            parts = [(name, one, None) for one, name in state]
        elif self.rules.list_state_by_member:
            parts = list(zip(meta_state[0], state, meta_state[1], strict=True))
        else:
            self.lacks("caches")
        self.caches = [
            LayerCache.named(name).from_state(one, meta, rules=self.rules)
            for name, one, meta in parts
        ]

    def filter(self, rows: Sequence[int]) -> None:
        for each in self.caches:
            each.filter(rows)

    def extend(self, other: "CacheList") -> None:
        for one, two in zip(self.caches, other.caches, strict=False):
            one.extend(two)

    def extract(self, row: int) -> "CacheList":
        self.needs_batches("extract")
        return CacheList(self.rules, *(each.extract(row) for each in self.caches))

    def announce(self, padding: Announced) -> None:
        self.needs_batches("prepare")
        for each in self.caches:
            each.announce(padding)

    def finalize(self) -> None:
        self.needs_batches("finalize")
        for each in self.caches:
            each.finalize()

    @classmethod
    def merge(cls, caches: Sequence["CacheList"]) -> "CacheList":
        caches[0].needs_batches("merge")
        try:
            members = [
                member.merge([each.caches[i] for each in caches])
                for i, member in enumerate(caches[0].caches)
            ]
        except StopIteration as error:
            msg = "generator raised StopIteration"
            raise UpstreamRuntimeError(msg) from error
        return cls(caches[0].rules, *members)
