"""llama-server: the queue, the loop turn by turn, and what it shows to the outside."""

from collections.abc import Mapping, Sequence
from typing import Any

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.chat_templates import Message
from cachesim.engines.events import Event
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.llamacpp.build import open_server
from cachesim.engines.llamacpp.events import (
    RequestRefused,
    ServerRestarted,
    ServerSlept,
    TaskDeferred,
    TaskLaunched,
)
from cachesim.engines.llamacpp.held import amounts, held, texts
from cachesim.engines.llamacpp.integrity import check_integrity
from cachesim.engines.llamacpp.lora import parse_lora, set_lora, take_over
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.requests import (
    format_prompt_infill,
    render_chat,
    to_task,
    why_refused,
)
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.save import run_slot_action
from cachesim.engines.llamacpp.selection import choose_slot
from cachesim.engines.llamacpp.server_context import CANCELLED, ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.snapshot import books, snapshot
from cachesim.engines.llamacpp.spans import Start
from cachesim.engines.llamacpp.swap import save_idle_slots
from cachesim.engines.llamacpp.task import PROMPTED, Task, TaskKind
from cachesim.engines.llamacpp.update_slots import EMPTY_TURNS, update_slots
from cachesim.engines.rope import Rope, as_rope
from cachesim.errors import OptionError
from cachesim.model.adapters import adapted, adapted_in
from cachesim.units import Count, Tokens


