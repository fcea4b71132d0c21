"""`Engine`, the interface of all engines: requests in, replies and events out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from cachesim.engines.causes import Loss
from cachesim.engines.chat import Message
from cachesim.engines.events import Event, EventLog
from cachesim.engines.family import Family, Profile, Rules, family_of
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.images import Image
from cachesim.errors import ContractError, OptionError
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.typed import Value
from cachesim.units import Array, Count, Token, Tokens

NO_ANSWER: Final = "no_answer"
"""The error of a request whose server ends, or that waits for ever, while others are served."""

__all__ = ["ByteStore", "Engine", "Message", "Reply", "Request", "Ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request.

    `reply` forces the sampled tokens (teacher forcing): a shorter reply than `predict` ends the
    generation, a longer one is cut. `drafts` forces a companion's proposals, one tuple per drafting
    step. Engines refuse fields that they do not have.
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
    images: tuple[Image, ...] = ()  # in order of their places
    model: str = ""  # one of the server's further models; empty: the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply, with the evidence that verification needs."""

    prompt: Tokens
    generated: Tokens
    logits: Array  # (len(generated), ...): the row that each token was sampled from
    cached: Count | None
    processed: Count | None
    equal: Count = Count(0)  # the longest prefix in common with a slot, an entry, ...
    equal_with: str = "nothing"  # its holder: "slot 0", "prompt cache entry 2", ...
    losses: tuple[Loss, ...] = ()
    slot: int | None = None
    truncated: bool = False
    error: str | None = None  # the error's type, as the server names it
    message: str = ""  # the error's message
    strengths: tuple[float, ...] = ()  # adapter strengths of the request
    drafted: Count | None = None  # number of draft tokens, as the server counts them
    accepted: Count | None = None  # number of accepted ones among them, as the server counts them
    approximated: str | None = None  # why the server's values are approximate by design
    unsent: Count = Count(
        0
    )  # tokens of its last draft that the server counts, and keeps (ik #2358)
    cut: Tokens | None = None  # what the server left of a prompt too long for its context

    @property
    def written(self) -> Tokens:
        """The tokens that the request wrote to memory: all but the last generated one."""
        return self.prompt + self.generated[:-1]

    @classmethod
    def empty(cls, prompt: Tokens = (), **more: Any) -> "Reply":
        """A reply without tokens, for a refused request or a slot action."""
        logits = more.pop("logits", np.zeros((0, 0)))
        return cls(prompt=prompt, generated=(), logits=logits, cached=None, processed=None, **more)


class Ticket(int):
    """The id of a submitted request."""


