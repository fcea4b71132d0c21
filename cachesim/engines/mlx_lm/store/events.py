"""What happens in the store of prompt caches."""

from dataclasses import dataclass

from cachesim.engines.events import Event
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheChange(Event):
    """One entry came, went or was handed out."""

    n_tokens: Count
    cache_type: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheInserted(PromptCacheChange):
    """A prompt cache was put under its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheRefused(PromptCacheChange):
    """The key was taken: the old object stayed, the new one was thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheReplaced(PromptCacheChange):
    """An entry gave way to a new one under the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCachePruned(PromptCacheChange):
    """An entry went because a trimmable one covers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheEvicted(PromptCacheChange):
    """An entry went because the store was too full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheConsumed(PromptCacheChange):
    """An entry was taken out by the request that used it."""
