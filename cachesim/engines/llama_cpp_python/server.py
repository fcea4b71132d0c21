"""Servers with rules of their own over llama.cpp's memory.

MemoryServer     creates the memory; returns the content of slots and saved states
CallServer   one sequence, one call at a time
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.held import Amounts, Held, SlotHeld, Texts
from cachesim.engines.job import SampledJob, SlotlessEngine
from cachesim.engines.llama_cpp_python import observe, vocabulary
from cachesim.engines.llama_cpp_python.account import Account
from cachesim.engines.llama_cpp_python.observe import Saved
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import OK
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.engines.llamacpp.observe import memory_amounts, parts
from cachesim.errors import OptionError
from cachesim.typed import Value
from cachesim.units import Count, Integers, Token, Tokens

SEQ: Final = 0
"""The sequence of completions (`kv_cache_seq_rm(-1, ...)` names it too)."""


S = TypeVar("S", bound=SampledJob)
"""The type of a server's requests."""


class Vendoring(Protocol):
    """Rules of a server with a llama.cpp of its own."""

    @property
    def memory(self) -> MemoryRules: ...


class Sizes(Protocol):
    """Options with the sizes of a context."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def n_ubatch(self) -> int: ...

    @property
    def type_k(self) -> str: ...

    @property
    def type_v(self) -> str: ...


R = TypeVar("R", bound=Vendoring)
"""The type of a server's rules."""

Q = TypeVar("Q", bound=Sizes)
"""The type of a server's options."""


class MemoryServer(SlotlessEngine[R, Q, S]):
    """A server over llama.cpp's memory, which is all that it has in common with `llama-server`."""

    def _set_up(self) -> None:
        self._evaluated = Account()
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Create the empty memory."""

    def longest(self) -> int:
        return self.options.n_ctx

    def _make_memory(self, **params: Any) -> None:
        """Create the context with the server's parameters."""
        options = self.options
        self.n_batch = min(options.n_ctx, options.n_batch)
        given = ContextParams(
            n_ctx=Count(options.n_ctx),
            n_batch=self.n_batch,
            n_ubatch=min(self.n_batch, options.n_ubatch),
            n_seq_max=1,
            kv_unified=False,
            type_k=options.type_k,
            type_v=options.type_v,
        )
        self.context = create_context(self.network, replace(given, **params), self.rules.memory)

    def _is_embedding(self, request: base.Request) -> bool:
        """Check a request; True for an embedding."""
        embeds = self._fields(request).get("endpoint") == "embedding"
        checked = replace(request, prompt=request.prompt or (Token(0),)) if embeds else request
        drafts, declined = request.drafts is not None, not request.cache_prompt
        self._check(checked, drafts=drafts, cache_prompt=declined)
        return embeds

    def _account(self, one: S) -> Ledger:
        """Compare the tokens of a prompt ever evaluated with those still held."""
        slots, entries = self._slots(), self._entries
        kept = (*(slot.tokens for slot in slots), *(entry.held for entry in entries))
        one.ledger = self._evaluated.of(one.prompt, kept)
        return one.ledger

    def _learn(self, tokens: Iterable[Token] | Integers, task: int) -> None:
        """Note tokens that were evaluated."""
        self._evaluated.learn(tokens, task)

    def _empty(self) -> None:
        self._start()

    def restart(self) -> None:
        """Restart; files on disk stay."""
        self._start()

    def remember(self, most: int) -> None:
        self._evaluated.computed.remember(most)

    # -- inspection ----------------------------------------------------------------------------

    @abstractmethod
    def _slots(self) -> tuple[SlotHeld, ...]:
        """The held tokens of each sequence."""

    @property
    def _entries(self) -> Collection[Saved]:
        return ()

    def snapshot(self) -> dict[str, Any]:
        return {**self.books(), "memory": parts(self.context)}

    def books(self) -> dict[str, Any]:
        return observe.books(self._slots(), self._entries)

    def held(self) -> Held:
        return observe.held(self.context, self._slots(), self._entries)

    def texts(self) -> Texts:
        return observe.texts(self._slots(), self._entries)

    def amounts(self) -> Amounts:
        return memory_amounts(self.context)

    def check_integrity(self) -> None:
        self.context.check_integrity()


