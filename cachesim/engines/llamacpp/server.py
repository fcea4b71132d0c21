"""llama-server: the queue, the loop step by step, and its interface."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.chat import FILL_MIDDLE, FILL_PREFIX, FILL_SUFFIX, ByteTokenizer, Message
from cachesim.engines.events import Event
from cachesim.engines.held import Amounts, Held, Texts, sizes_of
from cachesim.engines.llamacpp.observe import (
    amounts,
    books,
    check_integrity,
    held,
    snapshot,
    texts,
)
from cachesim.engines.llamacpp.options import CONTEXT_STEP, Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.save import run_slot_action
from cachesim.engines.llamacpp.selection import choose_slot, save_idle_slots
from cachesim.engines.llamacpp.server_context import (
    CANCELLED,
    ServerContext,
    open_server,
    parse_lora,
    set_lora,
    take_over,
)
from cachesim.engines.llamacpp.slot import (
    EMBEDDED,
    PROMPTED,
    Slot,
    SlotState,
    Task,
    TaskKind,
    TaskParams,
)
from cachesim.engines.llamacpp.update_slots import EMPTY_TURNS, update_slots
from cachesim.engines.llamacpp.vocabulary.events import (
    RequestRefused,
    ServerRestarted,
    ServerSlept,
    TaskDeferred,
    TaskLaunched,
)
from cachesim.engines.tokens import Rope, as_rope
from cachesim.errors import InputError, OptionError, TokenError
from cachesim.model.adapters import adapted, adapted_in
from cachesim.units import Count, Pos, Token, Tokens, as_tokens

Start: TypeAlias = tuple[str, Pos]
"""A role and the position of its message's first token."""


def message_starts(prompt: Tokens, fields: Mapping[str, Any]) -> tuple[Start, ...]:
    """Parse `message_spans` or `message_delimiters` of a request, in the order of the prompt.

    A span is `{"role": "user", "start": 12}` with the offset of its first token; the real server
    has byte offsets into the text, which token prompts do not have. A delimiter is `{"role":
    "user", "delimiter": [259, 262]}`, as tokens or as text. The server in the wheel of b11549 uses
    delimiters only for chats, from the template; here requests may have them as in b11434, so that
    a plain prompt can have messages.
    """
    spans = [_span(span, len(prompt)) for span in fields.get("message_spans") or ()]
    delimited = find_delimiters(
        prompt, [_delimiter(d) for d in fields.get("message_delimiters") or ()]
    )
    return tuple(sorted([*spans, *delimited], key=lambda start: start[1]))


def user_starts(starts: Sequence[Start]) -> tuple[Pos, ...]:
    """Positions of the first tokens of user messages."""
    return tuple(pos for role, pos in starts if role == "user")


def find_delimiters(prompt: Tokens, delimiters: Sequence[tuple[str, Tokens]]) -> list[Start]:
    """Scan a prompt: at each token the first delimiter that matches begins a message.

    Upstream: `server_tokens::find_message_spans`.
    """
    starts: list[Start] = []
    # The scan advances by one token, so matches may overlap.
    for at in range(len(prompt) if delimiters else 0):
        for role, tokens in delimiters:
            # Trap: a delimiter without tokens matches everywhere.
            if prompt[at : at + len(tokens)] == tokens:
                starts.append((role, Pos(at)))
                break
    return starts


def _span(given: object, n_tokens: int) -> Start:
    role, start = _fields(given, "message_spans", "start")
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < n_tokens:
        msg = f"a message span starts at {start!r}; write a token offset from 0 to {n_tokens - 1}"
        raise OptionError(msg)
    return role, Pos(start)


def _delimiter(given: object) -> tuple[str, Tokens]:
    role, delimiter = _fields(given, "message_delimiters", "delimiter")
    if isinstance(delimiter, str):
        return role, ByteTokenizer().encode(delimiter)
    if isinstance(delimiter, list | tuple) and all(isinstance(part, int) for part in delimiter):
        return role, tuple(Token(token) for token in delimiter)
    raise OptionError(f"a message delimiter is {delimiter!r}; write its text or a list of tokens")


