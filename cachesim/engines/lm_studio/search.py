"""What a search draws for LM Studio's mlx-engine, and its laws."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from cachesim.engines.events import Event
from cachesim.engines.lm_studio.cache_wrapper import SessionPromptCache
from cachesim.engines.lm_studio.prompt_cache import DiskPromptCache, RecordStore
from cachesim.engines.lm_studio.rules import DiskRules, SessionRules
from cachesim.engines.lm_studio.vocabulary import RecordEvicted, RecordStored
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search import STOPS, MlxLaws, Shared, above, guide
from cachesim.engines.mlx_lm.search.stored import CUT, KEPT
from cachesim.engines.search import Guide, Scope, Search
from cachesim.engines.seen import Seen
from cachesim.typed import there_is

KV: Final = "kv_delta"
"""The kind of a record of keys and values."""


class KitLaws(MlxLaws):
    """A state after the reply; one before it, or records of whole chunks, by the kit."""

    def begin_anew(self) -> None:
        super().begin_anew()
        self._records = sum(len(disk.records) for disk in self._disks)

    @property
    def _disks(self) -> Collection[RecordStore]:
        cache = self._engine.server.store.cache
        return cache.stores.values() if isinstance(cache, DiskPromptCache) else ()

    def _equal(self, seen: Seen, keys: Sequence[Sequence[int]]) -> Iterator[str]:
        # Records on disk are found under other keys.
        if not isinstance(self._rules.server.prefix_cache, DiskRules):
            yield from super()._equal(seen, keys)

    def _count(self, events: Sequence[Event]) -> str:
        for event in events:
            self._records += isinstance(event, RecordStored) - isinstance(event, RecordEvicted)
        return super()._count(events)

    def _accounts(self, seen: Seen) -> Iterator[str]:
        yield from super()._accounts(seen)
        if self._records != sum(len(disk.records) for disk in self._disks):
            yield f"{self._records} records by the events, not as many on disk"

    def _kept(self, seen: Seen) -> Iterator[str]:
        yield from super()._kept(seen)
        alone = self._rules.server.prefix_cache == DiskRules() and len(self._disks) == 1
        if not (alone and seen.layers <= CUT and seen.plain) or STOPS in seen.fields:
            return
        for disk in self._disks:
            chunks = disk.chunks(seen.reply.prompt + seen.reply.generated)
            missing = [chunk.end for chunk in chunks if (chunk.key, KV) not in disk.records]
            if missing:
                yield f"the records up to {missing} are not on disk"

    def _lengths(self, seen: Seen) -> list[int] | None:
        own, prompt = self._rules.server.prefix_cache, len(seen.reply.prompt)
        whole = prompt + len(seen.reply.generated)
        if not isinstance(own, SessionRules):
            return [whole]
        if not seen.layers & KEPT:  # no layer counts its tokens
            return None
        end = prompt - own.before_end
        early = own.before_end and end > int(there_is(seen.reply.cached))
        return [*([end] if early else []), whole]

    def _due_of(self, _own: PrefixCacheRules, _before: Seen, _seen: Seen, shared: Shared) -> int:
        cache = self._engine.server.store.cache
        keeps = (
            cache.keeps_replies and shared.tokens > 1
            if isinstance(cache, SessionPromptCache)
            else True
        )
        return max(shared.end, shared.cut) if keeps else 0


def _guide(own: PrefixCacheRules) -> Guide:
    if isinstance(own, DiskRules):
        return guide({own.interval, own.max_kv_size or 0})
    return guide({own.before_end} if isinstance(own, SessionRules) else ())


SEARCH: Final[Search[MlxRules, MlxOptions]] = above(
    Scope(lengths=(1, 4, 5), window=4), guide=_guide, laws=KitLaws
)