class CallError(Exception):
    """An exception raised to the caller of the real package: its text, then its class."""

    def __init__(self, text: str, kind: str = "RuntimeError") -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


@dataclass(slots=True, kw_only=True)
class Call(SampledJob):
    """A completion, an embedding, or an action that a scenario names."""

    drafted: int = 0
    accepted: int = 0
    action: tuple[str, str] | None = None
    approximated: str | None = None
    truncated: bool = False

    def reply(self) -> base.Reply:
        replied = SampledJob.reply(self)
        return replace(replied, truncated=self.truncated, approximated=self.approximated)


class CallServer(MemoryServer[R, Q, Call]):
    """A server of one sequence, as `Llama` is: one completion or action at a time."""

    n_tokens: int = 0
    """Tokens held, as `Llama` counts them."""

    def submit(self, request: base.Request) -> Ticket:
        if self._is_embedding(request):
            return self._act("embed", prompt=request.prompt)
        limit = request.predict
        if request.reply is not None:
            most = len(request.reply)
            limit = min(limit, most) if limit > 0 else most
            if most == 0:
                msg = f"{self.limit_flag} must be at least 1: let the request generate a token"
                raise OptionError(msg)
        ticket = self._jobs.ticket()
        new = Call(ticket=ticket, prompt=request.prompt, limit=limit, forced=request.reply)
        self._jobs.append(new)
        return ticket

    def slot_erase(self, slot: int) -> Ticket:
        return self._act("reset")

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Keep a state under a name."""
        return self._act("save", name)

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Load the state kept under a name."""
        return self._act("load", name)

    def _act(self, what: str, name: str = "", prompt: Tokens = ()) -> Ticket:
        new = Call(ticket=self._jobs.ticket(), prompt=prompt, action=(what, name))
        self._jobs.append(new)
        return new.ticket

    def _blank(self, ticket: Ticket) -> Call:
        return Call(ticket=ticket, prompt=())

    def reopen(self, options: Mapping[str, Value]) -> None:
        """Start with other arguments, as `LlamaProxy` does for another alias."""
        read = self.family.read(self.profile, options)
        changed: Any = self.options
        self.options = replace(changed, **{option: getattr(read, option) for option in options})
        self._start()

    def sleep(self) -> None:
        """Ignore it: the package has no idle state."""
        raise OptionError("an instance never sleeps: write 'restart'")

    def step(self) -> bool:
        one = next((job for job in self._jobs if not job.done), None)
        if one is None:
            return False
        try:
            if one.action is None:
                self._complete(one)
            else:
                one.cached = Count(0)
                self._perform(one, *one.action)
        except CallError as error:
            one.end(error.kind, error.text)
        except ValueError as error:  # NumPy's, as in the real arrays
            one.end("ValueError", str(error))
        one.done = True
        return True

    @abstractmethod
    def _complete(self, one: Call) -> None:
        """Answer a completion."""

    @abstractmethod
    def _perform(self, one: Call, what: str, name: str) -> None:
        """Save, load or reset; make an embedding."""

    def _decode(self, one: Call, tokens: Sequence[Token], start: int, *, every: bool) -> None:
        """Evaluate tokens after `start`, with logits of every one or of the last."""
        batch = Batch.of(tokens, start=start, outputs=True if every else None)
        code = self.context.decode(batch)
        if code != OK:
            self._emit(vocabulary.DecodeFailed(task=one.ticket, code=code, n_tokens=Count(start)))
            raise CallError(f"llama_decode returned {code}")

    @property
    @abstractmethod
    def held_tokens(self) -> Tokens:
        """The tokens that the server thinks it holds."""

    def _slots(self) -> tuple[SlotHeld, ...]:
        return (SlotHeld(id=0, state="idle", tokens=self.held_tokens, checkpoints=()),)