def _fields(given: object, where: str, what: str) -> tuple[str, Any]:
    if not isinstance(given, Mapping) or set(given) != {"role", what}:
        msg = f"an entry of {where!r} is {given!r}; write a table with 'role' and {what!r}"
        raise OptionError(msg)
    return str(given["role"]), given[what]


ASSISTANT: Final = "assistant"
SPACE: Final = "\u2581"
"""Space in the tokenizer of the simulated models: three bytes."""


def to_task(
    request: Request,
    fields: Mapping[str, Any],
    *,
    number: int,
    ticket: Ticket,
    server: ServerContext,
) -> Task:
    """Parse a completion request as the HTTP side does; `fields` are its further ones, checked."""
    options = server.options
    _check_count("predict", request.predict, -1)
    _check_count("completions", request.completions, 1)
    _check_count("slot", request.slot, -1)
    prompt: Tokens = request.prompt
    starts: tuple[Start, ...] = ()
    if request.messages:
        prompt, starts = _chat_prompt(request, server, fields)
    kind: TaskKind = fields.get("endpoint", "completion")
    if kind == "infill":
        suffix = fields.get("input_suffix", ())
        if not isinstance(suffix, list | tuple) or not all(
            isinstance(token, int) for token in suffix
        ):
            msg = f"request field 'input_suffix' is {suffix!r}; write a list of token ids"
            raise OptionError(msg)
        suffix = as_tokens(suffix)
        _check_known("input_suffix", suffix, server.network.spec.vocabulary)
        prompt, _ = format_prompt_infill(prompt, suffix, options.batch)
    check_tokens(request, prompt, server.network.spec.vocabulary)
    check_images(request, kind, server)
    server.media |= {prompt[image.start : image.end] for image in request.images}
    # Releases that place checkpoints every so many tokens know no messages.
    if server.rules.checkpoints.placement == "every":
        starts = ()
    if fields:
        starts = (*starts, *message_starts(prompt, fields))
    users = sorted(user_starts(starts))
    params = TaskParams(
        n_predict=fields.get("n_predict", request.predict),
        n_keep=fields.get("n_keep", options.keep),
        n_discard=fields.get("n_discard", 0),
        n_cache_reuse=fields.get("n_cache_reuse", options.cache_reuse),
        cache_prompt=fields.get("cache_prompt", request.cache_prompt and options.cache_prompt),
        lora=parse_lora(fields["lora"], options.adapters) if "lora" in fields else None,
        ignore_eos=fields.get("ignore_eos", options.ignore_eos),
        reply=request.reply,
        drafts=request.drafts,
        user_starts=frozenset(users),
        last_user_start=users[-1] if users else Pos(-1),
    )
    if kind in EMBEDDED:  # the HTTP side ignores further fields of such a request
        params = TaskParams(reply=(), cache_prompt=server.rules.requests.embeddings_reuse)
    task = Task(
        id=number,
        ticket=ticket,
        kind=kind,
        tokens=prompt,
        params=params,
        id_slot=-1 if kind in EMBEDDED else request.slot,
        images=request.images,
    )
    task.children = [
        Task(id=number + 1 + k, ticket=ticket, tokens=prompt, params=params, id_parent=number)
        for k in range(request.completions - 1)
    ]
    return task


def _check_count(name: str, value: int, least: int) -> None:
    if not value >= least:  # NaN too
        raise OptionError(f"{name} is {value}; write a whole number from {least} on")


def check_tokens(request: Request, prompt: Tokens, vocabulary: int) -> None:
    """Refuse tokens of a request outside the vocabulary."""
    _check_known("prompt", prompt, vocabulary)
    _check_known("reply", request.reply or (), vocabulary)
    for draft in request.drafts or ():
        _check_known("drafts", draft, vocabulary)


def _check_known(what: str, tokens: Sequence[Token], vocabulary: int) -> None:
    if not tokens or as_rope(tokens) is not None:
        return  # names of tokens, not ids
    if not (min(tokens) >= 0 and max(tokens) < vocabulary):  # NaN too
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise TokenError(f"{what} holds token {wrong}; write tokens from 0 to {vocabulary - 1}")


INVALID: Final = "invalid_request_error"
NOT_SUPPORTED: Final = "not_supported_error"


