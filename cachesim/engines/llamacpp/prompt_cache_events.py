"""What llama-server's log says of the prompt cache: saving, searching, loading, evicting."""

from dataclasses import dataclass

from cachesim.engines.events import Event, Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheUpdateBegun(
    Event,
    tone="quiet",
    says="slot {slot}'s prompt is swapped with the prompt cache",
):
    """The slot's prompt is about to be swapped with the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSaving(
    Event,
    tone="gain",
    says="slot {slot}'s {n_tokens} tokens are saved to the prompt cache",
):
    """A slot's prompt goes into the prompt cache."""

    n_tokens: int
    size: int
    size_companion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAlreadyCached(
    Event,
    tone="plain",
    says="the prompt cache already has all {n_tokens} tokens: nothing is saved",
):
    """The prompt cache holds this prompt or a longer one."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryObsolete(
    Event,
    tone="plain",
    says="the parked {n_tokens} tokens are a prefix of the prompt that is saved, and are erased",
):
    """A cached prompt is a prefix of the one being saved and goes."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryTooLarge(
    Event,
    tone="loss",
    says="the prompt needs {size} bytes, and the prompt cache may hold {limit}: not saved",
):
    """The prompt alone is larger than the cache."""

    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        """`--cache-ram` decided it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryDropped(
    Event,
    tone="loss",
    says="the parked {n_tokens} tokens are evicted ({reason})",
):
    """The oldest entry makes room for a new one, or a limit was reached."""

    reason: str  # "room", "size", "tokens"
    n_tokens: int
    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        """`--cache-ram` decided it, and not the limit in tokens."""
        return self.reason != "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSearchBegun(
    Event,
    tone="plain",
    says="the prompt cache is searched: an entry must beat keep {f_keep} and similarity {f_sim}",
):
    """Looking for a better prompt than the slot's own."""

    f_keep: float | None
    f_sim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryCompared(
    Event,
    tone="plain",
    says=(
        "a parked conversation of {n_tokens} tokens shares {lcp}: keep {f_keep}, similarity {f_sim}"
    ),
):
    """One entry in the search."""

    n_tokens: int
    lcp: int
    f_keep: float | None
    f_sim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryLoaded(Event):
    """A better prompt was found and is now the slot's."""

    n_tokens: int
    checkpoints: int
    kept: bool  # the entry stays in the cache (#24143)
    shared: int  # with the prompt that it is loaded for

    def loudness(self) -> Tone:
        return "gain" if self.kept else "loss"

    @property
    def sentence(self) -> str:
        stays = "stays in the prompt cache" if self.kept else "leaves the prompt cache"
        return (
            f"the parked {self.n_tokens} tokens are loaded into slot {self.slot}; the entry {stays}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLoadFailed(
    Event,
    tone="loss",
    says="the parked state of the {part} does not load ({size} bytes): slot {slot} is cleared",
):
    """An entry's state did not load; the slot is cleared."""

    part: str  # "target" or "companion"
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState(
    Event,
    tone="quiet",
    says="the prompt cache holds {entries} conversations, {size} bytes",
):
    """What the prompt cache holds after an update."""

    entries: int
    size: int
    limit_size: int
    limit_tokens: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlotSaved(Event, tone="gain", says="idle slot {slot} is copied to the prompt cache"):
    """A slot without a task was copied to the prompt cache."""
