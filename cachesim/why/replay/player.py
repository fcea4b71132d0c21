"""A server without a network that runs a rebuilt workload and can be forked.

launch 3 ... launch 4 ... released 3 ... released 4      the log's order
submit       turns, submit   turns until 3 answers       the player's
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeAlias, cast

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.causes import Loss
from cachesim.engines.events import Event
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.engines.llamacpp.slot import Checkpoint, Slot, SlotState
from cachesim.engines.llamacpp.vocabulary.events import (
    CheckpointCreated,
    CheckpointKept,
    CheckpointRestored,
    MemoryCut,
)
from cachesim.engines.tokens import Rope
from cachesim.errors import UpstreamAbort
from cachesim.model import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.play.session import SlotFiles
from cachesim.typed import of_kind
from cachesim.units import Token, Tokens
from cachesim.why.read.slot_actions import SlotAction

MOST_TURNS: Final = 200_000
"""Most turns of the loop for a request."""

NO_FILE: Final = "no file"
"""A file name that is never saved."""

Move: TypeAlias = tuple[str, int]
"""`launch` or `finish` and a request, `erase` and a slot, `turn` and the most tokens of a reply."""

AT_ONCE: Final = 1 << 30
ENDLESS_REPLY: Final = 1 << 20
"""Reply length of a request that will be cancelled."""


def accepts_spans(profile: str) -> bool:
    """True if a release accepts message boundaries."""
    return FAMILY.has(FAMILY.option("message_spans"), Profile.parse(profile))


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request as it is replayed."""

    number: int
    prompt: Rope
    reply: Rope
    slot: int = -1
    cache_prompt: bool = True
    completions: int = 1
    user_starts: tuple[int, ...] = ()
    cancel_at: int | None = None  # tokens in the slot at which the client disconnects
    file: tuple[int, int] | None = None  # saved after that request, read back into this slot

    def options(self, *, spans: bool) -> dict[str, Any] | None:
        """Further fields: the starts of messages, for releases that take `spans` of them."""
        if not len(self.prompt):  # an empty text; an empty list would be refused
            return {"prompt_string": True}
        if not (self.user_starts and spans):
            return None
        return {"message_spans": [{"role": "user", "start": at} for at in self.user_starts]}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replayed request."""

    cached: int | None
    processed: int | None
    slot: int | None
    equal: int
    equal_with: str
    losses: tuple[Loss, ...]
    events: tuple[Event, ...]
    error: str | None = None
    message: str = ""  # of the error
    children: tuple["Replayed", ...] = ()  # its further completions
    began_at: int | None = None  # tokens that its prompt kept at first, where it was not answered


FAILED: Final = Replayed(None, None, None, 0, "nothing", (), (), "aborted")


OF_CHECKPOINTS: Final = (CheckpointCreated, CheckpointKept, CheckpointRestored)
"""Events that are kept of a request; a search of the prompt cache has one for each entry."""


class Player:
    """A server with its running requests."""

    arithmetic: ArithmeticName = "counts"

    def __init__(self, profile: str, spec: ModelSpec, options: Mapping[str, Any]) -> None:
        self.files = SlotFiles()
        engine = Engine.create(
            profile, model=spec, options=dict(options), arithmetic=self.arithmetic,
            store=self.files,
        )  # fmt: skip
        self.engine = of_kind(LlamaCpp, engine)  # the profile says so
        engine.leave_out_comparisons()
        self.accepts_spans = accepts_spans(profile)
        placement = self.engine.server.rules.checkpoints
        self.saves_every_turn = placement.spacing_waived_for_last_user
        self.tickets: dict[int, Ticket] = {}
        self.submitted: dict[int, ReplayRequest] = {}
        self.seen: dict[int, int] = {}  # events there were when a request came
        self.saved_after = frozenset[int]()  # requests after which their slot goes to a file
        self.moves: list[Move] = []  # all that was done, for a server that does it again
        self.dead = False

    def tokens(self, rope: Rope) -> Tokens:
        """A text as its server takes it: without a network, a rope is enough."""
        return cast("Tokens", rope)

    def fork(self) -> "Player":
        """A copy of the server, for a trial."""
        twin, server = copy(self), self.engine.server
        memory = server.contexts.target.rules
        frozen: list[object] = [self.engine.family, self.engine.profile, server.rules]
        frozen += [server.options, memory]
        if server.cache is not None and server.contexts.companion is None:
            frozen += server.cache.entries  # only a companion's failed load changes one
        shared = {id(value): value for value in frozen}
        twin.engine, twin.files = deepcopy((self.engine, self.files), shared)
        twin.tickets, twin.submitted = self.tickets.copy(), self.submitted.copy()
        twin.seen, twin.moves = self.seen.copy(), []
        return twin

    def held(self) -> tuple[list[Rope], list[Rope]]:
        """Tokens of slots and of prompt-cache entries, oldest first."""
        return self.engine.conversations()

    def held_bytes(self) -> int:
        """Bytes of prompt-cache entries and of the slots' checkpoints, by the server's count."""
        return self.engine.held_bytes()

    def ends_of_reuse(self) -> set[int] | None:
        """Numbers of tokens at which a saved state lets an idle server resume a prompt.

        None where other numbers are possible too: chunks are moved, a companion has its own memory,
        or a running request still fills its slot.
        """
        server = self.engine.server
        if self.tickets or self.dead or server.may_draft or server.options.cache_reuse:
            return None
        return self.saved_ends()

    def saved_ends(self) -> set[int]:
        """Numbers of tokens at which saved states end."""
        server = self.engine.server
        held: list[Sequence[Checkpoint]] = [slot.prompt.checkpoints for slot in server.slots]
        held += [entry.checkpoints for entry in (server.cache.entries if server.cache else ())]
        return {
            end
            for checkpoint in chain.from_iterable(held)
            for end in (
                *(checkpoint.n_tokens - 1, checkpoint.n_tokens),
                *(checkpoint.pos_min, checkpoint.pos_min + 1),
                *(checkpoint.pos_max, checkpoint.pos_max + 1),
            )
        }

    @property
    def swaps_busy_slots(self) -> bool:
        """True if a request that names a busy slot may load another conversation there."""
        server = self.engine.server
        return server.cache is not None and server.rules.selection.pinned_slot_uses_cache

    def erase(self, slot: int) -> None:
        """Erase an idle slot."""
        self.moves.append(("erase", slot))
        if not self.dead:
            self.engine.slot_erase(slot)
            self.engine.take_in()

    def act(self, action: SlotAction) -> None:
        """Save, restore or erase an idle slot, as a client did."""
        if self.dead or action.slot >= len(self.engine.server.slots):
            return
        if action.action == "save":
            self.engine.slot_save(action.slot, action.file)
            self.engine.take_in()
        elif not action.was_done:
            self.read_back(NO_FILE, action.slot)
        elif action.action == "restore" and self.files.get(action.file) is not None:
            self.read_back(action.file, action.slot)
        else:  # what a file holds that was saved before the recording, nobody knows
            self.erase(action.slot)

    def read_back(self, name: str, slot: int) -> None:
        """Restore an idle slot from a file, if it was written."""
        slots = self.engine.server.slots
        if self.dead or slot >= len(slots) or slots[slot].is_processing:
            return
        self.engine.slot_restore(slot, name)
        self.engine.take_in()
        prompt = self.engine.server.slots[slot].prompt
        if self.arithmetic == "counts":
            rope = Rope()
            rope += prompt.tokens  # files hold numbers
            prompt.tokens = cast("list[Token]", rope)

    def launch(self, request: ReplayRequest) -> None:
        """Queue a request, and assign a slot to it if the server is idle."""
        self.moves.append(("launch", request.number))
        if request.file is not None and not self.dead:
            self.read_back(str(request.file[0]), request.file[1])
        self.seen[request.number] = len(self.engine.events)
        self.submitted[request.number] = request
        predict = ENDLESS_REPLY if request.cancel_at is not None else len(request.reply)
        self.tickets[request.number] = self.engine.submit(
            Request(
                prompt=self.tokens(request.prompt),
                predict=max(predict, 1),
                reply=self.tokens(request.reply),
                slot=request.slot,
                cache_prompt=request.cache_prompt,
                completions=request.completions,
                options=request.options(spans=self.accepts_spans),
            )
        )
        with self._as_busy(self._ended_early(named=request.slot)):
            self.engine.take_in()

    def _ended_early(self, named: int) -> list[Slot]:
        """Idle slots of requests that are answered here, and not yet where they were recorded.

        None where no other slot would be left. The one that the request names is not among them:
        it would wait there for the end of a request that has ended.
        """
        replies = map(self.engine.reply, self.tickets.values())
        ended = {int(reply.slot) for reply in replies if reply and reply.slot is not None}
        idle = [slot for slot in self.engine.server.slots if not slot.is_processing]
        found = [slot for slot in idle if int(slot.id) in ended - {named}]
        return found if len(found) < len(idle) else []

    @contextmanager
    def _as_busy(self, slots: Sequence[Slot]) -> Iterator[None]:
        """Keep a request from slots that it found busy."""
        for slot in slots:
            slot.state = SlotState.GENERATING
        yield
        for slot in slots:
            slot.state = SlotState.IDLE

    def play(self, request: ReplayRequest) -> Replayed:
        """Run a request to its end."""
        self.launch(request)
        return self.run_until(request.number)

    def run_until(self, number: int) -> Replayed:
        """Take turns until a request is answered or cancelled."""
        if self.dead or number not in self.tickets:
            return FAILED
        ticket = self.tickets[number]
        try:
            for _ in range(MOST_TURNS):
                if self.engine.reply(ticket) is not None:
                    break
                self._step()
        except UpstreamAbort:
            self.dead = True
            return FAILED
        ticket = self.tickets.pop(number)
        self.moves.append(("finish", number))
        self.ends(number, self.engine.reply(ticket))
        replies = self.engine.replies(ticket)
        self.submitted.pop(number, None)
        reply = self.engine.reply(ticket)
        made = self.engine.events[self.seen.pop(number) :]
        events = [event for event in made if isinstance(event, OF_CHECKPOINTS)]
        if number in self.saved_after and reply is not None and reply.slot is not None:
            self.engine.slot_save(int(reply.slot), str(number))
            self.engine.take_in()
        if reply is None:
            return FAILED
        if not self.tickets:
            self.engine.forget(ticket)
        children = tuple(replayed(child, ()) for child in replies[1:])
        cuts = (
            event for event in made if isinstance(event, MemoryCut) and event.slot == reply.slot
        )
        began_at = next((int(cut.n_tokens) for cut in cuts), None) if reply.error else None
        return replace(replayed(reply, events), children=children, began_at=began_at)

    def ends(self, number: int, reply: Reply | None) -> None:
        """Let an idle slot be the last one used: requests end in the recorded order, though a turn
        of the replay may end several.
        """
        server = self.engine.server
        slot = None if reply is None or reply.slot is None else server.slots[reply.slot]
        if slot is not None and not slot.is_processing:
            server.now += 1
            slot.t_last_used = server.now

    def _step(self, at_once: int = AT_ONCE) -> bool:
        """Take a turn; requests end in it where their clients left, whichever is waited for."""
        self.moves.append(("turn", at_once))
        for number, request in self.submitted.items():
            if request.cancel_at is None or self.engine.reply(self.tickets[number]) is not None:
                continue
            left = request.cancel_at - self._holds(request)
            at_once = min(at_once, max(1, left - 1))
            if left <= 0:
                self.engine.cancel(self.tickets[number])
        self.engine.limit_turns(at_once)
        try:
            return self.engine.step()
        finally:
            self.engine.limit_turns(AT_ONCE)

    def _holds(self, request: ReplayRequest) -> int:
        return self.engine.tokens_held_for(self.tickets[request.number])

    def made_for(self, number: int, slot: int, kind: type[Event]) -> int:
        """Number of events of a kind since a running request came: of checkpoints, of turns."""
        return sum(
            isinstance(event, kind) and event.slot == slot
            for event in self.engine.events[self.seen[number] :]
        )

    def take_turns(self, number: int, slot: int, turns: int) -> None:
        """Take as many turns of a prompt, if it has them: a real one may begin turns without end,
        where its slot was loaded with a longer conversation.
        """
        before = -1
        while before < (taken := self.made_for(number, slot, MemoryCut)) < turns:
            before = taken
            self.advance(turns=1, at_once=1)

    def advance(self, *, turns: int, at_once: int = AT_ONCE) -> None:
        """Take a number of turns."""
        try:
            for _ in range(turns):
                if not self._step(at_once):
                    break
        except UpstreamAbort:
            self.dead = True

    def spare_turns(self) -> int:
        """The turns after which every running request still lacks a token of its reply.

        The log has no end of them yet: one that ended here would give its slot to the next.
        """
        return min(
            (
                len(request.reply) - 1 - max(0, self._holds(request) - len(request.prompt) + 1)
                for request in self.submitted.values()
                if request.cancel_at is None
            ),
            default=AT_ONCE,
        )

    def read_until(self, number: int, tokens: int) -> None:
        """Prefill a request up to a number of tokens."""
        request = self.submitted.get(number)
        if request is None or self.dead:
            return
        for _ in range(MOST_TURNS):
            if (
                self._holds(request) >= tokens
                or self.engine.reply(self.tickets[number]) is not None
                or self.spare_turns() < 1
            ):
                return
            self.advance(turns=1, at_once=1)

    def run_prompt(self, number: int) -> None:
        """Prefill a request's whole prompt."""
        request = self.submitted.get(number)
        if request is not None:
            self.read_until(number, len(request.prompt))


def replayed(reply: Reply, events: Sequence[Event]) -> Replayed:
    """A reply of the replay."""
    return Replayed(
        cached=None if reply.cached is None else int(reply.cached),
        processed=None if reply.processed is None else int(reply.processed),
        slot=None if reply.slot is None else int(reply.slot),
        equal=int(reply.equal),
        equal_with=reply.equal_with,
        losses=reply.losses,
        events=tuple(events),
        error=reply.error,
        message=reply.message,
    )
