"""A finished request as the laws of its engine read it, and a broken law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.units import Tokens

Kind: TypeAlias = Literal["broken invariant", "refusal", "lost reuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request with its reply and events."""

    reply: Reply
    events: Sequence[Event]
    forced: Tokens | None  # the reply that it was given
    alone: bool  # no other request was sent with it, and its client stayed
    images: bool
    fields: Mapping[str, Any]
    model: str
    layers: frozenset[str]
    plain: bool  # a model of no special class
    chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A broken law; `due` are the tokens that should have been cached, of lost reuse."""

    kind: Kind
    detail: str
    due: int = 0


class Laws(Protocol):
    """The laws of a server, request by request."""

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        ...

    def begin_anew(self) -> None:
        """Read the server's content, after a restart or a change without a request."""
        ...