class Engine(ABC):
    """A simulated server. Deterministic: no clock, no files, no randomness."""

    profile: Profile
    network: Network
    flags: Value
    """The server's options, read."""
    padding: ClassVar[Token | None] = None
    """The token that pads shorter rows of a batch, or None."""

    def __init__(
        self,
        profile: Profile,
        *,
        network: Network,
        options: Mapping[str, Any],
        store: "ByteStore | None" = None,
        family: Family[Any, Any] | None = None,
        models: Mapping[str, Network] | None = None,
    ) -> None:
        self.profile = profile
        self.network = network
        self.networks = {"": network, **(models or {})}
        self.family = family or family_of(profile.engine)
        self.flags = self.family.read(profile, options)
        self._open(self.family.rules(profile), self.flags, store)

    def _open(self, rules: Rules, options: Value, store: "ByteStore | None") -> None:
        """Start the server with its rules and options."""
        raise NotImplementedError

    def _fields(self, request: Request) -> dict[str, Any]:
        if request.model not in self.networks:
            known = ", ".join(filter(None, self.networks)) or "none"
            msg = f"there is no model {request.model!r}; further models of this server: {known}"
            raise OptionError(msg)
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
        models: Mapping[str, ModelSpec | Network] | None = None,
    ) -> "Engine":
        """Build the server of a profile, around a model or a network, and further `models`.

        `family` replaces the registered one, for instance by a copy with further releases or
        patches.

        >>> from cachesim import Engine, Request, preset
        >>> server = Engine.create("llama.cpp@b11549", model=preset("dense"), arithmetic="ring")
        >>> server.ask(Request(prompt=tuple(range(300, 340)), predict=1)).cached
        0
        >>> server.ask(Request(prompt=tuple(range(300, 340)), predict=1)).cached
        39
        """
        named = Profile.parse(profile) if isinstance(profile, str) else profile
        family = family or family_of(named.engine)
        if models and not family.serves_models(family.rules(named)):
            raise OptionError(f"{named} serves one model: leave 'models' out")
        built = {
            name: build(spec, arithmetic) if isinstance(spec, ModelSpec) else spec
            for name, spec in {"": model, **(models or {})}.items()
        }
        for further in built.values():
            family.check(further.spec)
        more = {"models": built} if models else {}
        network = built.pop("")
        server: Engine = family.open(
            named, network=network, options=options or {}, store=store, **more
        )
        return server

    @property
    @abstractmethod
    def events(self) -> Sequence[Event]:
        """The events so far, in order."""

    @abstractmethod
    def submit(self, request: Request) -> Ticket:
        """Queue a request; nothing runs yet."""

    @abstractmethod
    def step(self) -> bool:
        """Run an iteration of the server's loop; False if it had no work."""

    def run(self) -> None:
        """Step until the server is idle."""
        while self.step():
            pass

    def ask(self, request: Request) -> Reply:
        """Submit a request, step until the server is idle, and return the reply.

        Two requests at once, or a client that leaves, need `submit`, `step` and `reply`.
        """
        ticket = self.submit(request)
        self.run()
        reply = self.reply(ticket)
        if reply is None:
            raise ContractError(
                f"{self.profile}: the server is idle, and request {ticket} has no reply"
            )
        return reply

    @abstractmethod
    def reply(self, ticket: Ticket) -> Reply | None:
        """The reply to a finished request, else None."""

    def longest(self) -> int | None:
        """Maximum tokens of a prompt and its reply, if a longer reply is cut there."""
        return None

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
        snapshot = self.snapshot()
        return {name: snapshot[name] for name in ("slots", "prompt_cache")}

    def held(self) -> Held:
        """The server's content; with token owners if the network is traced."""
        return Held()

    def texts(self) -> Texts:
        """Tokens of slots and prompt-cache entries, recorded after every step."""
        return self.held().texts

    def amounts(self) -> Amounts:
        """The amount of each kind of content, cheap enough for every step of a trace."""
        return Amounts()

    def pool_flags(self, memory: int) -> dict[str, int] | None:
        """Flags that size the pools for a device's memory; None without a rule."""
        return None

    def peek(self, prompt: Tokens) -> Count | None:
        """Tokens that a request with this prompt would reuse now; None if the engine cannot say.

        Changes nothing: a lookup of a real server counts as a use, this one does not.
        """
        return None

    def after_each_event(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every event, also within a step."""
        if isinstance(self.events, EventLog):
            self.events.listener = listener

    def limit_turns(self, most: int) -> None:
        """Batch at most `most` decode steps of forced replies into one."""
        del most  # no batching by default

    def leave_out_comparisons(self) -> None:  # noqa: B027 - most servers have none
        """Leave out events of single comparisons, which grow with what a server holds."""

    def remember(self, most: int) -> None:
        """Limit the record of computed tokens to about the last `most` sequences."""
        del most  # most servers keep no such record

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise ContractError if the server's accounts are inconsistent."""


class ByteStore(Protocol):
    """A store for the bytes of saved slots, injected, so that the core has no file access."""

    def put(self, name: str, data: bytes) -> None:
        """Store bytes under a name."""
        ...

    def get(self, name: str) -> bytes | None:
        """The bytes under a name, or None."""
        ...
