"""Events of mlx-lm's server, and its causes of lost reuse, one for each branch."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from cachesim.engines.causes import Cause, declared
from cachesim.engines.events import Event, Tone, event
from cachesim.units import Count, Tokens


def _stored(what: str, length: int, held: Mapping[str, Tokens]) -> str:
    """A state under a key; `held` names the places whose tokens are not the key's."""
    stored = f"{what} is stored under a key of {length} tokens"
    if not held:
        return stored
    astray = ", ".join(f"{place} has {len(tokens)} tokens" for place, tokens in held.items())
    return f"{stored}, but is not the key's: {astray}"


@event("plain")
class RequestAdmitted(Event):
    """The lookup of a prompt, which decides the reported counts.

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
        counts = f"{self.cached} of {self.prompt_tokens} tokens are found in the store"
        astray = "; their state is not that of these tokens"
        return counts + (astray if self.sound is False else "")


@event("plain")
class ModelLoaded(Event):
    """model {model} is loaded in place of {before}; entries under its key stay"""

    model: str
    before: str


@event("quiet")
class ModelCalled(Event):
    """the model gets {rows} rows of {columns} tokens"""

    rows: int
    columns: int


@event("quiet")
class PromptProgress(Event):
    """{done} of {total} tokens are processed"""

    done: int
    total: int


@event("gain")
class Insertion(Event):
    """A state was inserted into the store under a key.

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


@event("gain")
class SnapshotTaken(Event):
    """#923: a copy of a finished conversation was stored under the end of one of its messages."""

    length: Count
    state_is_key: bool | None
    held: Mapping[str, Tokens] = field(default_factory=dict)

    def loudness(self) -> Tone:
        return "warn" if self.state_is_key is False else "gain"

    @property
    def sentence(self) -> str:
        return _stored("a snapshot", self.length, self.held)


@event("loss")
class StoreTrimmed(Event):
    """the store is cut from {before} to {after} bytes (limit {limit})"""

    limit: int
    before: int
    after: int

    @property
    def for_bytes(self) -> bool:
        """`--prompt-cache-bytes` decided it."""
        return True


@event("plain")
class RequestFinished(Event):
    """the request is finished ({reason})"""

    reason: str


@event("loss")
class RequestDropped(Event):
    """The client had gone, or the HTTP side saw a stop word; the state was stored or not."""

    stored: bool
    stop_word: bool = False

    @property
    def sentence(self) -> str:
        why = "a stop word ended the reply" if self.stop_word else "the client disconnected"
        return f"{why}; its state is {'stored' if self.stored else 'thrown away'}"


@event("loss")
class WorkerStuck(Event):
    """the generation thread waits forever: {left_over} requests that a stop word ended are still
    listed in the batch that must end first"""

    left_over: int


@event("loss")
class WorkerDied(Event):
    """the generation thread ended: {error}"""

    error: str
    why: str


@event()
class PromptCacheChange(Event):
    """An entry was added, removed or returned."""

    n_tokens: Count
    cache_type: str
    nbytes: int


@event("gain")
class PromptCacheInserted(PromptCacheChange):
    """a prompt of {n_tokens} tokens is stored ({cache_type})"""


@event("loss")
class PromptCacheRefused(PromptCacheChange):
    """a prompt of {n_tokens} tokens is stored already: the new state is thrown away"""


@event("plain")
class PromptCacheReplaced(PromptCacheChange):
    """the stored prompt of {n_tokens} tokens is replaced by a new one"""


@event("loss")
class PromptCachePruned(PromptCacheChange):
    """the stored prompt of {n_tokens} tokens is dropped: a longer one covers it"""


@event("loss")
class PromptCacheEvicted(PromptCacheChange):
    """the stored prompt of {n_tokens} tokens is evicted"""


@event("loss")
class PromptCacheConsumed(PromptCacheChange):
    """the stored prompt of {n_tokens} tokens is returned and removed from the store"""


STILL_AT_WORK: Final = Cause(
    id="still-at-work",
    sentence=(
        "request {request} has these tokens, but is still running: its state is not stored yet"
    ),
    about="A state is stored when its request ends, or at a checkpoint of its prompt.",
)
ONE_TOKEN_IS_FED: Final = Cause(
    id="one-token-is-fed",
    sentence="the stored prompt covers all {n_tokens} tokens; one of them is reprocessed",
    about="A longer entry is trimmed until at least one token is left to feed.",
)
SHORTER_ENTRY_FIRST: Final = Cause(
    id="shorter-entry-first",
    sentence=(
        "the stored prompt of {used} tokens is used; a longer one that shares more is not "
        "considered"
    ),
    about="The search stops at a shorter entry where the release does not look for a longer one.",
)
TRIMMED_TOO_LITTLE: Final = Cause(
    id="trimmed-too-little",
    sentence="the stored prompt of {entry} tokens cannot be trimmed as far as needed",
    about="A rotating cache that has wrapped around cannot restore what it overwrote.",
)
NOT_TRIMMABLE: Final = Cause(
    id="not-trimmable",
    sentence="the stored prompt of {entry} tokens cannot be trimmed: layer {layer} is {cache}",
    about="A recurrent layer, or a full rotating one, cannot be trimmed: the entry cannot be used.",
)
CAUSES: Final = declared(globals())
