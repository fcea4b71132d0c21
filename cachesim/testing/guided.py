"""A search whose requests are drawn while the server runs, from what it has done so far.

`search.workloads` draws a workload as a whole. Here each request follows the replies and events of
those before it:

    lengths   of prompts and of kept beginnings: a number that the server tested or reported
              (matched, reused, kept, lost, evicted tokens; its flags), or one beside it
    turns     any earlier conversation, the latest more often
    length    requests go on while the server does what it has not done before, up to MOST
    flags     corners in turn; a third of the workloads have one to three further flags, each
              flag of the release in turn, with a small value or one near another flag's

A workload depends on its seed and number alone, so that several processes find what one does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Corner, Profile, family_of
from cachesim.engines.option import Option
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.play.session import Record, Session, SlotActions
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.workloads import (
    DEFAULT,
    Chats,
    Seeded,
    Shape,
    Tree,
    batched,
    compatible,
    corners,
    drafted,
    draw_flags,
    inside,
    is_thin,
    longer,
    placed,
    trips,
)

Judge: TypeAlias = Callable[[Scenario, Session, list[Record]], bool]
"""Look at the records of requests sent together; True ends the workload."""

MOST: Final = 14
"""Most requests to one server."""

IDLE: Final = (2, 4)
"""Requests to a server after which nothing new ends the workload: fewest, most."""

NEAR: Final = (-1, 0, 0, 1)
"""Distances from a number."""

REMEMBERED: Final = 16
"""Numbers from which the next one is taken: the latest."""

LONGER: Final = 16
"""Most tokens by which a reply is longer."""

LARGE: Final = 6
"""Workloads of usual size for each one with long prompts."""

LONGEST: Final = 4300
"""Most new tokens of a long prompt."""

WINDOWS: Final = (2, 4, 8, 16)
"""Sizes of small windows."""

SMALL: Final = (1, 2, 3, 4, 5, 8, 16, 32, 64)
"""Values tried of any whole number."""


class Numbers:
    """Numbers of tokens that a server tested or reported, the latest last."""

    def __init__(self, highest: int) -> None:
        self._highest = highest
        self._found: dict[int, None] = {}

    def add(self, value: object) -> None:
        """Add a number, or the last ones of several; ignore anything else."""
        if isinstance(value, tuple):
            for each in value[-2:]:
                self.add(each)
        elif isinstance(value, int) and 1 < value <= self._highest:
            self._found.pop(value, None)
            self._found[int(value)] = None

    def latest(self) -> list[int]:
        """The latest ones."""
        return list(self._found)[-REMEMBERED:]

    def learn(self, record: Record) -> Iterator[object]:
        """Add the numbers of a step; yield its events and losses."""
        last: object = None
        for event in record.events:
            kind = type(event)
            for name in kind.own_fields():
                self.add(getattr(event, name))
            yield last, kind
            last = kind
        reply = record.reply
        if reply is not None:
            self.add(reply.cached)
            self.add(reply.equal)
            for loss in reply.losses:
                for value in (loss.before, loss.after, *loss.detail.values()):
                    self.add(value)
                yield loss.cause.id, (loss.before - loss.after).bit_length()


class GuidedTree(Tree):
    """Conversations whose lengths are near the server's numbers."""

    numbers: Numbers

    def _turn(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self._draws.integer(0, 3):
            return super()._turn()
        return self._draws.one_of(self._turns)

    def _cut(self, length: int) -> int:
        near = [each for each in self.numbers.latest() if each <= length]
        if length > 1 and near and self._draws.integer(0, 2):
            return min(length, self._near(near))
        return super()._cut(length)

    def _new(self, kept: int = 0) -> tuple[int, ...]:
        longer = [each for each in self.numbers.latest() if kept < each <= self._shape.longest]
        if longer and not self._draws.integer(0, 3):
            return self._words(max(1, self._near(longer) - kept))
        return super()._new(kept)

    def longer(self, step: Step, room: int) -> Step:
        """The request with a longer reply, up to the end of a small context or to a number."""
        if room and not self._draws.integer(0, 1):
            return longer(self._draws, step, room)
        so_far = len(step.ids) + len(step.reply or ())
        near = [n for n in self.numbers.latest() if so_far < n <= so_far + LONGER]
        more = self._near(near) - so_far if near else self._draws.integer(1, LONGER)
        return replace(step, reply=(*(step.reply or ()), *self._words(max(0, more))))

    def _near(self, numbers: Sequence[int]) -> int:
        return max(1, self._draws.one_of(numbers) + self._draws.one_of(NEAR))

    def _reply_length(self) -> int:
        most = self._shape.replies
        if most > 8 and self._draws.integer(0, 2):
            most = 4
        return self._draws.one_of((1, 1, 2, self._draws.integer(1, most)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guided:
    """The workloads of a seed."""

    profile: Profile
    model: str
    seed: int = 0
    shape: Shape = DEFAULT
    arithmetic: ArithmeticName = "ring"
    reads_state: bool = False

    def play(self, number: int, judge: Judge) -> Scenario:
        """Play a workload until it is judged to end, or is done; return what was played.

        Raises ContractError for a broken invariant.
        """
        draws = Seeded(f"guided {self.profile.engine} {self.model} {self.seed} {number}")
        corner, options = self._flags(draws, number)
        shape = inside(self.shape, corner)
        if not draws.integer(0, LARGE):
            shape = replace(shape, longest=LONGEST)
        if "window" in preset(self.model).layers and not (shape.window or draws.integer(0, 3)):
            shape = replace(shape, window=draws.one_of(WINDOWS))
        scenario = self._scenario(number, options, shape)
        thin = is_thin(number, scenario, self.profile)
        session = Session(
            scenario,
            self.profile,
            arithmetic=self.arithmetic,
            reads_state=self.reads_state,
            thin=thin,
        )
        client = _Client(draws, session, shape, corner)
        steps: list[Step] = []
        for group in client.groups():
            steps += group
            scenario = replace(scenario, step=tuple(steps))
            records = session.send(group)
            client.learn(records)
            if judge(scenario, session, records) or session.ended:
                break
        if not session.ended:
            session.engine.check_integrity()
        return scenario

    def _scenario(self, number: int, options: dict[str, Any], shape: Shape) -> Scenario:
        release = str(self.profile).partition("@")[2]
        return Scenario(
            format=FORMAT,
            name=f"{self.model}-guided-{self.seed}-{number}",
            about=f"Drawn for {self.profile} on {self.model}.",
            model=Model(preset=self.model, window=shape.window or None),
            engine=Server(name=self.profile.engine, profiles=(release,), options=options),
            step=(),
        )

    def _flags(self, draws: Seeded, number: int) -> tuple[Corner, dict[str, Any]]:
        """A corner in turn, and in a third of the workloads up to three further flags."""
        known = (Corner(), *corners(self.profile, self.model))
        corner = known[(number + self.seed) % len(known)]
        options = draw_flags(draws, self.profile, self.model, self.shape.fixed, corner)
        options |= self.shape.fixed
        if not draws.integer(0, 2):
            further = _further(self.profile)
            order = Seeded(f"{self.seed} {number // len(further)}").shuffled(further)
            for flag in (order * 2)[number % len(order) :][: draws.one_of((1, 1, 2, 3))]:
                options = self._with(draws, options, flag)
        return corner, options

    def _with(self, draws: Seeded, options: dict[str, Any], flag: Option) -> dict[str, Any]:
        """The options with a flag, and with the one that it needs, where a server accepts them."""
        more = dict(options)
        while flag.name not in more:
            values = [each for each in _values(flag, options) if each != flag.default]
            if not values:
                break
            more[flag.name] = draws.one_of(values)
            if not flag.needs:
                break
            flag = family_of(self.profile.engine).option(flag.needs)
        return more if compatible(self.profile, self.model, tuple(more.items())) else options


@cache
def _further(profile: Profile) -> tuple[Option, ...]:
    """The flags of a release, but for sizes in bytes."""
    family = family_of(profile.engine)
    return tuple(
        each for each in family.table() if family.has(each, profile) and each.kind != "size"
    )


def _values(flag: Option, options: dict[str, Any]) -> list[Any]:
    """Values of a flag; of a whole number small ones and those near other flags' values."""
    if flag.kind == "yes or no":
        return [True, False]
    if flag.kind == "choice":
        return list(flag.choices)
    if flag.kind != "whole number":
        return ["A", "dense"]  # the name of an adapter, of a draft model
    others = [v for v in options.values() if type(v) is int]
    near = [value + more for value in others for more in (-1, 0, 1)]
    low, high = flag.low or 0, flag.high or 1 << 20
    return [each for each in (*SMALL, *near) if low <= each <= high]


class _Client:
    """The client of one server."""

    def __init__(self, draws: Seeded, session: Session, shape: Shape, corner: Corner) -> None:
        family, options = session.family, session.scenario.engine.options
        self._draws, self._session, self._family = draws, session, family
        self._options = options
        self._slots = max(1, int(options.get("parallel", 1)))
        drafter = family.draft_flag or next(iter(family.drafting), "")
        self._drafts = options.get(drafter, "none") != "none"
        if self._drafts:
            shape = replace(shape, replies=2 * shape.replies)
        self._shape = shape
        crowd = shape.incidents and not family.has_slots and draws.integer(0, 2) == 2
        self._crowd = crowd or corner.crowd
        self._arrivals = shape.incidents and "arrival" in (shape.kinds or family.incidents)
        speaks = shape.chats and family.renders_chats and bool(draws.integer(0, 1))
        chats = Chats(draws, strangers=self._crowd) if speaks else None
        self._tree = GuidedTree(draws, shape, family, chats=chats)
        self._tree.numbers = Numbers(2 * shape.longest)
        defaults = (each.default for each in _further(session.profile))
        for value in (*defaults, session.network.spec.window, *options.values()):
            self._tree.numbers.add(value)
        self._room = int(options.get("ctx_size", 0)) // self._slots
        self._acts = tuple(shape.kinds or family.incidents) if shape.incidents else ()
        if shape.incidents and isinstance(session.engine, SlotActions):
            self._acts += ("erase",)
        self._saved = False
        self._known: set[object] = set()
        self._idle = 0
        self._index = 0

    def groups(self) -> Iterator[list[Step]]:
        """Requests that are sent together, until the server does nothing new."""
        draws, patience = self._draws, self._draws.integer(*IDLE)
        while self._index < MOST and self._idle < patience:
            act = ""
            if self._acts and draws.integer(0, 4) == 4:
                act = draws.one_of(("long reply", *self._acts))
            name, slot = f"{self._index}", draws.integer(0, self._slots - 1)
            if act == "erase" and draws.integer(0, 1):
                yield [Step(name=f"e{name}", do="slot-erase", slot=slot)]
            elif act == "slot file":
                self._saved = True
                yield [Step(name=f"s{name}", do="slot-save", slot=slot, file="slot")]
            elif self._saved and draws.integer(0, 2) == 2:
                self._saved = bool(draws.integer(0, 1))
                yield [Step(name=f"l{name}", do="slot-restore", slot=slot, file="slot")]
            yield from _sent(self._acted(self._together(), act))

    def _acted(self, group: list[Step], act: str) -> list[Step]:
        """Requests with an incident."""
        draws, first, rest = self._draws, group[0], group[1:]
        if act == "long reply" and isinstance(first.reply, tuple):
            return [self._tree.longer(first, self._room), *rest]
        if act == "cancel":
            gone = Step(
                name=f"g{self._index}", do="cancel", of=first.name, turns=draws.integer(1, 4)
            )
            return [*group, gone]
        if act == "trips" and first.prompt and not rest:
            return [first, *trips(draws, first)]
        if act == "completions" and self._slots > 1 and first.drafts is None:
            return [replace(first, completions=2), *rest]
        return group

    def learn(self, records: Iterable[Record]) -> None:
        """Add the numbers of events and replies; count requests that brought nothing new."""
        before = len(self._known)
        for record in records:
            self._known.update(self._tree.numbers.learn(record))
        if any(record.step.do == "complete" for record in records):
            self._idle = 0 if len(self._known) > before else self._idle + 1

    def _together(self) -> list[Step]:
        """One request, or several that arrive while it is served."""
        draws, family, shape = self._draws, self._family, self._shape
        group = [self._next()]
        several = shape.together and (not family.has_slots or self._slots > 1 or shape.incidents)
        while several and draws.integer(0, 4) >= (1 if self._crowd else 4):
            turns = None
            if family.interrupts:
                turns = draws.integer(0, 3)
            elif self._arrivals and draws.integer(0, 1):
                turns = draws.integer(1, 6)
            group.append(replace(self._next(), with_previous=True, turns=turns))
            if self._index >= MOST:
                break
        if family.interrupts and draws.integer(0, 7) == 7:
            group.append(Step(name=f"c{self._index}", do="cancel", turns=draws.integer(1, 3)))
        return group

    def _next(self) -> Step:
        draws, family = self._draws, self._family
        step = self._tree.next_step(self._index)
        self._index += 1
        if self._drafts and draws.integer(0, 1):
            step = drafted(draws, step)
        if self._options.get(family.adapter_flag) and draws.integer(0, 2) == 2:
            step = replace(step, options={family.adapter_flag: ({"id": 0, "scale": 0.0},)})
        if self._slots > 1 or (family.has_slots and self._shape.incidents):
            return placed(draws, step, self._slots, first=True)
        if not family.has_slots:
            return batched(draws, step, family, first=True, crowd=False, arrivals=False)
        return step


def _sent(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps, those together that are sent together."""
    group: list[Step] = []
    for step in steps:
        if group and not (step.with_previous or step.do == "cancel"):
            yield group
            group = []
        group.append(step)
    if group:
        yield group
