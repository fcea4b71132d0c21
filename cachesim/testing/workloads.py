"""Random workloads: conversation trees, written as scenarios.

Each prompt derives from earlier ones: extended by the reply and new tokens, repeated, cut, edited
in the middle, branched off an older turn, or unrelated. Cuts favour the positions of checkpoints:
the end, the last tokens, the last tokens of a ubatch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from hypothesis import strategies as st

from cachesim.engines import Engine
from cachesim.engines.chat import ByteTokenizer
from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.search import Corner, Search
from cachesim.errors import InputError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import FORMAT, LAYER_KINDS, Model, Scenario, Server, Step, Turn
from cachesim.units import Token, Tokens, as_tokens

T = TypeVar("T")


class Draws(Protocol):
    """A source of random choices."""

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        ...

    def one_of(self, choices: Sequence[T]) -> T:
        """A choice among several."""
        ...

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers from `low` to `high`."""
        ...


class Seeded:
    """Choices from a seed, reproducible."""

    def __init__(self, seed: object) -> None:
        self._chance = Random(str(seed))

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return self._chance.randint(low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        """A choice among several."""
        return self._chance.choice(choices)

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        """All of several, in a random order."""
        return self._chance.sample(choices, len(choices))

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers."""
        return tuple(self._chance.choices(range(low, high + 1), k=count))


class Drawn:
    """Choices of Hypothesis, which shrink."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        number: int = self._draw(st.integers(low, high))
        return number

    def one_of(self, choices: Sequence[T]) -> T:
        """A choice among several."""
        chosen: T = self._draw(st.sampled_from(choices))
        return chosen

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers from two draws, a start and a step, as long lists shrink badly."""
        start, step = self.integer(low, high), self.integer(0, 1)
        return tuple(low + (start - low + step * i) % (high - low + 1) for i in range(count))


@cache
def flags_of(profile: Profile) -> Mapping[str, tuple[Any, ...]]:
    """The flags and values that a profile accepts, found by trial."""
    flags = {}
    for option in family_of(profile.engine).table():
        kept = tuple(v for v in option.tried if _accepts(profile, "dense", {option.name: v}))
        if kept:
            flags[option.name] = kept
    return flags


def try_flags(profile: Profile, model: str, options: Mapping[str, Any]) -> None:
    """Start a server with these flags, or return the reason for its refusal."""
    family_of(profile.engine).refuse_internal(profile, options)
    Engine.create(profile, model=build(preset(model), "ring"), options=options)


def _accepts(profile: Profile, model: str, options: Mapping[str, Any]) -> bool:
    try:
        try_flags(profile, model, options)
    except (InputError, UpstreamAbort):  # refused, or the real server ends as it starts
        return False
    return True


@cache
def drafting(profile: Profile, model: str) -> Mapping[str, Any]:
    """The flags of speculative decoding; empty without an MTP head or a release that drafts."""
    flags = search_of(family_of(profile.engine)).drafting if preset(model).mtp_depth else {}
    return flags if _accepts(profile, model, flags) else {}


@cache
def corners(profile: Profile, model: str, *, guided: bool = False) -> tuple[Corner, ...]:
    """The corner cases of an engine that apply to this release and model."""
    layers, search = frozenset(preset(model).layers), search_of(family_of(profile.engine))
    more = (*search.late_corners, *search.guided_corners) if guided else ()
    return tuple(
        corner
        for corner in (*search.corners, *more)
        if (not corner.layers or corner.layers & layers) and _accepts(profile, model, corner.flags)
    )


def draw_corner(draws: Draws, profile: Profile, model: str) -> Corner:
    """Draw a corner case of the engine, or as often none; without any, nothing is drawn."""
    known = corners(profile, model)
    return draws.one_of(known) if known and draws.integer(0, 1) else Corner()


def draw_flags(
    draws: Draws,
    profile: Profile,
    model: str,
    given: Mapping[str, Any],
    corner: Corner | None = None,
) -> dict[str, Any]:
    """Draw compatible flags with values other than the default; often none.

    They go with those that are given, too, and with those of the corner, which are among them.
    """
    chosen: dict[str, Any] = {}
    if preset(model).mtp_depth and draws.integer(0, 1):
        chosen |= drafting(profile, model)
    if corner is not None:
        both = chosen | dict(corner.flags)
        if compatible(profile, model, tuple((both | dict(given)).items())):
            chosen = both
    fixed = frozenset(chosen)
    if draws.integer(0, 3) == 0:
        return chosen
    for name, values in flags_of(profile).items():
        value = draws.one_of(values) if draws.integer(0, 2) == 2 else values[0]
        if value == values[0] or name in fixed:
            continue
        if compatible(profile, model, tuple((chosen | {name: value} | dict(given)).items())):
            chosen[name] = value
    return chosen


@cache
def compatible(profile: Profile, model: str, options: tuple[tuple[str, Any], ...]) -> bool:
    """True if a server of this model starts with these options."""
    return _accepts(profile, model, dict(options))


WHOLE: Final = 16
"""Interval of workloads that are run on all layers; a mix-up of layers shows only there."""

BYTES: Final = ("bytes", "MiB")
"""Units of flags that limit memory in bytes."""

UNLIMITED: Final = (None, 0, -1)
"""Values of such a flag under which bytes decide nothing: absent, nothing kept, no limit."""


def is_thin(number: int, scenario: Scenario, profile: Profile) -> bool:
    """True for a workload of a preset that is run on one layer of each kind."""
    folds = scenario.model.layers is None
    return bool(number % WHOLE) and folds and not weighs(scenario, profile)


def weighs(scenario: Scenario, profile: Profile) -> bool:
    """True if a flag limits memory in bytes, so that the number of layers matters."""
    given = scenario.engine.options
    return any(given.get(name) not in UNLIMITED for name in _limits(profile.engine))


@cache
def _limits(engine: str) -> tuple[str, ...]:
    table = family_of(engine).table()
    return tuple(option.name for option in table if option.kind == "size" or option.unit in BYTES)


Chat: TypeAlias = tuple[Turn, ...]


CHAT_MOVES: Final = ("extend", "extend", "new", "edit", "again", "cut", "rewrite", "continue")
"""Moves from an earlier chat to the next request; a move in two places is drawn twice as often."""


class Chats:
    """The chats so far, and their continuations.

    extend     [ system | user | assistant ] user         the reply is sent back unchanged
    edit       [ system | user | assistant ] another      the last user message is replaced
    cut        [ system | user ]                          an earlier turn is sent again
    rewrite    [ system | user | its end ] user           only the end of the reply is sent back
    continue   [ system | user | its start )              the server continues a reply
    """

    def __init__(self, draws: Draws, *, strangers: bool) -> None:
        self._draws = draws
        self._strangers = strangers  # most requests open a new conversation
        self._turns: list[tuple[Chat, tuple[int, ...]]] = []  # chat and reply, oldest first
        self._begun: tuple[int, ...] = ()  # start of a reply that the server should continue

    def next(self, new: Callable[[], tuple[int, ...]]) -> Chat:
        """The next chat; `new` returns an unused text."""
        draws = self._draws
        if not self._turns or (self._strangers and draws.integer(0, 2)):
            return self._opened(new)
        chat, reply = self._turns[-1 - draws.integer(0, min(3, len(self._turns) - 1))]
        way = draws.one_of(CHAT_MOVES)
        if way == "new":
            return self._opened(new)
        if way == "edit":
            return (*chat[:-1], turn_of("user", new()))
        if way == "again":
            return chat
        if way == "cut":
            questions = [number for number, turn in enumerate(chat) if turn.role == "user"]
            return chat[: draws.one_of(questions) + 1]
        if way == "continue":
            self._begun = reply[: len(reply) // 2]
            return (*chat, turn_of("assistant", self._begun))
        answer = reply[len(reply) // 2 :] if way == "rewrite" else reply
        return (*chat, turn_of("assistant", answer), turn_of("user", new()))

    def learn(self, chat: Chat, reply: tuple[int, ...]) -> None:
        """Add a reply, or the rest of one."""
        if chat[-1].role == "assistant":
            chat, reply = chat[:-1], self._begun + reply
        self._turns.append((chat, reply))

    def _opened(self, new: Callable[[], tuple[int, ...]]) -> Chat:
        """A first question; half of the messages are a word or two."""
        draws = self._draws

        def spoken() -> tuple[int, ...]:
            return new()[: draws.integer(1, 6)] if draws.integer(0, 1) else new()

        system = (turn_of("system", spoken()),) if draws.integer(0, 1) else ()
        return (*system, turn_of("user", spoken()))


def turn_of(role: str, tokens: Sequence[int]) -> Turn:
    """A message of these tokens."""
    return Turn(role=role, content=ByteTokenizer().decode(as_tokens(list(tokens))))


def words_of(turn: Turn) -> tuple[int, ...]:
    """The tokens of a message."""
    return tuple(map(int, ByteTokenizer().encode(turn.content)))


FIRST_WORD: Final = 265
LAST_WORD: Final = 511
NEAR_THE_END: Final = (1, 2, 4, 5, 6, 8, 12)
SHORT, MIDDLE, LONG = (1, 8), (9, 60), (61, 200)
MOST_RIGHT: Final = 2
"""Most leading drafts that match the reply."""
MOST_TRIPS: Final = 3
"""Most times that a conversation is saved and restored."""
MOST_MORE: Final = 60
"""Number of tokens of a long reply."""
EDGES: Final = (1, 4, 5, 6, 32, 64)
"""Lengths at which servers branch: the rest before the end, an ubatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of workloads, and the common flags of their servers."""

    min_steps: int = 2
    max_steps: int = 6
    longest: int = 200
    flags: bool = True
    together: bool = True
    replies: int = 4
    long_replies: bool = False  # replies of a guided workload have half of that at least
    incidents: bool = False  # cancels, slot files, completions, arrivals, long replies too
    kinds: tuple[str, ...] = ()  # of incidents; the engine's own where none is named
    cancels: bool = False  # without other actions: some requests are cancelled
    window: int = 0  # of layers that have one; 0: the preset's own
    chats: bool = False  # some workloads are chats, where the server renders them
    edges: tuple[int, ...] = EDGES  # lengths of many prompts
    page: int = 0  # tokens of a page at whose ends many prompts part; 0: none is known
    alike: bool = False  # requests sent together are equal, as those of one call are
    fixed: Mapping[str, Any] = field(default_factory=dict)  # flags of every server
    guided: bool = False  # searches draw each request from what the server has done
    around: tuple[Scenario, ...] = ()  # guided workloads begin as one of these, on its server


DEFAULT: Final = Shape()


def draw_workload(
    draws: Draws, profile: Profile, model: str, shape: Shape = DEFAULT, name: str = "workload"
) -> Scenario:
    """A scenario with explicit prompts and replies, for one profile and one preset."""
    family, options, corner = family_of(profile.engine), dict[str, Any](), Corner()
    search = search_of(family)
    if shape.flags:
        corner = draw_corner(draws, profile, model)
        options = draw_flags(draws, profile, model, shape.fixed, corner)
        shape = inside(shape, corner)
    options |= shape.fixed
    client = Client(draws, profile, model, shape, options, crowd=corner.crowd)
    steps = []
    for index in range(draws.integer(shape.min_steps, shape.max_steps)):
        steps.append(client.request(index, alone=index == 0 or not shape.together))
        steps += client.interrupt(index)
    if shape.incidents and draws.integer(0, 1):
        steps = client.with_incident(steps, draws.one_of(("long reply", *client.incidents)))
    elif shape.cancels and "cancel" in search.incidents and draws.integer(0, 3) == 3:
        steps = client.with_incident(steps, "cancel")
    if shape.alike:
        steps = with_alike(steps)
    if shape.flags and search.late_corners and draws.integer(0, 7) == 7:
        late = draws.one_of(search.late_corners)
        whole = options | dict(late.flags) | dict(shape.fixed)
        if compatible(profile, model, tuple(whole.items())):
            options = whole
            steps = [with_fields(draws, step, late) for step in steps]
    drawn = scenario_of(profile, model, shape, options, name=name, steps=steps)
    draws_them = shape.incidents and search.draws_models
    serves = draws_them and family.serves_models(family.rules(profile))
    return with_models(draws, drawn) if serves and draws.integer(0, 7) == 7 else drawn


FURTHER: Final = ("dense", "swa", "hybrid-delta")


def with_models(draws: Draws, scenario: Scenario) -> Scenario:
    """A workload whose requests ask for one of two models."""
    if spec_of(scenario.model).recall:
        return scenario
    further = {"second": Model(preset=draws.one_of(FURTHER), seed=1)}
    steps = tuple(asked(draws, step) for step in scenario.step)
    return replace(scenario, models=further, step=steps)


def asked(draws: Draws, step: Step) -> Step:
    """A request, half of them of the second model."""
    second = step.do == "complete" and draws.integer(0, 1)
    return replace(step, model="second") if second else step


def scenario_of(
    profile: Profile,
    model: str,
    shape: Shape,
    options: Mapping[str, Any],
    *,
    name: str,
    steps: Sequence[Step] = (),
) -> Scenario:
    """The scenario of drawn steps."""
    release = str(profile).partition("@")[2]
    window = shape.window if "window" in preset(model).layers else 0
    return Scenario(
        format=FORMAT,
        name=name,
        about=f"Drawn for {profile} on {model}.",
        model=Model(preset=model, window=window or None),
        engine=Server(name=profile.engine, profiles=(release,), options=options),
        step=tuple(steps),
    )


def with_fields(draws: Draws, step: Step, corner: Corner) -> Step:
    """A step, a third of them with the request fields of a corner, or with one of several."""
    if not corner.fields or draws.integer(0, 2) or step.do != "complete":
        return step
    fields = {
        name: draws.one_of(value) if isinstance(value, tuple) else value
        for name, value in corner.fields.items()
    }
    return replace(step, options={**step.options, **fields})


def inside(shape: Shape, corner: Corner) -> Shape:
    """The shape with the sizes of a corner."""
    return replace(
        shape,
        window=shape.window or corner.window,
        replies=max(shape.replies, corner.replies),
        long_replies=corner.long_replies,
        max_steps=max(shape.max_steps, corner.steps) if shape.max_steps > 1 else 1,
        edges=shape.edges + corner.edges,
    )


def with_alike(steps: Sequence[Step]) -> list[Step]:
    """Steps of which those sent together differ in their prompts alone."""
    alike_steps: list[Step] = []
    for step in steps:
        if step.with_previous and not step.turns and alike_steps:
            first = alike_steps[-1]
            alike = ("slot", "cache_prompt", "reply", "predict", "options", "suffix")
            same = {field: getattr(first, field) for field in alike}
            alike_steps.append(replace(step, **same))
        else:
            alike_steps.append(step)
    return alike_steps


class Client:
    """The requests to one server, and what happens to them."""

    def __init__(
        self,
        draws: Draws,
        profile: Profile,
        model: str,
        shape: Shape,
        options: Mapping[str, Any],
        *,
        crowd: bool,
        drafter: str = "",
        tree: "type[Tree] | None" = None,
    ) -> None:
        """In a `crowd` most requests come together: more than one batch takes.

        Requests have drafts where the flag `drafter`, or the family's own one, is set.
        """
        family, recalls = family_of(profile.engine), preset(model).recall
        self._draws, self._family, self._options = draws, family, options
        self._search = search = search_of(family)
        self._slots = max(1, options.get("parallel", 1))
        self._room = options.get("ctx_size", 0) // self._slots
        self._places = self._slots > 1 or (family.has_slots and shape.incidents)
        drafter = drafter or search.draft_flag
        self._drafts = options.get(drafter, "none") != "none" and not recalls
        if self._drafts:
            shape = replace(shape, replies=2 * shape.replies)
        speaks = shape.chats and not recalls and family.renders_chats and draws.integer(0, 1)
        crowded = shape.incidents and not family.has_slots and draws.integer(0, 2) == 2
        self._crowd = crowded or crowd
        self.incidents = shape.kinds or search.incidents
        self._arrivals = shape.incidents and "arrival" in self.incidents
        chats = Chats(draws, strangers=self._crowd) if speaks else None
        self._tree = (tree or Tree)(draws, shape, search, chats=chats)

    def request(self, index: int, *, alone: bool) -> Step:
        """The next request; not `alone` it may come beside the one before.

        It may name a slot, or have fields that take another code path.
        """
        draws, search, changes = self._draws, self._search, dict[str, Any]()
        step = self._tree.next_step(index)
        if self._drafts and draws.integer(0, 1):
            step = drafted(draws, step)
        if self._options.get(search.adapter_flag) and draws.integer(0, 2) == 2:
            changes["options"] = {search.adapter_flag: ({"id": 0, "scale": 0.0},)}
        if self._places:
            if draws.integer(0, 7) == 7:
                changes["slot"] = draws.integer(0, self._slots - 1)
            changes |= {} if alone else self.beside(crowd=False, arrivals=False)
        elif not self._family.has_slots:
            changes |= {} if alone else self.beside(crowd=self._crowd, arrivals=self._arrivals)
            if search.asks and draws.integer(0, 4) == 4:
                changes["options"] = dict(search.asks)
        return replace(step, **changes)

    def beside(self, *, crowd: bool, arrivals: bool) -> dict[str, Any]:
        """Fields of a request that comes with the one before, or while that is served; or none."""
        draws = self._draws
        if draws.integer(0, 4) < (1 if crowd else 4):
            return {}
        if self._search.interrupts:
            return {"with_previous": True, "turns": draws.integer(0, 3)}
        if arrivals and draws.integer(0, 1):
            return {"with_previous": True, "turns": draws.integer(1, 6)}
        return {"with_previous": True}

    def interrupt(self, index: int) -> list[Step]:
        """A cancel of any request that is served; often none."""
        if self._search.interrupts and self._draws.integer(0, 7) == 7:
            return [Step(name=f"c{index}", do="cancel", turns=self._draws.integer(1, 3))]
        return []

    def with_incident(self, steps: Sequence[Step], kind: str) -> list[Step]:
        """The steps with an incident: a save, a restart, a cancel or the like."""
        draws, slots = self._draws, self._slots
        at = draws.integer(0, len(steps) - 1)
        step, before, after = steps[at], list(steps[:at]), list(steps[at + 1 :])
        if step.do != "complete" or not isinstance(step.reply, tuple):
            return list(steps)
        here = self.having(step, kind, "gone")
        if kind == "slot file":
            slot = draws.integer(0, slots - 1)
            here += [Step(name="save", do="slot-save", slot=slot, file="slot")]
            later = draws.integer(0, len(after))
            after.insert(later, Step(name="restore", do="slot-restore", slot=slot, file="slot"))
        elif kind == "arrival" and before and before[-1].do == "complete":
            slot = step.slot
            if self._family.has_slots:
                slot = draws.one_of((step.slot, 0, slots - 1))
            here = [replace(step, with_previous=True, turns=draws.integer(1, 6), slot=slot)]
        return [*before, *here, *after]

    def having(self, step: Step, kind: str, gone: str) -> list[Step]:
        """The request with an incident of its own; `gone` names a cancel."""
        draws = self._draws
        if kind == "long reply":
            return [self._tree.longer(step, self._room)]
        if kind == "cancel":
            return [step, Step(name=gone, do="cancel", of=step.name, turns=draws.integer(1, 4))]
        if kind == "trips" and step.prompt:
            return [step, *trips(draws, step)]
        alone = not step.with_previous or step.turns  # not of an array of prompts
        if kind == "completions" and self._slots > 1 and alone and step.drafts is None:
            return [replace(step, completions=2)]
        return [step]


def trips(draws: Draws, step: Step) -> Iterator[Step]:
    """Two conversations in turn: each is saved while the other is served, and returns shorter.

    A . B . A[:-3] . B . A . B ...
    """
    prompt = step.prompt if isinstance(step.prompt, tuple) else ()
    other = draws.tokens(draws.integer(*MIDDLE), FIRST_WORD, LAST_WORD)
    for number in range(draws.integer(1, MOST_TRIPS)):
        shorter = draws.one_of((0, 0, *NEAR_THE_END))
        again = prompt[: max(1, len(prompt) - shorter)]
        yield replace(step, name=f"{step.name}b{number}", prompt=other, with_previous=False)
        yield replace(step, name=f"{step.name}a{number}", prompt=again, with_previous=False)


def drafted(draws: Draws, step: Step) -> Step:
    """A step with drafts that are right up to some token; without any it is a plain one."""
    reply = step.reply if isinstance(step.reply, tuple) else ()
    done, drafts = 1, []
    while done < len(reply):
        right = reply[done : done + draws.integer(0, MOST_RIGHT)]
        drafts.append(right + draws.tokens(draws.integer(0, 1), FIRST_WORD, LAST_WORD))
        done += len(right) + 1
    return replace(step, drafts=tuple(drafts) or None)


class Tree:
    """The turns so far, and their continuations."""

    def __init__(
        self, draws: Draws, shape: Shape, search: Search[Any, Any], *, chats: Chats | None
    ) -> None:
        self._draws = draws
        self._shape = shape
        self._search = search
        self.chats = chats  # in place of prompts
        self._turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Prompts, each without and with its reply, as far as a cache may hold that."""

    def next_step(self, index: int) -> Step:
        """The next request."""
        chat = () if self.chats is None else self.chats.next(self._new)
        prompt = self._prompt() if self.chats is None else None
        reply = self._words(self._reply_length())
        if prompt is not None:
            self.learn(prompt, reply)
        if self.chats is not None:
            self.chats.learn(chat, reply)
        cache_prompt = not self._search.may_decline or self._draws.integer(0, 24) != 24
        return Step(
            name=f"r{index}", prompt=prompt, messages=chat, reply=reply, cache_prompt=cache_prompt
        )

    def learn(self, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        """Add a turn."""
        held = reply if self._search.keeps_replies else reply[:-1]
        self._turns.append((prompt, prompt + held))

    def longer(self, step: Step, room: int) -> Step:
        """The request with a longer reply; in a small context it ends at its end, give or take one.

        `room` are the tokens of a slot.
        """
        draws = self._draws
        more = self._words(draws.integer(10, MOST_MORE))
        reply = (step.reply if isinstance(step.reply, tuple) else ()) + more
        missing = room + draws.integer(-1, 1) - len(step.ids) - len(reply) if room else 0
        if missing > 0 and step.ids:  # a longer prompt costs less time than a longer reply
            step = replace(step, prompt=step.ids + self._words(missing))
        return replace(step, reply=reply)

    def _prompt(self) -> tuple[int, ...]:
        draws = self._draws
        if not self._turns:
            return self._new()
        turn = self._turn()
        base = draws.one_of(turn)
        way = draws.one_of(("extend", "new", "new", "edit", "edit", "again", "cut", "drop"))
        if way == "new":
            return self._new()
        if way == "extend":
            return (turn[1] + self._new(len(turn[1])))[: 2 * self._shape.longest]
        kept = base[: self.cut(len(base))]
        if way == "cut" and kept:
            return kept
        if way == "drop" and kept:  # a part in the middle is missing: the case of chunk reuse
            return kept + base[len(kept) + draws.integer(1, 20) :] + self._words(1)
        return kept + self._new(len(kept)) if way == "edit" else base

    def _turn(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """An earlier prompt, without and with its reply."""
        return self._turns[-1 - self._draws.integer(0, min(3, len(self._turns) - 1))]

    def _reply_length(self) -> int:
        return self._draws.integer(1, self._shape.replies)

    def cut(self, length: int) -> int:
        """A shorter length."""
        if length < 2:
            return length
        page = self._shape.page
        if 0 < page < length and self._draws.integer(0, 1):
            return page * self._draws.integer(1, length // page) - self._draws.integer(0, 1)
        if self._draws.integer(0, 1):
            return max(1, length - self._draws.one_of(NEAR_THE_END))
        return self._draws.integer(1, length - 1)

    def _new(self, kept: int = 0) -> tuple[int, ...]:
        """Kept tokens, then unused ones."""
        del kept
        if self._draws.integer(0, 1):
            return self._words(min(self._draws.one_of(self._shape.edges), self._shape.longest))
        low, high = self._draws.one_of((SHORT, MIDDLE, MIDDLE, LONG))
        high = min(high, self._shape.longest)
        return self._words(self._draws.integer(min(low, high), high))

    def _words(self, count: int) -> tuple[int, ...]:
        return self._draws.tokens(count, FIRST_WORD, LAST_WORD)


# Public strategies: plural nouns, bounds first, shrinking toward the smallest server there is.
#
# One slot, default flags, one layer of each kind, prompts of tokens 0 and 1: what a counterexample
# still carries beyond that is what it needs.


def token_lists(
    *, min_size: int = 1, max_size: int = 24, vocabulary: int = 2
) -> st.SearchStrategy[Tokens]:
    """Prompts over the first few tokens of a vocabulary.

    >>> from hypothesis import find
    >>> from cachesim.testing import token_lists
    >>> len(find(token_lists(min_size=3), lambda tokens: True))
    3
    """
    if not 0 <= min_size <= max_size:
        msg = f"min_size={min_size} and max_size={max_size}: write 0 <= min_size <= max_size"
        raise InputError(msg)
    tokens = st.integers(0, vocabulary - 1).map(Token)
    return st.lists(tokens, min_size=min_size, max_size=max_size).map(tuple)


def model_specs(
    *,
    min_layers: int = 1,
    max_layers: int = 4,
    kinds: tuple[LayerKind, ...] = LAYER_KINDS,
) -> st.SearchStrategy[ModelSpec]:
    """Small networks of width 16 with layers of the given kinds in any order.

    >>> from hypothesis import find
    >>> from cachesim.testing import model_specs
    >>> find(model_specs(kinds=("window",), max_layers=1), lambda spec: True).width
    16
    """
    layers = st.lists(st.sampled_from(kinds), min_size=min_layers, max_size=max_layers)
    return st.builds(
        _small_spec, layers.map(tuple), seed=st.integers(0, 3), window=st.integers(1, 8)
    )


def _small_spec(layers: tuple[LayerKind, ...], *, seed: int, window: int) -> ModelSpec:
    return ModelSpec(
        layers=layers,
        seed=seed,
        vocabulary=32,
        width=16,
        mlp_width=16,
        heads=2,
        kv_heads=1,
        head_size=8,
        window=window if "window" in layers else 0,
        conv_size=3,
        state_size=4,
        inner=8,
        groups=1,
        state_heads=2,
    )


@st.composite
def option_sets(
    draw: st.DrawFn, profile: str | Profile, *, model: str = "hybrid"
) -> dict[str, Any]:
    """Flags that a profile accepts, with values other than the default; often none.

    >>> from hypothesis import given, settings
    >>> from cachesim.testing import option_sets
    >>> @settings(max_examples=1)
    ... @given(flags=option_sets("llama.cpp@b11549"))
    ... def test_mine(flags):
    ...     assert isinstance(flags, dict)
    >>> test_mine()
    """
    return draw_flags(Drawn(draw), _profile(profile), model, {})


@st.composite
def workloads(
    draw: st.DrawFn,
    profile: str | Profile,
    *,
    min_steps: int = 1,
    max_steps: int = 4,
    longest: int = 24,
    model: str = "hybrid",
    flags: bool = True,
) -> Scenario:
    """Conversation trees for one profile and preset, as scenarios with explicit tokens.

    >>> from hypothesis import given, settings
    >>> from cachesim.testing import workloads
    >>> @settings(max_examples=1)
    ... @given(drawn=workloads("llama.cpp@b11549"))
    ... def test_mine(drawn):
    ...     assert drawn.model.preset == "hybrid"
    >>> test_mine()
    """
    preset(model)  # an unknown preset is refused here, by name
    shape = Shape(min_steps=min_steps, max_steps=max_steps, longest=longest, flags=flags)
    return draw_workload(Drawn(draw), _profile(profile), model, shape)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *profiles: str,
    min_steps: int = 1,
    max_steps: int = 4,
    models: tuple[str, ...] = tuple(PRESETS),
) -> Scenario:
    """Workloads for any of some profiles, on any of some presets.

    >>> from hypothesis import given, settings
    >>> from cachesim.testing import scenarios
    >>> @settings(max_examples=1)
    ... @given(drawn=scenarios("llama.cpp@b11549"))
    ... def test_mine(drawn):
    ...     assert drawn.engine.name == "llama.cpp"
    >>> test_mine()
    """
    profile = draw(st.sampled_from(profiles or ("llama.cpp@b11549",)))
    model = draw(st.sampled_from(models))
    return draw(workloads(profile, min_steps=min_steps, max_steps=max_steps, model=model))


def _profile(profile: str | Profile) -> Profile:
    return Profile.parse(profile) if isinstance(profile, str) else profile


def register() -> None:
    """Let `st.from_type(ModelSpec)` draw small networks.

    >>> from hypothesis import find, strategies
    >>> from cachesim import ModelSpec
    >>> from cachesim.testing import register
    >>> register()
    >>> find(strategies.from_type(ModelSpec), lambda spec: True).width
    16
    """
    st.register_type_strategy(ModelSpec, model_specs())
