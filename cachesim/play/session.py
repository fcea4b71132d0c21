"""The loop that runs a scenario on one profile, group by group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, Protocol, runtime_checkable

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.chat import Message
from cachesim.engines.events import Event
from cachesim.engines.family import Family, Profile, family_of
from cachesim.engines.images import Image
from cachesim.errors import InputError, OptionError, ScenarioError, UpstreamAbort, UpstreamEndless
from cachesim.model.adapters import adapted
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.presets import one_of_each
from cachesim.model.spec import ModelSpec
from cachesim.model.trace import Traced
from cachesim.play.loop import LONGEST_TURN, PER_TOKEN, EndlessError, Loop, bounded
from cachesim.scenario import limits
from cachesim.scenario.checks import DEFAULT_PREDICT, spec_of
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.prompts import Vocabulary
from cachesim.scenario.structure import Problem
from cachesim.typed import there_is
from cachesim.units import Tokens
from cachesim.verify.explain import Part

ABORTED: Final = "aborted"
"""The error of steps during which the real process ends."""

NOT_RUN: Final = "not-run"
"""The error of steps after the end of the process."""

TIMEOUT: Final = "timeout"
"""The error of steps that timed out."""

ENDLESS: Final = "endless"
"""The error of steps during which the server never becomes idle."""

WORKER_GONE: Final = ("worker died", "generation thread died", "no answer")
"""Beginnings of errors from a server that no longer answers."""


AS_TEXT: Final = "prompt_string"
"""The request field of a prompt that is sent as text."""

CHECKED: Final = 64
"""Turns of the loop between two checks of a judged server's invariants."""

ENDLESS_REPLY: Final = 4096
"""Tokens assumed of a reply that ends with the context, for the time that it may take."""

CANCELLED: Final = "cancelled"
"""The error of a cancelled request."""


