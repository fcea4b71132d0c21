"""The interface of all engines: requests go in, replies and events come out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from cachesim.engines.causes import Loss
from cachesim.engines.chat import Message
from cachesim.engines.events import Event, EventLog
from cachesim.engines.family import Family, Profile, Rules, family_of
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.typed import Value
from cachesim.units import Array, Count, Token, Tokens

__all__ = ["ByteStore", "Engine", "Message", "Reply", "Request", "Ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request.

    `reply` holds tokens that are taken instead of sampled ones (teacher forcing): a reply shorter
    than `predict` ends the generation there, a longer one is cut. `drafts` forces what a companion
    proposes, one tuple per drafting step. Fields that an engine does not have are refused by it.
    """

    prompt: Tokens
    predict: int = -1
    reply: Tokens | None = None
    drafts: tuple[Tokens, ...] | None = None
    slot: int = -1
    cache_prompt: bool = True
    completions: int = 1
    options: Mapping[str, Any] | None = None  # per-request fields under upstream's names
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply, with the evidence that verification needs."""

    prompt: Tokens
    generated: Tokens
    logits: Array  # (len(generated), ...): the row each generated token was taken from
    cached: Count | None
    processed: Count | None
    equal: Count = Count(0)  # tokens equal to the best thing in memory, whatever it was
    equal_with: str = "nothing"  # what that was, in words: "slot 0", "prompt cache entry 2", ...
    losses: tuple[Loss, ...] = ()
    slot: int | None = None
    truncated: bool = False
    error: str | None = None  # the server's own word for a refusal
    message: str = ""  # its sentence
    strengths: tuple[float, ...] = ()  # of the adapters that it was to be computed under
    drafted: Count | None = None  # tokens that a companion proposed, as the server counts them
    accepted: Count | None = None  # and how many of them it says were right
    approximated: str | None = None  # set when the server knowingly kept values of another context

    @classmethod
    def empty(cls, prompt: Tokens = (), **said: Any) -> "Reply":
        """A reply without tokens: to a refused request, or to an action on a slot."""
        logits = said.pop("logits", np.zeros((0, 0)))
        return cls(prompt=prompt, generated=(), logits=logits, cached=None, processed=None, **said)


class Ticket(int):
    """Names a submitted request; its reply is asked for by it."""


class Engine(ABC):
    """A simulated server. Deterministic: no clock, no files, no randomness."""

    profile: Profile
    network: Network
    padding: ClassVar[Token | None] = None
    """The token that the server fills shorter rows of a batch with, if it does."""

    def __init__(
        self,
        profile: Profile,
        *,
        network: Network,
        options: Mapping[str, Any],
        store: "ByteStore | None" = None,
        family: Family[Any, Any] | None = None,
    ) -> None:
        self.profile = profile
        self.network = network
        self.family = family or family_of(profile.engine)
        self._open(self.family.rules(profile), self.family.read(profile, options), store)

    def _open(self, rules: Rules, options: Value, store: "ByteStore | None") -> None:
        """Start the server with its rules and options, unless its class is made otherwise."""
        raise NotImplementedError

    def _fields(self, request: Request) -> dict[str, Any]:
        return self.family.read_fields(self.profile, request.options or {})

    @staticmethod
    def create(
        profile: str | Profile,
        *,
        model: ModelSpec | Network,
        options: Mapping[str, Any] | None = None,
        arithmetic: ArithmeticName = "float",
        store: "ByteStore | None" = None,
        family: Family[Any, Any] | None = None,
    ) -> "Engine":
        """Build the server that a profile names, around a model or a network already built.

        `family` replaces what is registered for the engine: a copy with a release or a patch more
        plays rules that no release has.
        """
        named = Profile.parse(profile) if isinstance(profile, str) else profile
        family = family or family_of(named.engine)
        network = build(model, arithmetic) if isinstance(model, ModelSpec) else model
        family.check(network.spec)
        server: Engine = family.open(named, network=network, options=options or {}, store=store)
        return server

    @property
    @abstractmethod
    def events(self) -> Sequence[Event]:
        """The events so far, in order."""

    @abstractmethod
    def submit(self, request: Request) -> Ticket:
        """Put a request into the server's queue; nothing runs yet."""

    @abstractmethod
    def step(self) -> bool:
        """Take a turn of the real server's loop; False when there was nothing to do."""

    def run(self) -> None:
        """Take turns until the server is idle."""
        while self.step():
            pass

    @abstractmethod
    def reply(self, ticket: Ticket) -> Reply | None:
        """The reply to a request, once it is finished."""

    @abstractmethod
    def forget(self, ticket: Ticket) -> None:
        """Drop a finished request's reply and the events so far, to free memory."""

    @abstractmethod
    def cancel(self, ticket: Ticket) -> None:
        """Cancel a request, as a client that disconnects does."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """The server's content as plain data: slots, cells, checkpoints, prompt cache."""

    def books(self) -> dict[str, Any]:
        """Slots and prompt cache only: the part of `snapshot()` recorded after every step."""
        found = self.snapshot()
        return {name: found[name] for name in ("slots", "prompt_cache")}

    def held(self) -> Held:
        """The server's content, with its owners where the network is traced."""
        return Held()

    def texts(self) -> Texts:
        """Tokens of slots and prompt-cache entries, recorded after every step."""
        return self.held().texts

    def amounts(self) -> Amounts:
        """The amounts of each kind of content: quick enough for every turn of a trace."""
        return Amounts()

    def after_each_event(self, hear: Callable[[], None]) -> None:
        """Call `hear` after every event, including inside a turn."""
        if isinstance(self.events, EventLog):
            self.events.hear = hear

    def limit_turns(self, most: int) -> None:
        """Batch at most `most` decode turns into one, where replies are given."""
        del most  # most servers never do

    def remember(self, most: int) -> None:
        """Keep the computed tokens of the last `most` sequences only."""
        del most  # most servers keep no such books

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise ContractError where the server's own books disagree."""


class ByteStore(Protocol):
    """The store for the bytes of saved slots; handed in, so the core knows no files."""

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name."""
        ...

    def get(self, name: str) -> bytes | None:
        """The bytes kept under a name, or None."""
        ...