class LlamaCpp(Engine):
    """A llama-server at one release, with patches (`server_context_impl`)."""

    def _open(self, rules: ServerRules, options: Options, store: ByteStore | None) -> None:
        if adapted_in(self.network) is None:
            self.network = adapted(self.network, options.adapters)
        self._store = store
        self._server = open_server(rules, self.network, options)

    @property
    def events(self) -> Sequence[Event]:
        return self._server.events

    @property
    def server(self) -> ServerContext:
        """The server's inner whole, for those who look closely."""
        return self._server

    def submit(self, request: Request) -> Ticket:
        server = self._server
        ticket = Ticket(server.next_task)  # a ticket is the number of its first task
        fields = self._fields(request)
        task = to_task(request, fields, number=server.next_task, ticket=ticket, server=server)
        server.next_task += request.completions
        refused = why_refused(request, task, server)
        if refused is not None:
            self._refuse(task, *refused)
        else:
            server.queue.append(task)
        return ticket

    def render_chat(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[Tokens, tuple[Start, ...]]:
        """The prompt of a chat that is sent with these options, and where its messages begin."""
        fields = self.family.read_fields(self.profile, options)
        return render_chat(self._server, messages, fields)

    def render_infill(self, prefix: Tokens, suffix: Tokens) -> tuple[Tokens, Count]:
        """The prompt that this server makes of a gap, and where the suffix's mark stands in it."""
        return format_prompt_infill(prefix, suffix, self._server.options.batch)

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Queue `POST /slots/{slot}?action=save`."""
        return self._submit_action("slot-save", slot, name)

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Queue `POST /slots/{slot}?action=restore`."""
        return self._submit_action("slot-restore", slot, name)

    def slot_erase(self, slot: int) -> Ticket:
        """Queue `POST /slots/{slot}?action=erase`."""
        return self._submit_action("slot-erase", slot, "")

    def set_lora(self, given: object) -> Ticket:
        """Queue `POST /lora-adapters`."""
        number = self._server.take_number()
        strengths = parse_lora(given, self._server.options.adapters)
        off = (0.0,) * len(self._server.options.adapters)
        self._server.queue.append(
            Task(
                id=number,
                ticket=Ticket(number),
                kind="set-lora",
                strengths=off if strengths is None else strengths,
            )
        )
        return Ticket(number)

    def restart(self) -> None:
        """End the process and start it again with the same flags; slot files stay."""
        self._begin_anew(ServerRestarted())

    def sleep(self) -> None:
        """Give everything up until the next request (upstream: `handle_sleeping_state`)."""
        if self._server.options.sleep_idle_seconds < 0:
            msg = "the server never sleeps; set option 'sleep_idle_seconds'"
            raise OptionError(msg)
        self._begin_anew(ServerSlept())

    def _begin_anew(self, event: Event) -> None:
        old = self._server
        if old.queue or old.is_busy:
            msg = "the server is busy; let it finish first"
            raise OptionError(msg)
        old.emit(event)
        new = open_server(old.rules, self.network, old.options)
        new.events, new.replies, new.next_task = old.events, old.replies, old.next_task
        self._server = new

    def step(self) -> bool:
        """Empty the task queue, then one pass over the slots (upstream: `start_loop`)."""
        server = self._server
        if not server.queue and not server.is_busy:
            return False
        if server.given_up:
            self._hang_up()
        self.take_in()
        update_slots(server)
        return True

    def take_in(self) -> None:
        """Empty the task queue: requests get their slots, and nothing is decoded yet."""
        while self._server.queue:
            self._process(self._server.queue.popleft())

    def reply(self, ticket: Ticket) -> Reply | None:
        replies = self._server.replies.get(ticket)
        return replies[0] if replies else None

    def replies(self, ticket: Ticket) -> tuple[Reply, ...]:
        """All completions of one request, the parent's first."""
        return tuple(self._server.replies.get(ticket, ()))

    def cancel(self, ticket: Ticket) -> None:
        """The client goes away: waiting tasks vanish, busy slots are released at the next turn.

        What was decoded so far stays in the slot. The reply says `cancelled`.
        """
        server = self._server
        for waiting in (server.queue, server.deferred):
            for task in [each for each in waiting if each.ticket == ticket]:
                if task.kind != "cancel":
                    waiting.remove(task)
                    server.answer(task, None, self._cancelled(task))
        for slot in server.slots:
            if slot.task is not None and slot.task.ticket == ticket:
                target = slot.task.id
                server.queue.appendleft(
                    Task(id=server.take_number(), ticket=ticket, kind="cancel", target=target)
                )

    def _hang_up(self) -> None:
        """The HTTP side cancels what is left of a call that was answered by an error.

        Upstream: `server_response_reader::stop`. A few turns without anything to decode are over
        before it gets there: servers up to b9713 have ended themselves by then, later ones go
        on without the children.
        """
        server = self._server
        if 0 < server.n_empty_consecutive <= EMPTY_TURNS:
            return
        while server.given_up:
            self.cancel(server.given_up.pop())

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self._server)

    def books(self) -> dict[str, Any]:
        return books(self._server)

    def held(self) -> Held:
        return held(self._server)

    def texts(self) -> Texts:
        return texts(self._server)

    def amounts(self) -> Amounts:
        return amounts(self._server)

    def conversations(self) -> tuple[list[Rope], list[Rope]]:
        """The tokens of every slot and every parked conversation, where prompts are ropes."""
        cache = self._server.cache
        parked = [] if cache is None else [entry.tokens for entry in cache.entries]
        slots = [slot.prompt.tokens for slot in self._server.slots]
        return [as_rope(t) or Rope() for t in slots], [as_rope(t) or Rope() for t in parked]

    def tokens_held_for(self, ticket: Ticket) -> int:
        """The number of tokens in the slot that is at work on a request; 0 where none is."""
        for slot in self._server.slots:
            if slot.task is not None and slot.task.ticket == ticket:
                return int(slot.prompt.n_tokens) if slot.n_prompt_tokens_cache is not None else 0
        return 0

    def held_bytes(self) -> int:
        """Real bytes of what is parked and of all checkpoints, in host memory."""
        found = self.amounts()
        return found.parked + found.checkpoints

    def forget(self, ticket: Ticket) -> None:
        self._server.replies.pop(ticket, None)
        self._server.events.clear()

    def limit_turns(self, most: int) -> None:
        self._server.most_turns = most

    def check_integrity(self) -> None:
        check_integrity(self._server)

    def _submit_action(self, kind: TaskKind, slot: int, name: str) -> Ticket:
        number = self._server.take_number()
        ticket = Ticket(number)
        self._server.queue.append(
            Task(id=number, ticket=ticket, kind=kind, id_slot=slot, name=name)
        )
        return ticket

    def _refuse(self, task: Task, error: str, message: str) -> None:
        self._server.emit(RequestRefused(task=task.id, error=error, message=message))
        self._server.answer(task, None, self._blank(task, error=error, message=message))

    def _cancelled(self, task: Task) -> Reply:
        return self._blank(task, error=CANCELLED, message="the client went away")

    def _blank(self, task: Task, *, error: str | None = None, message: str = "") -> Reply:
        none = self._server.no_logits
        return Reply.empty(task.tokens, logits=none, error=error, message=message)

    def _process(self, task: Task) -> None:
        """Upstream: `process_single_task`."""
        server = self._server
        if task.kind == "cancel":
            self._process_cancel(task)
            return
        if task.kind == "set-lora":
            set_lora(server, task)
            server.answer(task, None, self._blank(task))
            return
        if task.kind not in PROMPTED:
            self._process_action(task)
            return
        slot = choose_slot(server, task)
        if slot is None or slot.is_processing:
            self._defer(task, slot)
            return
        if task.is_parent and not self._launch_children(task, slot):
            self._defer(task, slot)
            return
        self._launch(task, slot, SlotState.STARTED)
        save_idle_slots(server)

    def _process_cancel(self, task: Task) -> None:
        for slot in self._server.slots:
            if slot.task is not None and slot.task.id == task.target:
                self._server.finish(slot, CANCELLED, CANCELLED, "the client went away")

    def _process_action(self, task: Task) -> None:
        server = self._server
        slot = server.slots[task.id_slot % len(server.slots)]
        if slot.is_processing:
            self._defer(task, slot)
        else:
            server.answer(task, slot, run_slot_action(server, slot, task, self._store))

    def _defer(self, task: Task, slot: Slot | None) -> None:
        self._server.deferred.append(task)
        self._server.emit(TaskDeferred(slot=-1 if slot is None else slot.id, task=task.id))

    def _launch_children(self, task: Task, taken: Slot) -> bool:
        """Into the lowest idle slots but the parent's, if all fit (upstream: `get_free_slots`)."""
        free = [s for s in self._server.slots if not s.is_processing and s is not taken]
        if len(free) < len(task.children):
            return False
        for child, place in zip(task.children, free, strict=False):
            self._launch(child, place, SlotState.WAIT_OTHER)
        return True

    def _launch(self, task: Task, slot: Slot, state: SlotState) -> None:
        take_over(self._server, slot, task)
        slot.task = task
        slot.completed = task.kind == "completion"
        slot.move(state)
        self._server.emit(TaskLaunched(slot=slot.id, task=task.id, is_child=task.is_child))
