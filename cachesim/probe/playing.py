"""A drawn workload on the live server, in words of its own, each answer beside the uncached one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import InputError
from cachesim.probe.answers import Answer, Query, Word, distance
from cachesim.probe.target import Target
from cachesim.scenario.format import Scenario, Step
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD, Draws

MESSAGE: Final = (3, 6, 12, 24)
"""Drawn tokens per end of a chat message, by the first token."""

WORDS: Final = range(FIRST_WORD, LAST_WORD + 1)

SETTLED: Final = 1.2
"""Seconds until a server knows that a client left: some look once a second."""

TURN: Final = 0.004
"""Seconds after which a client leaves, for each turn of the server's loop in the workload."""


@dataclass(slots=True)
class Played:
    """Requests as they were sent, in groups, and their answers."""

    queries: list[Query] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # the step of the scenario that each one is

    @property
    def answered(self) -> Iterator[tuple[int, Query, Answer]]:
        """The requests that have an answer, each with its number."""
        for at, (query, answer) in enumerate(zip(self.queries, self.answers, strict=True)):
            if not answer.error:
                yield at, query, answer


def words_for(words: Sequence[Word], chance: Random) -> dict[int, Word]:
    """Words of the server for the tokens that workloads are drawn from, in another order each time.

    Where a server has fewer words, tokens share one, the same tokens each time.
    """
    count = LAST_WORD - FIRST_WORD + 1
    drawn = chance.sample(list(words), min(len(words), count))
    return {FIRST_WORD + at: drawn[at % len(drawn)] for at in range(count)}


def play(target: Target, scenario: Scenario, named: Mapping[int, Word]) -> Played:
    """Run a workload with the cache.

    Where replies cannot be forced, a prompt that quotes a drawn reply quotes the real one.
    """
    played, quoted = Played(), list[tuple[tuple[int, ...], int, tuple[Word, ...]]]()
    forces = target.dialect.facts.forces
    for numbers in _groups(scenario):
        queries = []
        for number in numbers:
            step = scenario.step[number]
            query = query_of(step, named)
            if not forces:
                query = replace(query, prompt=_with_real_replies(step.ids, query.prompt, quoted))
            queries.append(replace(query, leaves=_leaves(scenario, number)))
        answers = target.together(queries)
        for number, query, answer in zip(numbers, queries, answers, strict=True):
            step = scenario.step[number]
            whole = step.ids + _reply(step)
            quoted.append((whole, len(step.ids), query.prompt + answer.tokens))
        played.queries += queries
        played.answers += answers
        played.steps += numbers
        if any(answer.fatal for answer in answers):
            break
    return played


def play_with_leaver(target: Target, queries: Sequence[Query], chance: Random) -> Played:
    """Run requests one at a time until the client of the longest one leaves; it comes again.

    sent     q0   q1 (left)   q1
    """
    at = max(range(len(queries)), key=lambda at: len(queries[at].prompt))
    slowest, played = 0.0, Played()
    reply = queries[at].reply[:2]
    if not target.dialect.facts.forces:
        reply = tuple(f"unknown {n}" for n in range(len(reply)))
    left = replace(queries[at], reply=reply, leaves=TURN * chance.randint(1, 6))
    for query in (*queries[:at], left, queries[at]):
        began = time.monotonic()
        played.answers += target.together([query])
        played.queries.append(query)
        slowest = max(slowest, time.monotonic() - began)
        if query.leaves:
            target.wait(SETTLED + 2 * slowest)
    return played


def query_of(step: Step, named: Mapping[int, Word]) -> Query:
    """A step as the server's request."""
    size = MESSAGE[step.ids[0] % len(MESSAGE)] if step.ids else 1
    return Query(
        prompt=tuple(named[token] for token in step.ids),
        reply=tuple(named[token] for token in _reply(step)),
        slot=step.slot,
        cache_prompt=step.cache_prompt,
        messages=tuple(at for at, token in enumerate(step.ids[:-1], 1) if token % size == 0),
    )


SPARSE: Final = len(MESSAGE) - 1
"""Index of the longest messages: prompts that begin with a token of FIRST end one at ENDS alone."""

ENDS: Final = tuple(token for token in WORDS if token % MESSAGE[SPARSE] == 0)
INSIDE: Final = tuple(token for token in WORDS if token % MESSAGE[SPARSE])
FIRST: Final = tuple(token for token in INSIDE if token % len(MESSAGE) == SPARSE)


