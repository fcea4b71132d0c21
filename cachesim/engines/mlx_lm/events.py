"""What happens inside mlx-lm's server, as events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cachesim.engines.events import Event
from cachesim.units import Count, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdmitted(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled(Event):
    """A rectangle of tokens went through the model, padding included."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress(Event):
    """What a streaming client is told about its prompt."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken(Event):
    """#923: a copy of a finished conversation was stored under the end of one of its messages."""

    length: Count
    state_is_key: bool | None
    held: Mapping[str, Tokens] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrimmed(Event):
    """`--prompt-cache-bytes`, at admission: what is at work counts against the store."""

    limit: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event):
    """A request got all its tokens."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped(Event):
    """The client had gone; the state of its request was stored, or thrown away."""

    stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    """The generation thread ended with an exception: nobody is served any more."""

    error: str
    why: str