def check_images(request: Request, kind: TaskKind, server: ServerContext) -> None:
    """Refuse images beside what a server with an image projector does not do, or not as here.

    Upstream: `load_model` sets `ctx_shift` and `n_cache_reuse` to none with an `mmproj`.
    """
    options = server.options
    beside = {
        "context_shift": options.context_shift,
        "cache_reuse": options.cache_reuse > 0,
        "spec_type": options.spec_type != "none",
        "completions": request.completions > 1,
        "endpoint": kind != "completion",
    }
    if any(image.end == len(request.prompt) for image in request.images):
        msg = "a prompt that ends with an image is not simulated: write a span of text after it"
        raise OptionError(msg)
    for name, present in beside.items():
        if request.images and present:
            raise OptionError(f"images have no place beside {name!r} here: leave it out")


def why_refused(request: Request, task: Task, server: ServerContext) -> tuple[str, str] | None:
    """The error of upstream's HTTP side before a task is queued, and its message."""
    # Refused before anything is queued: no slot is taken and nothing is evicted for such a request.
    if [message.role for message in request.messages[-2:]] == [ASSISTANT, ASSISTANT]:
        return INVALID, "Cannot have 2 or more assistant messages at the end of the list."
    embeds = server.options.embedding
    if task.is_embedded and not (
        embeds and (task.kind != "rerank" or (server.options.pooling == "rank"))
    ):
        return NOT_SUPPORTED, f"This server was not started for {task.kind} requests"
    if task.params.n_predict < -1 and server.rules.requests.counts_are_checked:
        return INVALID, f"Field 'n_predict': -1 <= value, but got {task.params.n_predict}"
    is_text = bool(request.messages) or dict(request.options or {}).get("prompt_string")
    # An empty list of tokens is refused. An empty text is not, nor is a chat that renders to
    # nothing.
    if not task.tokens and not is_text:
        return INVALID, '"prompt" must not be empty'
    if request.completions > len(server.slots):
        slots = len(server.slots)
        return INVALID, f"n_cmpl cannot be greater than the number of slots ({slots})"
    return None