class SlotFiles:
    """Slot files of a run, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        """Store bytes under a name."""
        self.files[name] = data

    def get(self, name: str) -> bytes | None:
        """The bytes stored under a name, or None."""
        return self.files.get(name)


@dataclass(slots=True, kw_only=True)
class Record:
    """The result of one step."""

    index: int
    name: str
    step: Step
    alone: bool = False  # sent with no other
    prompt: Tokens = ()
    images: tuple[Image, ...] = ()
    parts: tuple[Part, ...] = ()
    ticket: Ticket | None = None
    reply: Reply | None = None
    children: tuple[Reply, ...] = ()  # further completions of the same prompt
    slot: int | None = None
    held: int | None = None  # tokens in the slot when the client left
    left: bool = False  # its client left before the reply was complete
    peeked: int | None = None  # tokens of the server's own lookup before it, if known
    error: str | None = None
    message: str = ""
    events: tuple[Event, ...] = ()
    snapshot: dict[str, Any] = field(default_factory=dict)
    holds: tuple[Tokens, ...] = ()  # tokens of slots and prompt-cache entries afterwards
    before: tuple[tuple[str, Tokens], ...] | None = None  # and before, by name, if known

    @property
    def tokens(self) -> Tokens:
        """The tokens of prompt and reply."""
        return self.prompt if self.reply is None else self.prompt + self.reply.generated

    @property
    def matched(self) -> Tokens | None:
        """Matched tokens of the best candidate, if no other request came in between."""
        if self.before is None or self.reply is None:
            return None
        name, equal = self.reply.equal_with, self.reply.equal
        return next(
            (
                tokens
                for known, tokens in self.before
                if known == name and tokens[:equal] == self.prompt[:equal]
            ),
            None,
        )


class Session(Loop):
    """A server of one profile, and the records of its steps."""

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        *,
        arithmetic: ArithmeticName = "float",
        traced: bool = False,
        reads_state: bool = True,
        thin: bool = False,
        family: Family[Any, Any] | None = None,
    ) -> None:
        """`reads_state` False: the server's state after each step is not recorded.

        `thin`: the network has one layer of each kind that the model has, and the given reply of a
        request that is alone is decoded at once but for its first and last token: in between
        nothing is decided. `family` runs rules that no release has.
        """
        self.reads_state = reads_state
        self.family = family or family_of(profile.engine)
        if profile.engine != scenario.engine.name:
            options = self.family.taken(scenario.engine.name, scenario.engine.options)
            scenario = replace(scenario, engine=replace(scenario.engine, options=options))
        self.scenario = scenario
        # Where no steps are given, any may come.
        self._chats = not scenario.step or any(step.messages for step in scenario.step)
        self._infills = not scenario.step or any(
            step.options.get("endpoint") == "infill" for step in scenario.step
        )
        self._joins = thin
        self.profile = profile
        specs = {name: spec_of(network) for name, network in scenario.networks.items()}
        if thin:
            ratio = self.family.groups_layers
            specs = {name: one_of_each(spec, in_ratio=ratio) for name, spec in specs.items()}
        self.networks = {name: self._network(spec, arithmetic) for name, spec in specs.items()}
        self.network = self.networks[""]
        self.traces = {n: Traced(network) for n, network in self.networks.items()} if traced else {}
        self.trace = self.traces.get("")
        super().__init__(self._create(), most=limits.TURNS)
        # Replies are then words of the prompt.
        self.recalls = self.network.spec.recall and arithmetic == "float"
        self.vocabulary = Vocabulary.of(scenario, self.network.spec)
        if self._chats and isinstance(self.engine, ChatRendering):
            self.vocabulary.server = self.engine.render_chat
        # Checked only where a step needs it: `isinstance` looks up every method of a protocol.
        if self._infills and isinstance(self.engine, InfillRendering):
            self.vocabulary.gap = self.engine.render_infill
        self.n_sent = 0  # steps
        self.cancelled: set[Ticket] = set()
        self.ended = False  # the server did not survive a step
        self.judged = False  # prompts are looked up before, invariants checked in between
        self.known: tuple[tuple[str, Tokens], ...] = ()  # held texts by name, after the last step

    def _network(self, spec: ModelSpec, arithmetic: ArithmeticName) -> Network:
        names = str(self.scenario.engine.options.get("lora", ""))
        network = build(spec, arithmetic)
        return adapted(network, [part.strip() for part in names.split(",") if part.strip()])

    def _create(self) -> Engine:
        models: dict[str, Network] = {**self.networks, **self.traces}
        try:
            options = dict(self.scenario.engine.options)  # with those that the scenario implies
            if self._chats and self._renders:
                options.setdefault("chat_template", self.scenario.chat.template)
            if not self.reads_state and self.family.records_provenance:
                options[self.family.records_provenance] = False
            return Engine.create(
                self.profile,
                model=models.pop(""),
                models=models,
                options=options,
                store=SlotFiles(),
                family=self.family,
            )
        except OptionError as error:
            problem = Problem(("engine", "options"), str(error))
            raise ScenarioError(str(problem)) from None
        except UpstreamAbort as abort:
            raise NotStartedError(abort) from None

    def run(self) -> Iterator[Record]:
        """Run every step in order, each after the server has become idle."""
        for group in groups_of(self.scenario):
            yield from self.send([self.scenario.step[index] for index in group])
            if self.ended:
                rest = range(group[-1] + 1, len(self.scenario.step))
                yield from (self._not_run(index) for index in rest)
                return

    def send(self, steps: Sequence[Step]) -> list[Record]:
        """Run steps that are sent together, until the server is idle."""
        numbered = enumerate(steps, self.n_sent)
        records = [Record(index=n, name=e.name or str(n + 1), step=e) for n, e in numbered]
        self.n_sent += len(records)
        if self._joins:
            stays = len(steps) == 1 and steps[0].held is None
            self.engine.limit_turns(limits.TURNS if stays else 1)
        if len(records) == 1:
            records[0].alone = True
            if self.reads_state:
                records[0].before = self.known
        self.ended = self._play(records)
        self._collect(records)
        return records

    def undone(self, done: int, error: str, message: str) -> Iterator[Record]:
        """The records of all but the finished steps, with one error."""
        for index in range(done, len(self.scenario.step)):
            record = self._record(index)
            record.error, record.message = error, message
            yield record

    def _record(self, index: int) -> Record:
        scenario = self.scenario
        return Record(index=index, name=scenario.step_names[index], step=scenario.step[index])

    def _not_run(self, index: int) -> Record:
        record = self._record(index)
        record.error, record.message = NOT_RUN, "the server had ended"
        return record

    def _play(self, records: Sequence[Record]) -> bool:
        """Submit a group to the server; True if the server ended."""
        tokens = sum(self._tokens_of(record.step) for record in records)
        try:
            with bounded(LONGEST_TURN + PER_TOKEN * tokens):
                for record in records:
                    self._begin(record, records)
                self.drain()
        except UpstreamEndless as endless:
            return self._never_ends(records, f"{endless.where}: {endless.why}")
        except UpstreamAbort as abort:
            for record in records:
                record.error, record.message = ABORTED, f"{abort.where}: {abort.why}"
            return True
        except EndlessError as endless:
            return self._never_ends(records, str(endless))
        return False

    def _tokens_of(self, step: Step) -> int:
        """Tokens of a step, about, and rather too many: of its prompt and its own replies."""
        spans, prompt = self.vocabulary.spans, step.prompt or ()
        length = len(prompt) + sum(len(words.content) for words in step.messages)
        if spans:
            words = len(prompt.split()) if isinstance(prompt, str) else 0
            length += max(words, len(step.messages)) * max(map(len, spans.values()))
        predict = len(step.reply or ()) if step.predict is None else step.predict
        return length + step.completions * (predict if predict >= 0 else ENDLESS_REPLY)

    def _never_ends(self, records: Sequence[Record], message: str) -> bool:
        for record in records:
            if record.ticket is None or self.engine.reply(record.ticket) is None:
                record.error, record.message = ENDLESS, message
        return True

    def turn(self) -> bool:
        works = super().turn()
        if self.judged and not self.turns % CHECKED:
            self.engine.check_integrity()
        return works

    def _begin(self, record: Record, group: Sequence[Record]) -> None:
        step = record.step
        for _ in range(turns_before(step)):
            self.turn()
        if step.do == "complete":
            self._submit(record, group)
        elif step.do == "cancel":
            earlier = [other for other in group[: group.index(record)] if other.ticket is not None]
            wanted = record.step.of or earlier[-1].name
            ticket = next(other.ticket for other in earlier if other.name == wanted)
            if ticket is not None:
                cancelled = next(other for other in earlier if other.ticket == ticket)
                cancelled.left = self.engine.reply(ticket) is None
                self.engine.cancel(ticket)
                self.cancelled.add(ticket)
        elif step.do == "set-lora":
            if not isinstance(self.engine, Adapting):
                raise wrong(record, f"{self.profile.engine} has no adapters", "do")
            try:
                record.ticket = self.engine.set_lora(record.step.options.get("lora", ()))
            except InputError as error:
                raise wrong(record, str(error), "options", "lora") from None
        elif step.do in {"restart", "sleep"}:
            self._begin_anew(record)
        else:
            self._slot_action(record)

    def _submit(self, record: Record, group: Sequence[Record]) -> None:
        try:
            record.prompt = self.vocabulary.prompt(record.step)
            record.images = self.vocabulary.images(record.step)
            if self.reads_state:
                record.parts = self.vocabulary.parts(record.step, record.prompt)
            request = self.request(record)
            if not request.prompt and self._is_one_of_several(record, group):
                # llama-server lets an empty list pass among other prompts
                request = replace(request, options={**(request.options or {}), AS_TEXT: True})
            if self.judged and record.alone and request.cache_prompt:
                plain = not (request.options or request.images or request.messages or request.model)
                record.peeked = self.engine.peek(request.prompt) if plain else None
            record.ticket = self.engine.submit(request)
            if record.step.held is not None:
                record.held = self.leave(record.ticket, record.step.held)
        except InputError as error:
            raise wrong(record, str(error)) from None

    def _is_one_of_several(self, record: Record, group: Sequence[Record]) -> bool:
        """True for one of several prompts of a call, on servers that treat lists as texts."""
        lists, at = any(e.name == AS_TEXT for e in self.family.fields), group.index(record)
        neighbours = (member.step for member in group[at : at + 2])
        return lists and any(e.with_previous and not e.turns for e in neighbours)

    def request(self, record: Record) -> Request:
        step = record.step
        reply = None if step.reply is None else self.vocabulary.tokens(step.reply)
        predict = step.predict
        if predict is None:
            predict = DEFAULT_PREDICT if reply is None else len(reply)
        options, prompt = dict(step.options), record.prompt
        if self.vocabulary.gap is not None and options.get("endpoint") == "infill":
            prompt = self.vocabulary.tokens(step.prompt or "")
            options["input_suffix"] = self.vocabulary.tokens(step.suffix or "")
        return Request(
            prompt=prompt,
            predict=predict,
            reply=reply,
            drafts=None
            if step.drafts is None
            else tuple(self.vocabulary.tokens(draft) for draft in step.drafts),
            slot=step.slot,
            cache_prompt=step.cache_prompt,
            completions=step.completions,
            options=options or None,
            messages=self.vocabulary.messages(step.messages) if self._renders else (),
            images=record.images,
            model=step.model,
        )

    @property
    def _renders(self) -> bool:
        return self.family.renders_chats

    def _begin_anew(self, record: Record) -> None:
        engine, do = self.engine, record.step.do
        try:
            if not isinstance(engine, Restarting):
                raise OptionError(f"{self.profile.engine} has no {do}")
            if do == "restart" and record.step.options:
                if not isinstance(engine, Reopening):
                    msg = f"{self.profile.engine} restarts with its own flags: leave 'options' out"
                    raise OptionError(msg)
                engine.reopen(record.step.options)
            elif do == "restart":
                engine.restart()
            else:
                engine.sleep()
        except InputError as error:
            raise wrong(record, str(error), "do") from None

    def _slot_action(self, record: Record) -> None:
        step, engine = record.step, self.engine
        if not isinstance(engine, SlotActions):
            raise wrong(record, f"{self.profile.engine} has no {step.do}", "do")
        slot, file = max(step.slot, 0), step.file or ""
        named: dict[str, Any] = {"model": step.model} if step.model else {}
        try:
            if step.do == "slot-save":
                record.ticket = engine.slot_save(slot, file, **named)
            elif step.do == "slot-restore":
                record.ticket = engine.slot_restore(slot, file, **named)
            else:
                record.ticket = engine.slot_erase(slot, **named)
        except InputError as error:
            raise wrong(record, str(error), "do") from None

    def _collect(self, records: Sequence[Record]) -> None:
        new = self.new_events()
        snapshot = self.engine.books() if self.reads_state else {}
        self.known = tuple(holders(self.engine)) if self.reads_state else ()
        holds = tuple(tokens for _, tokens in self.known)
        for record in records:
            record.snapshot, record.holds = snapshot, holds
            record.reply = None if record.ticket is None else self.engine.reply(record.ticket)
            if record.reply is not None:
                if self.family.prompt_field in record.step.options:  # the server's own prompt
                    record.prompt, record.parts = record.reply.prompt, ()
                record.slot = record.reply.slot
                record.error = record.error or record.reply.error
                record.message = record.message or record.reply.message
                self.vocabulary.replies[record.name] = record.reply.generated
            elif record.ticket in self.cancelled:  # without a reply: some servers send none
                record.error = record.error or CANCELLED
            several = record.ticket is not None and record.step.completions > 1
            if several and isinstance(self.engine, SeveralReplies):
                record.children = self.engine.replies(there_is(record.ticket))[1:]
        share_events(records, new)


def wrong(record: Record, text: str, *key: str) -> ScenarioError:
    """The error of a step, with its place and name."""
    place, _, reason = str(Problem(("step", record.index, *key), text)).partition(": ")
    named = f" ({record.step.name})" if record.step.name else ""
    return ScenarioError(f"{place}{named}: {reason}")


def turns_before(step: Step) -> int:
    """Turns that a server takes before a step of a group."""
    return int(step.do == "cancel") if step.turns is None else step.turns


def holders(engine: Engine) -> Iterator[tuple[str, Tokens]]:
    """Tokens of every slot and prompt-cache entry, by the names used in accounts."""
    texts = engine.texts()
    yield from ((f"slot {number}", tokens) for number, tokens in texts.slots)
    for index, tokens in enumerate(texts.entries):
        yield f"prompt cache entry {index}", tokens
        yield f"a stored prompt of {len(tokens)} tokens", tokens


class NotStartedError(ScenarioError):
    """The real server exits at start with these flags."""

    def __init__(self, abort: UpstreamAbort) -> None:
        text = f"the real server ends as it starts: {abort.where}: {abort.why}"
        super().__init__(str(Problem(("engine", "options"), text)))
        self.abort = abort


def groups_of(scenario: Scenario) -> list[list[int]]:
    """The numbers of the steps that are sent together."""
    groups: list[list[int]] = []
    for index, step in enumerate(scenario.step):
        if groups and (step.with_previous or step.do == "cancel"):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def share_events(records: Sequence[Record], events: Sequence[Event]) -> None:
    """Assign every event to its step: by its task, else by its slot, else to the first.

    A ticket is the number of a step's first task; the tasks of further completions follow it.
    """
    if len(records) == 1:
        records[0].events = tuple(events)
        return
    ticketed = sorted(
        ((int(record.ticket), record) for record in records if record.ticket is not None),
        key=itemgetter(0),
        reverse=True,
    )
    by_slot = {record.slot: record for record in records if record.slot is not None}
    shares: dict[int, list[Event]] = {id(record): [] for record in records}
    for event in events:
        by_task = next((earlier for ticket, earlier in ticketed if ticket <= event.task), None)
        owner = by_task or by_slot.get(event.slot) or records[0]
        shares[id(owner)].append(event)
    for record in records:
        record.events = tuple(shares[id(record)])


@runtime_checkable
class SlotActions(Protocol):
    """A server that saves, restores and erases slots; each action is queued like a request."""

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Save a slot to the store."""
        ...

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Restore a slot from the store."""
        ...

    def slot_erase(self, slot: int) -> Ticket:
        """Erase a slot."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A server whose adapters can be replaced at run time."""

    def set_lora(self, given: object) -> Ticket:
        """Replace the adapters."""
        ...


