"""Events of mlx-lm's server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cachesim.engines.events import Event, Tone
from cachesim.units import Count, Tokens


def _stored(what: str, length: int, held: Mapping[str, Tokens]) -> str:
    """Something went under a key; `held` names the places whose tokens are not the key's."""
    stored = f"{what} is stored under a key of {length} tokens"
    if not held:
        return stored
    astray = ", ".join(f"{place} has {len(tokens)} tokens" for place, tokens in held.items())
    return f"{stored}, but is not the key's: {astray}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdmitted(Event, tone="plain"):
    """The prompt was looked up; what the server reports is decided here.

    A report is not the work saved: `sound` says whether the state handed over is the one that the
    model has after the cached tokens (null where nothing was cached).
    """

    path: Literal["batch", "single"]
    prompt_tokens: Count
    cached: Count
    reported: Count | None
    sound: bool | None = None
    segments: tuple[tuple[int, str], ...] = ()  # length and type, of the whole prompt
    checkpoint: tuple[bool, int] | None = None  # store it?, position from the end

    def loudness(self) -> Tone:
        return "warn" if self.sound is False else "plain"

    @property
    def sentence(self) -> str:
        found = f"{self.cached} of {self.prompt_tokens} tokens are found in the store"
        astray = "; the state that comes with them is not that of these tokens"
        return found + (astray if self.sound is False else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled(Event, tone="quiet", says="the model is given {rows} rows of {columns} tokens"):
    """A rectangle of tokens went through the model, padding included."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress(Event, tone="quiet", says="{done} of {total} tokens are processed"):
    """Prompt progress sent to a streaming client."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion(Event, tone="gain"):
    """A state was handed to the store under a key.

    `state_is_key` says whether every layer holds exactly the key's tokens; `held` says what the
    places hold where they do not.
    """

    number: int
    type: str
    length: Count
    key: Tokens
    layers: tuple[Mapping[str, Any], ...]
    state_is_key: bool | None
    held: Mapping[str, Tokens] = field(default_factory=dict)

    def loudness(self) -> Tone:
        return "warn" if self.state_is_key is False else "gain"

    @property
    def sentence(self) -> str:
        return _stored("a state", self.length, self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken(Event, tone="gain"):
    """#923: a copy of a finished conversation was stored under the end of one of its messages."""

    length: Count
    state_is_key: bool | None
    held: Mapping[str, Tokens] = field(default_factory=dict)

    def loudness(self) -> Tone:
        return "warn" if self.state_is_key is False else "gain"

    @property
    def sentence(self) -> str:
        return _stored("a snapshot", self.length, self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrimmed(
    Event, tone="loss", says="the store is cut from {before} to {after} bytes (limit {limit})"
):
    """`--prompt-cache-bytes`, at admission: what is at work counts against the store."""

    limit: int
    before: int
    after: int

    @property
    def for_bytes(self) -> bool:
        """`--prompt-cache-bytes` decided it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event, tone="plain", says="the request has all its tokens ({reason})"):
    """A request got all its tokens."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped(Event, tone="loss"):
    """The client had gone, or the HTTP side saw a stop word; the state was stored or not."""

    stored: bool
    stop_word: bool = False

    @property
    def sentence(self) -> str:
        why = "a stop word ended the reply" if self.stop_word else "the client went away"
        return f"{why}; its state is {'stored' if self.stored else 'thrown away'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStuck(
    Event,
    tone="loss",
    says=(
        "the generation thread waits forever: {left_over} requests that a stop word ended are "
        "still listed in the batch that must end first"
    ),
):
    """Before #741 the generation thread could wait for a batch that is never empty."""

    left_over: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event, tone="loss", says="the generation thread ended: {error}"):
    """The generation thread ended with an exception: no request is served any more."""

    error: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheChange(Event):
    """An entry came, went or was handed out."""

    n_tokens: Count
    cache_type: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheInserted(
    PromptCacheChange, tone="gain", says="a prompt of {n_tokens} tokens is stored ({cache_type})"
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
    PromptCacheChange, tone="loss", says="the stored prompt of {n_tokens} tokens is evicted"
):
    """An entry went because the store was too full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheConsumed(
    PromptCacheChange,
    tone="loss",
    says="the stored prompt of {n_tokens} tokens is handed out and leaves the store",
):
    """An entry was taken out by the request that used it."""
