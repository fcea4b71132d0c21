"""A search whose requests are drawn while the server runs, from what it has done so far.

`search.workloads` draws a workload as a whole. Here each request follows the replies and events of
those before it:

    lengths   of prompts and of kept beginnings: a number that the server tested or reported
              (matched, reused, kept, lost, evicted tokens; its flags, the product of two), or
              one beside it
    turns     any earlier conversation, the latest more often
    length    requests continue while the server does what it has not done before, up to MOST
    flags     corners in turn; half of the workloads have one to three further flags, each
              flag of the release in turn, with a small value or one near another flag's; those
              that have a word of their name in common meet more often
    model     any class of these layers for which the server has rules of its own; some have chunks,
              or layers that no preset has
    after     an eviction or an erased slot an earlier prompt is sent again in half of the cases
    edits     a space or a line break comes into an earlier prompt, or leaves it: some servers
              compare texts
    clients   leave after some turns, also of requests that wait, or once a slot holds a number of
              tokens; servers that can restart do
    guide     what an engine declares for a profile: lengths at which another server's rules
              branch, images, further fields, stop words, chat templates, small limits

A workload depends on its seed and number alone, so that several processes find what one does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, islice, product
from typing import Any, Final

from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.option import Option
from cachesim.engines.search import Corner, Guide
from cachesim.errors import ContractError, InputError, PositionError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.play.loop import Reading
from cachesim.play.session import Record, Restarting, Session, SlotActions, groups_of
from cachesim.scenario.format import LEAVES, Chat, Scenario, Step
from cachesim.testing.pictures import Pictures, with_images
from cachesim.testing.workloads import (
    DEFAULT,
    Client,
    Draws,
    Seeded,
    Shape,
    Tree,
    asked,
    compatible,
    corners,
    draw_flags,
    inside,
    is_thin,
    scenario_of,
    turn_of,
    with_alike,
    with_fields,
    with_models,
)
from cachesim.units import as_tokens

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

TRIED: Final = 24
"""Values tried of the flag that another one needs, until a server accepts them."""

SPACES: Final = (13, 35)
"""Tokens of a line break and of a space."""

SMALL: Final = (1, 2, 3, 4, 5, 8, 16, 32, 64)
"""Values tried of any whole number."""


class Numbers:
    """Numbers of tokens that a server tested or reported, the latest last."""

    def __init__(self, highest: int, sizes: Sequence[int] = ()) -> None:
        """`sizes` are the server's; each, and the product of two, is always among the numbers."""
        self._highest = highest
        self._found: dict[int, None] = {}
        products = (one * other for one, other in combinations((1, *sizes), 2))
        self._fixed = [product for product in products if 1 < product <= highest]

    def add(self, value: object) -> None:
        """Add a number, or the last ones of several; ignore anything else."""
        if isinstance(value, tuple):
            for number in value[-2:]:
                self.add(number)
        elif isinstance(value, int) and 1 < value <= self._highest:
            self._found.pop(value, None)
            self._found[int(value)] = None

    def latest(self) -> list[int]:
        """The latest ones, and those of the server."""
        return self._fixed + list(self._found)[-REMEMBERED:]

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
    pictures: Pictures | None = None
    again: bool = False  # the next prompt is likely to be one of the earlier ones

    def _prompt(self) -> tuple[int, ...]:
        prompt = self._next_prompt()
        return prompt if self.pictures is None else self.pictures.changed(prompt)

    def _next_prompt(self) -> tuple[int, ...]:
        again, self.again = self.again and bool(self._turns), False
        if not (again and self._draws.integer(0, 1)):
            if self._turns and not self._draws.integer(0, 15):
                return self._respaced(self._draws.one_of(self._turn()))
            return super()._prompt()
        prompt, held = self._turn()
        return self._draws.one_of((prompt, held + self._new(len(held))))

    def _respaced(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt with white space more, or without that which it has."""
        fewer = tuple(token for token in prompt if token not in SPACES)
        if len(fewer) < len(prompt) and self._draws.integer(0, 1):
            return fewer
        at = self.cut(len(prompt))
        return (*prompt[:at], self._draws.one_of(SPACES), *prompt[at:], *self._words(1))

    def _words(self, count: int) -> tuple[int, ...]:
        """Unused tokens; some repeat each other, as drafters of n-grams expect."""
        if count < 4 or self._draws.integer(0, 7):
            return super()._words(count)
        some = super()._words(self._draws.integer(1, 3))
        return (some * count)[:count]

    def _turn(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self._draws.integer(0, 3):
            return super()._turn()
        return self._draws.one_of(self._turns)

    def cut(self, length: int) -> int:
        near = [number for number in self.numbers.latest() if number <= length]
        if length > 1 and near and self._draws.integer(0, 2):
            return min(length, self._near(near))
        return super().cut(length)

    def _new(self, kept: int = 0) -> tuple[int, ...]:
        new = self._new_words(kept)
        return new if self.pictures is None else self.pictures.inserted(new)

    def _new_words(self, kept: int) -> tuple[int, ...]:
        longer = [
            number for number in self.numbers.latest() if kept < number <= self._shape.longest
        ]
        if longer and not self._draws.integer(0, 3):
            return self._words(max(1, self._near(longer) - kept))
        return super()._new(kept)

    def longer(self, step: Step, room: int) -> Step:
        """The request with a longer reply, up to the end of a small context or to a number."""
        if not self._draws.integer(0, 1):
            return super().longer(step, room)
        so_far = len(step.ids) + len(step.reply or ())
        near = [n for n in self.numbers.latest() if so_far < n <= so_far + LONGER]
        more = self._near(near) - so_far if near else self._draws.integer(1, LONGER)
        return replace(step, reply=(*(step.reply or ()), *self._words(max(0, more))))

    def near_one(self, default: int) -> int:
        """A number, or one beside it; `default` where none is known."""
        return self._near(self.numbers.latest() or (default,))

    def _near(self, numbers: Sequence[int]) -> int:
        return max(1, self._draws.one_of(numbers) + self._draws.one_of(NEAR))

    def _reply_length(self) -> int:
        most = self._shape.replies
        if self._shape.long_replies:
            return self._draws.integer(most // 2, most)
        if not self._draws.integer(0, 7):
            return self._draws.integer(4, LONGER)
        if most > 8 and self._draws.integer(0, 2):
            most = 4
        return self._draws.one_of((1, 1, 2, self._draws.integer(1, most)))


class Guided(Client):
    """The client of one server, which sends each request after the replies to those before."""

    _tree: GuidedTree
    _pictures: Pictures | None

    def __init__(
        self,
        profile: Profile,
        model: str,
        number: int,
        *,
        seed: int = 0,
        shape: Shape = DEFAULT,
        arithmetic: ArithmeticName = "ring",
        reads_state: bool = False,
    ) -> None:
        """A server with the flags of a number."""
        draws = Seeded(f"guided {profile.engine} {model} {seed} {number}")
        known = (Corner(), *corners(profile, model, guided=True))
        corner = known[(number + seed) % len(known)]
        options = draw_flags(draws, profile, model, shape.fixed, corner) | dict(shape.fixed)
        if not draws.integer(0, 1):
            options = with_further_flags(draws, profile, model, options, number=number, seed=seed)
        self._corner = corner if corner.flags.items() <= options.items() else Corner()
        shape = inside(shape, corner)
        if not draws.integer(0, LARGE):
            shape = replace(shape, longest=LONGEST)
        wide, family = Seeded(f"wider {seed} {number}"), family_of(profile.engine)
        search = search_of(family)
        options = _with_more(wide, profile, model, options)
        guide = search.guide(family.rules(profile), family.read(profile, options))
        self._guide, self._wide = guide, wide
        shape = _at_sizes(wide, shape, guide.sizes)
        draws_images = guide.images == "all" or (guide.images == "some" and wide.integer(0, 1))
        if guide.images == "few":  # what is drawn besides stays as it is
            draws_images = not Seeded(f"images {seed} {number}").integer(0, 3)
        if draws_images:  # a chat has none here
            shape = replace(shape, chats=False)
        if "window" in preset(model).layers and not (shape.window or draws.integer(0, 3)):
            shape = replace(shape, window=draws.one_of(WINDOWS))
        name = f"{model}-guided-{seed}-{number}"
        self.scenario = scenario_of(profile, model, shape, options, name=name)
        if shape.chats and guide.templates and not wide.integer(0, 3):
            template = wide.one_of(guide.templates)
            engine = self.scenario.engine
            given = replace(engine, options={**engine.options, "chat_template": template})
            self.scenario = replace(self.scenario, chat=Chat(template=template), engine=given)
        if draws_images:
            self.scenario = with_images(self.scenario)
        own = Seeded(f"models {seed} {number}")
        loads = guide.models if not shape.kinds else ()
        draws_them = shape.incidents and (search.draws_models or loads)
        serves = draws_them and family.serves_models(family.rules(profile))
        if serves and not own.integer(0, 7):  # what is drawn besides stays as it is
            self.scenario = with_models(own, self.scenario)
            engine, more = self.scenario.engine, own.one_of(loads) if loads else {}
            given = replace(engine, options={**engine.options, **more})
            self.scenario = replace(self.scenario, engine=given)
        self._asking = own if self.scenario.models else None
        start = partial(Session, profile=profile, arithmetic=arithmetic, reads_state=reads_state)
        classes = search.model_classes(preset(model))
        drawn = self.scenario
        if classes and not draws.integer(0, 2):
            drawn = replace(drawn, model=replace(drawn.model, family=draws.one_of(classes)))
        elif family.plays_chunks and "window" in preset(model).layers and not own.integer(0, 3):
            drawn = _chunked(own, drawn)
        layers = Seeded(f"layers {seed} {number}")
        further = [layer for layer in search.further_layers if layer[0] == preset(model).layers[0]]
        if further and drawn is self.scenario and not layers.integer(0, 7):
            drawn = _with_layers(drawn, layers.one_of(further), layers.one_of(WINDOWS))
        self.thin = is_thin(number, drawn, profile)
        try:
            self.session = start(drawn, thin=self.thin)
        except InputError:  # flags that this class, or these layers, do not take
            self.thin = is_thin(number, self.scenario, profile)
            self.session = start(self.scenario, thin=self.thin)
        self.scenario = self.session.scenario
        start = partial(start, thin=self.thin)
        self._begin(draws, profile, model, shape, options, start=start)
        if draws_images:
            runs, always = self.session.vocabulary.spans, guide.images == "all"
            self._pictures = self._tree.pictures = Pictures(wide, runs, always=always)

    def _begin(
        self,
        draws: Draws,
        profile: Profile,
        model: str,
        shape: Shape,
        options: dict[str, Any],
        *,
        start: Callable[[Scenario], Session],
    ) -> None:
        """Set the client up, once the server has started."""
        drafter = next(iter(search_of(self.session.family).drafting), "")
        super().__init__(
            draws,
            profile,
            model,
            shape,
            options,
            crowd=self._corner.crowd,
            drafter=drafter,
            tree=GuidedTree,
        )
        window = self.session.network.spec.window
        sizes = [option for option in (window, *options.values()) if type(option) is int]
        self._tree.numbers = Numbers(2 * shape.longest, [*sizes, *self._guide.sizes])
        self._pictures = None
        for flag in _further(profile):
            self._tree.numbers.add(flag.default)
        self._start = start
        self._acts = ("long reply", *self.incidents) if shape.incidents else ()
        if self._acts and isinstance(self.session.engine, SlotActions):
            self._acts += ("erase",)
        if self._acts and not shape.kinds:
            self._acts += ("leave",)
            self._acts += ("restart",) if isinstance(self.session.engine, Restarting) else ()
        self._together = shape.together and (self._places or not self._family.has_slots)
        self._index = self._idle = 0
        self._known = set[object]()
        self._alike = shape.alike

    def run(self) -> Iterator[list[Record]]:
        """Send requests until the server does nothing new; yield the records of each group."""
        for group in self._groups():
            own = self._asking
            steps = group if own is None else [asked(own, step) for step in group]
            steps = [self._named(self._with_fields(step)) for step in steps]
            steps = with_alike(steps) if self._alike else steps
            before = self.scenario
            self.scenario = replace(before, step=(*before.step, *steps))
            try:
                records = self.session.send(steps)
            except PositionError as error:  # of no request: the server computed it
                raise ContractError(str(error)) from error
            except InputError:  # in the midst of a step that is not simulated
                self.scenario, self.session.ended = before, True
                return
            known = len(self._known)
            exercised = self._search.exercised
            for record in records:
                self._known.update(self._tree.numbers.learn(record))
                if any(exercised.get(event.name()) == "eviction" for event in record.events):
                    self._tree.again = True
            if any(record.step.do == "complete" for record in records):
                self._idle = 0 if len(self._known) > known else self._idle + 1
            yield records
            if self.session.ended:
                return

    def _named(self, step: Step) -> Step:
        """The step, with the names of its images."""
        if self._pictures is None or step.do != "complete":
            return step
        step, spans = self._pictures.named(step)
        self.scenario = replace(self.scenario, spans={**self.scenario.spans, **spans})
        self.session.vocabulary.spans |= {name: as_tokens(ids) for name, ids in spans.items()}
        return step

    def _with_fields(self, step: Step) -> Step:
        """The step, some of them with a further field, or with a stop word that ends the reply."""
        wide, guide = self._wide, self._guide
        if step.do != "complete" or not (guide.fields or guide.stop_words):
            return step
        if guide.fields and not wide.integer(0, 7):
            fields = wide.one_of(guide.fields)
            if fields.get("endpoint") != "infill":
                step = replace(step, options={**step.options, **fields})
            elif not (step.messages or self._pictures):
                end = step.ids[: wide.integer(0, LONGER)]
                step = replace(step, options={**step.options, **fields}, suffix=end)
        if guide.stop_words and isinstance(step.reply, tuple) and not wide.integer(0, 11):
            word = turn_of("user", step.reply[-wide.integer(1, 2) :]).content
            more = len(step.reply) + wide.integer(0, 4)
            step = replace(step, options={**step.options, guide.stop_words: (word,)}, predict=more)
        return step

    def _groups(self) -> Iterator[list[Step]]:
        """Requests that are sent together."""
        draws, patience, saved = self._draws, self._draws.integer(*IDLE), False
        if self._guide != Guide() and not self._wide.integer(0, 7):
            patience = MOST  # more entries than a store takes
        while self._index < MOST and self._idle < patience:
            act = draws.one_of(self._acts) if self._acts and draws.integer(0, 4) == 4 else ""
            name, slot = f"{self._index}", draws.integer(0, self._slots - 1)
            if act == "erase" and draws.integer(0, 1):
                self._tree.again = True
                yield [Step(name=f"e{name}", do="slot-erase", slot=slot)]
            elif act == "slot file":
                saved = True
                yield [Step(name=f"s{name}", do="slot-save", slot=slot, file="slot")]
            elif act == "restart" and draws.integer(0, 1) and self._restarts():
                yield [Step(name=f"t{name}", do="restart")]
            elif saved and draws.integer(0, 2) == 2:
                saved = bool(draws.integer(0, 1))
                yield [Step(name=f"l{name}", do="slot-restore", slot=slot, file="slot")]
            steps = [*self._requests()]
            arrived = [at for at, step in enumerate(steps) if step.turns and step.do == "complete"]
            # a parent that arrives while slots are busy may wait for as many as it needs
            at = draws.one_of((0, *arrived)) if act == "completions" else 0
            steps[at : at + 1] = self.having(steps[at], act, f"g{name}")
            if act == "leave":
                steps = self._left(steps, f"g{name}")
            for group in groups_of(replace(self.scenario, step=tuple(steps))):
                yield [steps[number] for number in group]

    def _restarts(self) -> bool:
        """True if a server with these flags can restart; a fresh one tries."""
        engine = self._start(self.scenario).engine
        if not isinstance(engine, Restarting):
            return False
        try:
            engine.restart()
        except InputError:
            return False
        return True

    def _requests(self) -> Iterator[Step]:
        """A request, or several that arrive while it is served."""
        fields: dict[str, Any] = {"with_previous": False}
        while fields:
            step = with_fields(self._draws, self.request(self._index, alone=True), self._corner)
            yield replace(step, **fields)
            self._index += 1
            goes_on = self._together and self._index < MOST
            fields = self.beside(crowd=self._crowd, arrivals=self._arrivals) if goes_on else {}
        yield from self.interrupt(self._index)

    def _left(self, steps: Sequence[Step], gone: str) -> list[Step]:
        """The requests; the client of one leaves after some turns, or at a number of tokens."""
        draws = self._draws
        at = draws.one_of([at for at, step in enumerate(steps) if step.do == "complete"])
        step, later = steps[at], draws.integer(at + 1, len(steps))
        if isinstance(self.session.engine, Reading) and draws.integer(0, 1):
            held = self._tree.near_one(len(step.ids))
            return [*steps[:at], replace(step, leaves=LEAVES[0], held=held), *steps[at + 1 :]]
        end = Step(name=gone, do="cancel", of=step.name, turns=draws.integer(0, 6))
        return [*steps[:later], end, *steps[later:]]


def _at_sizes(draws: Draws, shape: Shape, sizes: Sequence[int]) -> Shape:
    """The shape, half of them with prompts of the lengths at which a server branches.

    The longest of them are rare: a workload of such prompts takes as long as many others.
    """
    known = [size for size in sizes if size <= LONGEST] if draws.integer(0, 7) else list(sizes)
    if not known or not draws.integer(0, 1):
        return shape
    size = draws.one_of(known)
    edges = tuple(times * size + more for times in (1, 1, 2) for more in NEAR)
    longest = max(shape.longest, min(3 * size, size + LONGEST // 2))
    return replace(shape, longest=longest, edges=(*edges, *shape.edges))


def _with_more(
    draws: Draws, profile: Profile, model: str, options: dict[str, Any]
) -> dict[str, Any]:
    """The options, a quarter of them with a value that no table of flags has."""
    family = family_of(profile.engine)
    flags = search_of(family).guide(family.rules(profile), family.read(profile, options)).flags
    if not flags or draws.integer(0, 3):
        return options
    name = draws.one_of([*flags])
    more = {**options, name: draws.one_of(flags[name])}
    fits = family.has(family.option(name), profile) and name not in options
    return more if fits and compatible(profile, model, tuple(more.items())) else options


def _with(
    draws: Seeded, profile: Profile, model: str, options: dict[str, Any], flag: Option
) -> dict[str, Any]:
    """The options with a flag, and with the one that it needs, as a server accepts them."""
    if flag.name in options:
        return options
    chain = [flag]
    while chain[-1].needs and chain[-1].needs not in options:
        chain.append(family_of(profile.engine).option(chain[-1].needs))
    names = [option.name for option in chain]
    values = [
        draws.shuffled([value for value in _values(option, options) if value != option.default])
        for option in chain
    ]
    values[0] = values[0][:1]
    for chosen in islice(product(*values), TRIED):
        more = options | dict(zip(names, chosen, strict=True))
        if compatible(profile, model, tuple(more.items())):
            return more
    return options


def _chunked(draws: Seeded, scenario: Scenario) -> Scenario:
    """The scenario with chunks in place of windows, some with the flags for them."""
    server, search = scenario.engine, search_of(family_of(scenario.engine.name))
    flags, model = search.chunked_flags, scenario.model
    if flags and draws.integer(0, 1):
        server = replace(server, options={**server.options, **flags})
    size = server.options.get("block_size", 16)
    window = draws.one_of((*WINDOWS, size, 2 * size))
    scenario = replace(scenario, engine=server, model=replace(model, chunked=True, window=window))
    layers = search.chunked_layers
    return _with_layers(scenario, layers, window) if layers else scenario


def _with_layers(scenario: Scenario, layers: tuple[str, ...], window: int) -> Scenario:
    """The scenario with these layers in place of its preset."""
    own = (scenario.model.window or window) if "window" in layers else None
    model = replace(scenario.model, preset=None, layers=layers, window=own)
    return replace(scenario, model=model)


def _words(flag: Option) -> set[str]:
    return set(flag.name.split("_"))


def with_further_flags(
    draws: Seeded,
    profile: Profile,
    model: str,
    options: dict[str, Any],
    *,
    number: int,
    seed: int,
) -> dict[str, Any]:
    """The options with one to three further flags, each flag of the release in turn."""
    further = _further(profile)
    if not further:
        return options
    order = Seeded(f"{seed} {number // len(further)}").shuffled(further)
    flag = order.pop(number % len(order))
    akin = [option for option in order if _words(option) & _words(flag)] or order
    options = _with(draws, profile, model, options, flag)
    for _ in range(draws.integer(0, 2) if order else 0):
        flag = draws.one_of(akin if draws.integer(0, 2) else order)
        options = _with(draws, profile, model, options, flag)
    return options


@cache
def _further(profile: Profile) -> tuple[Option, ...]:
    """The flags of a release, but for sizes in bytes."""
    family = family_of(profile.engine)
    return tuple(
        option
        for option in family.table()
        if family.has(option, profile) and option.kind != "size" and not option.rare
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
    return [value for value in (*SMALL, *near) if low <= value <= high]
