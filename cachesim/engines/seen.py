"""A finished request as the laws of its engine read it, and a broken law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.units import Tokens

Kind: TypeAlias = Literal["broken invariant", "refusal", "lost reuse"]
E = TypeVar("E", bound=Event)


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
    _by_class: dict[type[Event], list[Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        by_class = self._by_class
        for event in self.events:
            kind = type(event)
            if kind in by_class:
                by_class[kind].append(event)
            else:
                by_class[kind] = [event]

    def of(self, kind: type[E]) -> Sequence[E]:
        """The events of a class, in order; laws ask for many classes of the same few events."""
        return self._by_class.get(kind, ())


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
