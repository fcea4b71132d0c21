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
class PromptCacheInserted(
    PromptCacheChange,
    tone="gain",
    says="a prompt of {n_tokens} tokens is stored ({cache_type})",
):
    """A prompt cache was put under its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheRefused(
    PromptCacheChange,
    tone="loss",
    says="a prompt of {n_tokens} tokens is stored already: the new state is thrown away",
):
    """The key was taken: the old object stayed, the new one was thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheReplaced(
    PromptCacheChange,
    tone="plain",
    says="the stored prompt of {n_tokens} tokens is replaced by a new one",
):
    """An entry gave way to a new one under the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCachePruned(
    PromptCacheChange,
    tone="loss",
    says="the stored prompt of {n_tokens} tokens is dropped: a longer one covers it",
):
    """An entry went because a trimmable one covers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheEvicted(
    PromptCacheChange,
    tone="loss",
    says="the stored prompt of {n_tokens} tokens is evicted",
):
    """An entry went because the store was too full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheConsumed(
    PromptCacheChange,
    tone="loss",
    says="the stored prompt of {n_tokens} tokens is handed out and leaves the store",
):
    """An entry was taken out by the request that used it."""