def opened_together(draws: Draws, longest: int) -> tuple[Step, ...]:
    """Three groups of new chats; those of a group arrive at once, with unequal system messages.

    long     [ first inside inside ... inside end ] [ inside inside ]
    short    [ first end ] [ inside inside inside inside ]
    """
    steps: list[Step] = []
    for group in range(3):
        for row in range(draws.integer(3, 5)):
            system, user = draws.one_of((2, 9, 17, max(2, longest // 2))), draws.integer(1, 12)
            prompt = [draws.one_of(FIRST)]
            prompt += [draws.one_of(INSIDE) for _ in range(draws.integer(0, system - 2))]
            prompt += [draws.one_of(ENDS), *(draws.one_of(INSIDE) for _ in range(user))]
            reply = draws.tokens(draws.integer(1, 4), FIRST_WORD, LAST_WORD)
            name = f"g{group}r{row}"
            steps.append(Step(name=name, prompt=tuple(prompt), reply=reply, with_previous=row > 0))
    return tuple(steps)


def _reply(step: Step) -> tuple[int, ...]:
    return tuple(map(int, step.reply or ()))


def _groups(scenario: Scenario) -> Iterator[list[int]]:
    """Numbers of the requests that are sent at once."""
    group: list[int] = []
    for number, step in enumerate(scenario.step):
        if step.do != "complete":
            continue
        if group and not step.with_previous:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _leaves(scenario: Scenario, number: int) -> float:
    """The seconds after which the client of a step leaves; 0 if it stays."""
    after = scenario.step[number + 1 :]
    cancel = next((step for step in after[:1] if step.do == "cancel"), None)
    return 0.0 if cancel is None else TURN * (cancel.turns or 1)


def _with_real_replies(
    drawn: tuple[int, ...],
    prompt: tuple[Word, ...],
    quoted: Sequence[tuple[tuple[int, ...], int, tuple[Word, ...]]],
) -> tuple[Word, ...]:
    """The prompt with the real reply in place of the drawn one that it continues.

    drawn    p0 p1 p2 r0 r1 q0       p: an earlier prompt, r: its drawn reply
    sent     P0 P1 P2 R0 R1 Q0       R: what the server replied
    """
    best = max(quoted, key=lambda known: get_common_prefix(known[0], drawn), default=None)
    if best is None:
        return prompt
    equal = get_common_prefix(best[0], drawn)
    return best[2][:equal] + prompt[equal:] if equal > best[1] else prompt


def distances(target: Target, played: Played, last: int = 0) -> Iterator[tuple[int, float, Answer]]:
    """Number, distance and uncached answer of each answered request, or of the last ones."""
    known: dict[tuple[tuple[Word, ...], tuple[Word, ...]], Answer] = {}
    for at, query, answer in list(played.answered)[-last:]:
        key = query.prompt, query.reply
        if key not in known:
            known[key] = target.cold(query)
        if not known[key].error:
            yield at, distance(known[key], answer), known[key]


def up_to(scenario: Scenario, number: int, tokens: int) -> Scenario:
    """The workload up to a step and those beside it; the step's reply at least so long."""
    last = number
    while last + 1 < len(scenario.step) and scenario.step[last + 1].with_previous:
        last += 1
    step = scenario.step[number]
    reply = _reply(step)
    longer = reply + tuple(FIRST_WORD + 7 * at % 97 for at in range(tokens - len(reply)))
    steps = list(scenario.step[: last + 1])
    steps[number] = replace(step, reply=longer)
    return replace(scenario, step=tuple(steps))


def without_repeats(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The requests without cancels, prompts of one token and prefixes of earlier ones."""
    kept: list[Step] = []
    for step in steps:
        size = len(step.ids)
        if size > 1 and all((other.ids + _reply(other))[:size] != step.ids for other in kept):
            kept.append(step)
    return (replace(kept[0], with_previous=False), *kept[1:]) if kept else ()


def one_at_a_time(scenario: Scenario, slot: int) -> Scenario:
    """The requests without cancels, each after the one before is answered, in one slot."""
    return replace(
        scenario,
        step=tuple(
            replace(step, slot=slot, with_previous=False)
            for step in scenario.step
            if step.do == "complete"
        ),
    )


def after(sent: Sequence[Sequence[Query]], scenario: Scenario, words: Sequence[Word]) -> Scenario:
    """The workload after requests that were sent before; a cancel is of the step before it."""
    size = LAST_WORD - FIRST_WORD + 1
    numbers = {word: FIRST_WORD + at % size for at, word in enumerate(words)}
    steps: list[Step] = []
    for group in sent:
        for at, query in enumerate(group):
            prompt, reply = (
                tuple(numbers.get(word, FIRST_WORD) for word in text)
                for text in (query.prompt, query.reply)
            )
            step = Step(prompt=prompt, reply=reply, slot=query.slot, with_previous=at > 0)
            steps.append(replace(step, cache_prompt=query.cache_prompt))
            if query.leaves:
                steps.append(Step(do="cancel", turns=round(query.leaves / TURN)))
    steps += scenario.step
    named = tuple(replace(step, name=f"r{at}", of=None) for at, step in enumerate(steps))
    return replace(scenario, step=named)


def refuse_other_decoding(
    target: Target, whole: Sequence[tuple[Query, Answer]], error: float
) -> None:
    """Refuse a model whose tokens have other probabilities in a prompt than in a reply.

        whole    prompt | t0 t1 t2 t3 t4 t5      t3 to t5 are decoded one by one
        half     prompt + t0 t1 t2 | t3 t4 t5    the first three are read in the prompt

    A cache holds decoded tokens, a cold prompt is read: they differ without any reuse.
    """
    far = list[float]()
    for query, one in whole:
        half = len(one.tokens) // 2
        said = query.prompt + one.tokens[:half]
        read = target.cold(replace(query, prompt=said, reply=query.reply[half:]))
        if read.error or not half:
            return
        far.append(distance(replace(one, tokens=one.tokens[half:], rows=one.rows[half:]), read))
        if far[-1] <= error:
            return
    if far:
        raise InputError(
            f"{target.url}: without any reuse, tokens have other probabilities in a prompt than in "
            f"a reply: off by {min(far):.2g} or more in {len(far)} of {len(far)} cases. The "
            "server's kernels for prompts and for single tokens disagree on this model, so no "
            "answer from cache can be judged: try another quantisation or backend, or another "
            "model (ik_llama.cpp needs recurrent states of 64 or 128)"
        )