def format_prompt_infill(prefix: Tokens, suffix: Tokens, n_batch: int) -> tuple[Tokens, Count]:
    """The prompt around a gap, and the position of the suffix's mark in it.

    Upstream: `format_prompt_infill`. Of a batch, three quarters are for the end of the prefix, one
    is for the start of the suffix.

    prefix  [ dropped | 3 * (n_batch / 4) )      suffix  [ n_batch / 4 - 2 | dropped )
    prompt  [ FIM_PRE | prefix | FIM_SUF | suffix | FIM_MID )
    """
    n_prefix_take = min(len(prefix), 3 * (n_batch // 4))
    n_suffix_take = min(len(suffix), max(0, n_batch // 4 - 2))
    kept = prefix[len(prefix) - n_prefix_take :]
    prompt = (FILL_PREFIX, *kept, FILL_SUFFIX, *suffix[:n_suffix_take], FILL_MIDDLE)
    return prompt, Count(1 + n_prefix_take)


def render_chat(
    server: ServerContext, messages: Sequence[Message], fields: Mapping[str, Any]
) -> tuple[Tokens, tuple[Start, ...]]:
    r"""The prompt of a conversation, and the starts of its messages.

    Upstream: `oaicompat_chat_params_parse`. The role `developer` is `system`.

        <|im_start|> user \n ... <|im_end|> \n <|im_start|> assistant \n  [ the last message )
    """
    opens = fields.get("add_generation_prompt", True)
    tools = fields.get("tools", ())
    tokenizer = ByteTokenizer(server.options.chat_template).with_arguments(tools, {})
    shown = [_as_read(message) for message in messages]
    # An assistant message at the end is no turn of its own: the reply continues it.
    continued = shown.pop() if shown and shown[-1].role == ASSISTANT else None
    if continued is not None:
        # Trap: if it is empty, releases since June do not even open the reply.
        # `add_generation_prompt` is ignored with a message to continue.
        opens = server.rules.requests.empty_prefill_opens or bool(continued.content)
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=opens)
    starts = [(role, Pos(count)) for role, count in tokenizer.message_starts(shown)]
    if continued is not None:
        starts.append((ASSISTANT, Pos(len(prompt))))
        prompt += tokenizer.encode(continued.content)
    return prompt, tuple(starts)


def _as_read(message: Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=message.content.replace(" ", SPACE))


def _chat_prompt(
    request: Request, server: ServerContext, fields: Mapping[str, Any]
) -> tuple[Tokens, tuple[Start, ...]]:
    """The prompt of a chat; a different `prompt` is refused (`oaicompat_chat_params_parse`)."""
    prompt, starts = render_chat(server, request.messages, fields)
    if request.prompt not in ((), prompt):
        raise TokenError(
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
    return prompt, starts


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
        """The server's state, for tests and tools."""
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
        """The prompt of a chat with these options, and the starts of its messages."""
        fields = self.family.read_fields(self.profile, options)
        return render_chat(self._server, messages, fields)

    def render_infill(self, prefix: Tokens, suffix: Tokens) -> tuple[Tokens, Count]:
        """The server's prompt for a gap, and the position of the suffix's mark in it."""
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
        """Drop the model and all content until a request (upstream: `handle_sleeping_state`)."""
        if self._server.options.sleep_idle_seconds < 0:
            raise OptionError("the server never sleeps; set option 'sleep_idle_seconds'")
        self._begin_anew(ServerSlept())

    def _begin_anew(self, event: Event) -> None:
        old = self._server
        if old.queue or old.is_busy:
            raise OptionError("the server is busy; let it finish first")
        old.emit(event)
        new = open_server(old.rules, old.network, old.options)
        new.events, new.replies, new.next_task = old.events, old.replies, old.next_task
        new.brief = old.brief
        self._server = new

    def step(self) -> bool:
        """Process the task queue, then one pass over the slots (upstream: `start_loop`)."""
        server = self._server
        if not server.queue and not server.is_busy:
            return False
        if server.given_up:
            self._hang_up()
        # All queued requests get their slots before any of them is decoded, so none of them finds
        # another's tokens.
        self.take_in()
        update_slots(server)
        return True

    def take_in(self) -> None:
        """Process the task queue: requests get their slots, without a decode."""
        while self._server.queue:
            self._process(self._server.queue.popleft())

    def reply(self, ticket: Ticket) -> Reply | None:
        replies = self._server.replies.get(ticket)
        return replies[0] if replies else None

    def replies(self, ticket: Ticket) -> tuple[Reply, ...]:
        """All completions of one request, the parent's first."""
        return tuple(self._server.replies.get(ticket, ()))

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a request: waiting tasks are removed, busy slots released in the next step."""
        server = self._server
        for waiting in (server.queue, server.deferred):
            # Not a cancellation that was queued before: it has a slot to release.
            for task in [task for task in waiting if task.ticket == ticket]:
                if task.kind != "cancel":
                    waiting.remove(task)
                    reply = self._blank(task, error=CANCELLED, message="the client disconnected")
                    server.answer(task, None, reply)
        # The slot keeps what was decoded, and the next request may reuse it.
        for slot in server.slots:
            if slot.task is not None and slot.task.ticket == ticket:
                target = slot.task.id
                server.queue.appendleft(
                    Task(id=server.take_number(), ticket=ticket, kind="cancel", target=target)
                )

    def _hang_up(self) -> None:
        """Cancel the rest of a call whose reply was an error, as the HTTP side does.

        Upstream: `server_response_reader::stop`.
        """
        server = self._server
        # A few passes without tokens to decode are over before that: servers up to b9713 have ended
        # by then, later ones continue without the children.
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

    def pool_flags(self, memory: int) -> dict[str, int]:
        """The size of a context of full attention, which is allocated as a whole.

        | a state for each slot | cells of the context |
        """
        token, window, state = sizes_of(self.network.spec)
        if window or not token:
            what = "windows" if window else "no attention"
            raise InputError(f"memory sizes a context of full attention, and the model has {what}")
        left = memory - len(self.held().slots) * state
        return {"ctx_size": left // token // CONTEXT_STEP * CONTEXT_STEP}

    def conversations(self) -> tuple[list[Rope], list[Rope]]:
        """The tokens of every slot and every prompt-cache entry, if prompts are ropes."""
        cache = self._server.cache
        entries = [] if cache is None else [entry.tokens for entry in cache.entries]
        slots = [slot.prompt.tokens for slot in self._server.slots]
        return [as_rope(t) or Rope() for t in slots], [as_rope(t) or Rope() for t in entries]

    def tokens_held_for(self, ticket: Ticket) -> int:
        """Number of tokens in the slot that is processing a request; 0 without such a slot."""
        for slot in self._server.slots:
            if slot.task is not None and slot.task.ticket == ticket:
                return int(slot.prompt.n_tokens) if slot.n_prompt_tokens_cache is not None else 0
        return 0

    def held_bytes(self) -> int:
        """Real bytes of the prompt cache and of all checkpoints, in host memory."""
        amounts = self.amounts()
        return amounts.prompt_cache + amounts.checkpoints

    def forget(self, ticket: Ticket) -> None:
        self._server.replies.pop(ticket, None)
        self._server.events.clear()

    def limit_turns(self, most: int) -> None:
        self._server.most_turns = most

    def leave_out_comparisons(self) -> None:
        self._server.brief = True

    def check_integrity(self) -> None:
        check_integrity(self._server)

    def _submit_action(self, kind: TaskKind, slot: int, name: str) -> Ticket:
        if self._server.media:
            msg = f"{kind} of a server that read images is not simulated; leave one of them out"
            raise OptionError(msg)
        number = self._server.take_number()
        ticket = Ticket(number)
        self._server.queue.append(
            Task(id=number, ticket=ticket, kind=kind, id_slot=slot, name=name)
        )
        return ticket

    def _refuse(self, task: Task, error: str, message: str) -> None:
        self._server.emit(RequestRefused(task=task.id, error=error, message=message))
        self._server.answer(task, None, self._blank(task, error=error, message=message))

    def _blank(self, task: Task, *, error: str | None = None, message: str = "") -> Reply:
        none = self._server.no_logits
        return Reply.empty(task.tokens, logits=none, error=error, message=message)

    def _process(self, task: Task) -> None:
        """Upstream: `process_single_task`."""
        server = self._server
        if task.kind == "cancel":
            for busy in server.slots:
                if busy.task is not None and busy.task.id == task.target:
                    server.finish(busy, CANCELLED, CANCELLED, "the client disconnected")
            return
        if task.kind == "set-lora":
            set_lora(server, task)
            server.answer(task, None, self._blank(task))
            return
        if task.kind not in PROMPTED:
            named = server.slots[task.id_slot % len(server.slots)]
            if named.is_processing:
                self._defer(task, named)
            else:
                server.answer(task, named, run_slot_action(server, named, task, self._store))
            return
        slot = choose_slot(server, task)
        # Trap (b11434): a request pinned to a busy slot has swapped its prompt by now; the running
        # reply continues on the swapped tokens.
        if slot is None or slot.is_processing:
            self._defer(task, slot)
            return
        # The parent's slot has been swapped with the prompt cache even if the children do not fit.
        if task.is_parent and not self._launch_children(task, slot):
            self._defer(task, slot)
            return
        self._launch(task, slot, SlotState.STARTED)
        save_idle_slots(server)

    def _defer(self, task: Task, slot: Slot | None) -> None:
        self._server.deferred.append(task)
        self._server.emit(TaskDeferred(slot=-1 if slot is None else slot.id, task=task.id))

    def _launch_children(self, task: Task, taken: Slot) -> bool:
        """Launch children in the lowest idle slots, if all fit (upstream: `get_free_slots`)."""
        # What these slots held is lost when the parent's prompt is copied.
        free = [s for s in self._server.slots if not s.is_processing and s is not taken]
        if len(free) < len(task.children):
            return False
        for child, place in zip(task.children, free, strict=False):
            self._launch(child, place, SlotState.WAIT_OTHER)
        return True

    def _launch(self, task: Task, slot: Slot, state: SlotState) -> None:
        # Adapters before the start: other ones empty the slot's tokens.
        take_over(self._server, slot, task)
        slot.task = task
        slot.completed = task.kind == "completion"
        slot.move(state)
        self._server.emit(TaskLaunched(slot=slot.id, task=task.id, is_child=task.is_child))
