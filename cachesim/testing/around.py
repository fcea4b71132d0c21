"""A guided search around given requests: each workload begins with them, changed in places.

    server    the given one; half of the workloads change one to three further flags
    requests  the given ones in their order, MOST at most; by workload up to half of them are
                cut       to a number that the server tested or reported, or one beside it
                again     preceded by an earlier one, once more
                left      not sent
                later     sent after the next
                beside    joined by the next while they are served
                cancel    cancelled after some turns
                new       preceded by a drawn one
    then      requests drawn as in any guided search, which continue the given conversations

Requests become explicit: ids in place of names, and the replies that the server generated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.search import Corner
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.session import Record, Session, groups_of
from cachesim.scenario.format import Server, Source, Step, Turn
from cachesim.testing.guided import MOST, Guided, with_further_flags
from cachesim.testing.workloads import Chats, Seeded, Shape, is_thin

NEW: Final = 5
"""Fewest drawn requests after the given ones, unless nothing new happens."""

SHARES: Final = (0, 2, 4, 8)
"""Changed requests of sixteen."""

CHANGES: Final = ("cut", "again", "left", "later", "beside", "cancel", "new")


class Around(Guided):
    """The client of a given server, which sends the given requests, then drawn ones."""

    def __init__(
        self,
        profile: Profile,
        model: str,
        number: int,
        *,
        seed: int,
        shape: Shape,
        arithmetic: ArithmeticName = "ring",
    ) -> None:
        """The server of one of `shape.around`, in half of the cases with other flags."""
        draws = Seeded(f"around {profile.engine} {seed} {number}")
        given = draws.one_of(shape.around)
        self._wide, family = Seeded(f"wider {seed} {number}"), family_of(profile.engine)
        options = plain = {**given.engine.options, **shape.fixed}
        if not draws.integer(0, 1):
            options = with_further_flags(draws, profile, model, plain, number=number, seed=seed)
        self._corner, self._asking = Corner(), None
        release = str(profile).partition("@")[2]
        self.scenario = replace(
            given.without_promises(),
            kind=None,
            source=Source(),
            name=f"{given.model.preset or 'layers'}-around-{seed}-{number}",
            about=f"Drawn for {profile} around {given.name}.",
            engine=Server(name=profile.engine, profiles=(release,), options=options),
            step=(),
        )
        self.thin = is_thin(number, self.scenario, profile)
        start = partial(
            Session, profile=profile, arithmetic=arithmetic, reads_state=False, thin=self.thin
        )
        try:
            self.session = start(self.scenario)
        except InputError:  # flags that the preset takes, and the given model does not
            options, server = plain, replace(self.scenario.engine, options=plain)
            self.scenario = replace(self.scenario, engine=server)
            self.session = start(self.scenario)
        self._guide = search_of(family).guide(family.rules(profile), family.read(profile, options))
        if not (given.images or any(step.suffix for step in given.step)):
            self.scenario = replace(self.scenario, spans={})  # explicit tokens need none
        groups: Sequence[list[int]] = groups_of(given)
        first = draws.integer(0, len(groups) - MOST) if len(groups) > MOST else 0
        self._given = [[given.step[number] for number in group] for group in groups[first:][:MOST]]
        longest = map(len, map(self.session.vocabulary.prompt, chain.from_iterable(self._given)))
        shape = replace(shape, chats=False, longest=max(shape.longest, *longest))
        self._begin(draws, profile, model, shape, options, start=start)
        if any(step.messages for step in given.step):
            self._tree.chats = Chats(draws, strangers=False)
        self._share = draws.one_of(SHARES)
        self._sent: dict[str, Step] = {}  # given requests

    def run(self) -> Iterator[list[Record]]:
        """Send the requests; drawn ones continue those given."""
        for records in super().run():
            steps = list(self.scenario.step)
            for at, record in enumerate(records, len(steps) - len(records)):
                given = self._sent.get(record.name)
                if given is None or record.reply is None:
                    continue
                reply = record.reply.generated
                self.session.vocabulary.replies[given.name] = reply
                self._learn(record, tuple(map(int, reply)))
                if reply and given.reply is None and (given.predict or 0) >= 0:
                    steps[at] = replace(steps[at], reply=tuple(map(int, reply)), predict=None)
            self.scenario = replace(self.scenario, step=tuple(steps))
            yield records

    def _learn(self, record: Record, reply: tuple[int, ...]) -> None:
        if record.step.messages:
            if self._tree.chats is not None:
                self._tree.chats.learn(record.step.messages, reply)
        elif record.prompt and not (record.images or record.step.suffix):
            self._tree.learn(tuple(map(int, record.prompt)), reply)

    def _groups(self) -> Iterator[list[Step]]:
        """The given requests, changed in places, then drawn ones."""
        draws, waiting = self._draws, [*self._given]
        while waiting:
            group, act = waiting.pop(0), ""
            if group[0].do == "complete" and draws.integer(0, 15) < self._share:
                act = draws.one_of(CHANGES)
            if act == "left" and waiting:
                continue
            if act == "new":
                yield [self.request(self._index, alone=True)]
                self._index += 1
            if act == "again" and self._sent:
                earlier = replace(draws.one_of([*self._sent.values()]), with_previous=False)
                if earlier.do == "complete":
                    yield [self._named_anew(replace(earlier, turns=None))]
            if act in ("later", "beside") and waiting and waiting[0][0].do == "complete":
                following = waiting.pop(0)
                if act == "later":
                    waiting.insert(0, group)
                    group = following
                elif "arrival" in self.incidents:
                    led = replace(following[0], with_previous=True, turns=draws.integer(1, 6))
                    group = [*group, led, *following[1:]]
                else:
                    waiting.insert(0, following)
            yield self._changed([self._named_anew(step) for step in group], act)
        self._index, self._idle = min(self._index + len(self._given), MOST - NEW), 0
        yield from super()._groups()

    def _changed(self, group: list[Step], act: str) -> list[Step]:
        """The group with one request shorter, or cancelled."""
        draws = self._draws
        at = draws.one_of([at for at, step in enumerate(group) if step.do == "complete"] or [0])
        step = group[at]
        if act == "cut" and isinstance(step.prompt, tuple) and step.prompt:
            group[at] = replace(step, prompt=step.prompt[: self._tree.cut(len(step.prompt))])
        elif act == "cut" and step.messages:
            questions = [n for n, turn in enumerate(step.messages, 1) if turn.role == "user"]
            group[at] = replace(step, messages=step.messages[: draws.one_of(questions or [1])])
        elif act == "cancel" and "cancel" in self.incidents:
            turns = draws.integer(1, 4)
            group.append(Step(name=f"c{step.name}", do="cancel", of=step.name, turns=turns))
        return group

    def _named_anew(self, step: Step) -> Step:
        """The given step with explicit tokens, under a name that no drawn one has."""
        name = f"given{len(self._sent)}"
        self._sent[name] = step
        of = next((new for new, old in reversed(self._sent.items()) if old.name == step.of), None)
        step, vocabulary = replace(step, name=name, of=of), self.session.vocabulary
        named = str(step.prompt).split() if isinstance(step.prompt, str) else []
        if named and not step.suffix and not set(named) & set(vocabulary.pictures):
            step = replace(step, prompt=tuple(map(int, vocabulary.tokens(step.prompt or ""))))
        if isinstance(step.reply, str):
            step = replace(step, reply=tuple(map(int, vocabulary.tokens(step.reply))))
        turns = (Turn(role=m.role, content=m.content) for m in vocabulary.messages(step.messages))
        return replace(step, messages=tuple(turns))