@runtime_checkable
class Restarting(Protocol):
    """A server that loses its memory, but for slot files, at a restart or when it sleeps."""

    def restart(self) -> None:
        """Restart with the same flags."""
        ...

    def sleep(self) -> None:
        """Free all memory until the next request."""
        ...


@runtime_checkable
class Reopening(Protocol):
    """A server that can be made anew with other flags."""

    def reopen(self, options: Mapping[str, Any]) -> None:
        """Restart with these flags in place of the former ones."""
        ...


@runtime_checkable
class ChatRendering(Protocol):
    """A server whose HTTP side renders chats beyond the template."""

    def render_chat(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[Tokens, Sequence[tuple[str, int]]]:
        """The prompt of a chat with these options; role and first token of every message."""
        ...


@runtime_checkable
class InfillRendering(Protocol):
    """A server that renders infill prompts from prefix and suffix."""

    def render_infill(self, prefix: Tokens, suffix: Tokens) -> tuple[Tokens, int]:
        """The prompt, and the index of the suffix's mark."""
        ...


@runtime_checkable
class SeveralReplies(Protocol):
    """A server that returns several completions of one prompt."""

    def replies(self, ticket: Ticket) -> tuple[Reply, ...]:
        """All completions; that of the slot which processed the prompt first."""
        ...
