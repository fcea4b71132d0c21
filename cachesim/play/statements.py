"""Statements on a step, composed here and nowhere else: reports, pages and lessons print them.

Each statement is a claim about the run: its numbers come from the step's own values, from the
events of this step and of earlier ones, and from what the server held in between.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from cachesim.engines.base import NO_ANSWER
from cachesim.engines.family import Profile, family_of
from cachesim.model.recall import show_word
from cachesim.play.result import Account, Culprit, Fact, Fate, Finding, Run, Step
from cachesim.play.session import ABORTED, CANCELLED, ENDLESS, NOT_RUN, TIMEOUT, Record, groups_of
from cachesim.scenario.format import Scenario
from cachesim.typed import there_is
from cachesim.units import Tokens
from cachesim.verify.verdict import SHOWN, Leak

PLACES: Final[Mapping[str, str]] = {
    "recurrent": "the recurrent state",
    "attention": "attention",
    "window": "the window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The steps before one, and the records of the whole run."""

    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    recalls: bool = False  # the model recalls facts: tokens are words
    leak: Leak | None = None  # of the step

    @property
    def earlier(self) -> tuple[Record, ...]:
        """The records of the steps before."""
        return self.records[: len(self.steps)]

    def maker(self, made_by: int) -> str | None:
        """The step of the task that saved a checkpoint; a ticket numbers its first task."""
        made = [record for record in self.records if record.ticket is not None]
        made = [record for record in made if int(record.ticket or 0) <= made_by]
        return max(made, key=lambda record: int(record.ticket or 0)).name if made else None


def machine_statement(scenario: Scenario, run: Run) -> str:
    """The flags that the server chose by its machine, if those of another one may matter here.

    They do not where all steps that are sent together fit into one step of the smallest machine.
    """
    if "," in run.profile:  # a row of `compare` with flags of its own, which it names
        return ""
    profile = Profile.parse(run.profile)
    family = family_of(profile.engine)
    given = family.taken(scenario.engine.name, scenario.engine.options)
    chosen = family.chosen(profile, given)
    if not chosen:
        return ""
    others = [
        family.chosen(profile, {**given, "device": choice})
        for choice in family.option("device").choices
    ]
    most = {"tokens": 0, "requests": 0}
    for group in groups_of(scenario):
        steps = [run.steps[index] for index in group]
        tokens = sum((step.prompt_tokens or 0) + len(step.generated) for step in steps)
        most["tokens"] = max(most["tokens"], tokens)
        most["requests"] = max(most["requests"], len(steps))
    least = {
        name: min(other.get(name, value) for other in others) for name, value in chosen.items()
    }
    if all(most.get(family.option(name).unit, 0) <= value for name, value in least.items()):
        return ""
    return f"{profile}: {family.chosen_words(profile, given)}; engine option device names another"


# --- the first wrong token of an answer ----------------------------------------------------------


def wrong_facts(step: Step, account: Account, past: Past) -> Iterator[Fact]:
    """Facts of the first wrong token, and of the memory behind it."""
    wrong, show = account.wrong, show_word if past.recalls else str
    if wrong is not None:
        off = f"logits off by {wrong.difference:.2g}"
        number = wrong.step + 1
        if wrong.token == wrong.cold:
            sentence = f"generated token {number}: same token, by chance; {off}"
        elif step.forced:
            sentence = (
                f"reply token {number} was forced; the server would generate {show(wrong.token)},"
                f" an uncached run {show(wrong.cold)}; {off}"
            )
        else:
            token = show(wrong.token) if past.recalls else f"token {wrong.token}"
            sentence = (
                f"generated token {number} is {token}, in an uncached run {show(wrong.cold)}; {off}"
            )
        yield Fact(
            word="wrong",
            sentence=sentence,
            fields={
                "index": wrong.step,
                "token": int(wrong.token),
                "cold": int(wrong.cold),
                "difference": float(wrong.difference),
            },
        )
    if past.leak is not None:
        leaked = {"text": past.leak.text, "cold": past.leak.cold, "steps": past.leak.requests}
        yield Fact(word="leak", sentence=str(past.leak), fields=leaked)
    if account.fault is not None:
        fields = {
            "place": account.fault.place,
            "position": account.fault.position,
            "matches": account.fault.matches,
            "holds": account.fault.holds,
            "expected": account.fault.expected,
            "comes_from": account.fault.comes_from,
        }
        sentence = because(account.fault, show)
        yield Fact(word="because", sentence=sentence, fields=fields)


def because(fault: Culprit, show: Callable[[int], str] = str) -> str:
    """The wrong memory in words: its correct prefix and the content behind it.

    `show`: a token in a sentence.
    """
    where = f"{PLACES[fault.place]} of layer {fault.layer}"
    holds, expected = (
        "none" if token is None else show(token) for token in (fault.holds, fault.expected)
    )
    described = _of_row if fault.place == "recurrent" else _of_cell
    return f"{where} {described(fault, holds, expected)}"


def _of_cell(fault: Culprit, holds: str, expected: str) -> str:
    """Sentence on a cell: surplus, missing, other, or out of order."""
    at, m, whose = f"at position {fault.position}", fault.matches, _whose(fault)
    if fault.expected is None and fault.holds is None:
        return f"has an empty row {at}, beside that of the token there"
    if fault.expected is None and m == fault.expected_tokens and fault.position >= fault.read_by:
        right = f"{_correct(m)}, then " if m else ""
        return f"{right or 'has '}{_counted(fault.holds_tokens - m, fault)} too many{whose}"
    if fault.expected is None:
        return f"holds a token too many {at}: {holds}{whose}"
    if fault.holds is None and m:
        missing = fault.expected_tokens - m
        return f"{_correct(m)}, then {missing} token{'s'[: missing != 1]} missing"
    if fault.holds is None:
        return f"holds nothing {at}, where token {expected} belongs"
    if fault.holds == fault.expected:
        return (
            f"holds the right token {at}{whose}, but computed after other tokens:"
            f" its history {_correct(m)}"
        )
    return f"holds token {holds}{whose} {at}, where this request has {expected}"


def _of_row(fault: Culprit, holds: str, expected: str) -> str:
    m, whose = fault.matches, _whose(fault)
    more = fault.holds_tokens - fault.expected_tokens
    right = f"{_correct(m)}, then " if m else ""
    if fault.expected is None:  # all that belongs there is there
        return f"{right or 'has '}{_counted(more, fault)} too many{whose}"
    if fault.holds is None:
        missing = fault.expected_tokens - m
        return f"{right or 'has '}{missing} token{'s'[: missing != 1]} missing"
    if fault.padding:
        padding = f"{fault.padding} padding token{'s'[: fault.padding != 1]}"
        return f"{right or 'has '}{padding} where this request has {expected}"
    count = ""
    if more:
        kind = "more" if more > 0 else "fewer"
        count = f"; {abs(more)} token{'s'[: abs(more) != 1]} {kind} than it should"
    if not m:
        return f"starts with token {holds}{whose}, where this prompt has {expected}{count}"
    return f"{_correct(m)}; token {m + 1} in it is {holds}{whose}, here it is {expected}{count}"


def _correct(count: int) -> str:
    return f"is correct for {count} token{'s'[: count != 1]}"


def _counted(count: int, fault: Culprit) -> str:
    kind = "padding token" if fault.padding >= count else "token"
    return f"{count} {kind}{'s'[: count != 1]}"


def _whose(fault: Culprit) -> str:
    return f" (from {fault.comes_from.removeprefix('step ')})" if fault.comes_from else ""


# --- the checkpoint that led to a wrong answer -----------------------------------------------


def checkpoint_facts(step: Step, past: Past) -> Iterator[Fact]:
    """The fact of a checkpoint that led to a wrong answer: its maker, and the erasures that kept
    it.
    """
    if step.answer not in {"diverged", "by-design"}:
        return
    names = [event.name() for event in step.events]
    at = names.index("checkpoint-restored") if "checkpoint-restored" in names else None
    if at is None:
        return
    restored = step.events[at].as_dict()
    word, maker = checkpoint_word(restored), past.maker(restored["made_by"])
    made = f", made by {maker}" if maker is not None else ""
    fields = {"checkpoint": word, "made_by": maker}
    yield Fact(word="restored", sentence=f"checkpoint {word}{made}", fields=fields)
    for name, kept in _kept(step, at, past, restored):
        n = kept["shared"]
        common = f"only {n} token{'s'[: n != 1]}" if n else "no tokens"
        yield Fact(
            word="kept by",
            sentence=(
                f"{name}, which should have erased it: {common} in common. Rule: erase if"
                f" {kept['rule']}. Here {kept['numbers']} is false, so it survived."
            ),
            fields={"step": name} | {k: kept[k] for k in ("shared", "rule", "numbers")},
        )


def _kept(
    step: Step, at: int, past: Past, restored: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    history = [(step.name, event) for event in step.events[:at]][::-1]
    for earlier in reversed(past.steps):
        history += [(earlier.name, event) for event in reversed(earlier.events)]
    for name, event in history:
        fields = event.as_dict()
        if fields["event"] == "checkpoint-kept" and _is_same(fields, restored):
            yield name, fields


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = {"n_tokens", "pos_min", "pos_max", "made_by"} & one.keys() & other.keys()
    return all(one[key] == other[key] for key in named)


def checkpoint_word(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint in words: its tokens if known, and its positions."""
    return f"{checkpoint.get('n_tokens', '')}[{checkpoint['pos_min']}..{checkpoint['pos_max']}]"


BROUGHT: Final = frozenset({"checkpoint-restored", "cache-entry-loaded", "prompt-loaded"})
"""Events that restored the memory of an answer."""


def with_statements(
    steps: Sequence[Step], records: Sequence[Record], leaks: Sequence[Leak | None] | None = None
) -> tuple[Step, ...]:
    """The steps of a run with verdicts and statements.

    `leaks`, of a model that recalls facts: one for each step; statements then show words.
    """
    explained = []
    for index, (step, record) in enumerate(zip(steps, records, strict=True)):
        past = Past(
            steps=tuple(steps[:index]),
            records=tuple(records),
            recalls=leaks is not None,
            leak=leaks[index] if leaks else None,
        )
        facts = tuple(_facts(step, record, past))
        explained.append(replace(step, facts=facts, finding=_finding(step, facts, past)))
    return tuple(explained)


def _facts(step: Step, record: Record, past: Past) -> Iterator[Fact]:
    if step.message:
        yield Fact(word="server", sentence=step.message)
    account = step.explanation
    if account is not None:
        yield from _reuse(step, account)
        if account.ideal > account.equal:
            yield from _forgotten(account, record, past)
        yield from wrong_facts(step, account, past)
    yield from checkpoint_facts(step, past)


# --- how much was reused ---------------------------------------------------------------------


def _reuse(step: Step, account: Account) -> Iterator[Fact]:
    fields = {"equal": account.equal, "of": step.prompt_tokens, "with": account.equal_with}
    yield Fact(word="match", sentence=account.sentences[0], fields=fields)
    for loss in step.why:
        yield Fact(
            word="rule",
            sentence=f"{loss.before} → {loss.after}  {loss.sentence}",
            fields={"id": loss.rule, "from": loss.before, "to": loss.after, **loss.detail},
        )
    if account.lost > 0 and account.ideal > account.equal:
        yield Fact(
            word="ideal",
            sentence=f"an ideal cache would have reused {account.ideal}",
            fields={"ideal": account.ideal},
        )


def _forgotten(account: Account, record: Record, past: Past) -> Iterator[Fact]:
    wanted = record.prompt[: account.ideal]
    alike = (request for request in past.earlier if _adapters(request) == _adapters(record))
    computed = next((request for request in alike if _text(request)[: len(wanted)] == wanted), None)
    if computed is None:
        return
    if computed.snapshot is record.snapshot:
        yield Fact(
            word="together",
            sentence=(
                f"{computed.name}, which arrived together with this one, computed these"
                f" {len(wanted)} tokens"
            ),
            fields={"computed": computed.name, "n_tokens": len(wanted)},
        )
        return
    together = groupby(past.earlier, key=lambda known: id(known.snapshot))
    moments = ([*group] for _, group in together)
    groups = [moment for moment in moments if moment[-1].snapshot is not record.snapshot]
    if not any(group[-1].holds for group in groups):
        return  # this server does not report its memory
    held = [any(tokens[: len(wanted)] == wanted for tokens in group[-1].holds) for group in groups]
    if held[-1]:
        return
    last = max((i for i, hold in enumerate(held) if hold), default=None)
    if last is None:  # not even the step that computed them left them behind
        last = next(i for i, group in enumerate(groups) if computed in group) - 1
    taken = _taken(groups[last], groups[last + 1], wanted) if last >= 0 else None
    names = " and ".join(group.name for group in groups[last + 1])
    if taken is not None:
        index, event = taken
        taker = groups[last + 1][index].name
        yield Fact(
            word="consumed",
            sentence=(
                f"{taker} loaded the prompt-cache entry ({event['n_tokens']} tokens) for the"
                f" {event['shared']} tokens in common; the entry left the prompt cache"
            ),
            fields={"step": taker, "n_tokens": event["n_tokens"], "shared": event["shared"]},
        )
        return
    yield Fact(
        word="gone",
        sentence=(
            f"{computed.name} computed these {len(wanted)} tokens;"
            f" they have been gone since {names}"
        ),
        fields={"computed": computed.name, "n_tokens": len(wanted), "since": names},
    )


def _adapters(record: Record) -> tuple[float, ...]:
    return () if record.reply is None else record.reply.strengths


def _text(record: Record) -> Tokens:
    reply = record.reply
    return () if reply is None or reply.error is not None else reply.written


def _taken(
    before: Sequence[Record], group: Sequence[Record], wanted: Tokens
) -> tuple[int, dict[str, Any]] | None:
    """The load that took the conversation with these tokens out of the prompt cache."""
    lengths = {len(tokens) for tokens in before[-1].holds if tokens[: len(wanted)] == wanted}
    for index, record in enumerate(group):
        for event in record.events:
            load = event.as_dict()
            if load.get("kept") is False and load.get("n_tokens") in lengths and "shared" in load:
                return index, load
    return None


# --- the verdict -----------------------------------------------------------------------------


def _fate_of(step: Step) -> Fate:
    if step.error is not None:
        known: Mapping[str, Fate] = {
            ABORTED: "aborted",
            ENDLESS: "hung",
            NO_ANSWER: "unanswered",
            NOT_RUN: "not-run",
            TIMEOUT: "not-run",
            CANCELLED: "right",
        }
        failed: Fate = "refused" if step.do == "complete" else "failed"
        return known.get(step.error, failed)
    if step.answer == "diverged":
        return "wrong"
    if step.answer == "by-design":
        return "by-design"
    return "lost" if step.reuse == "lost" else "right"


def _finding(step: Step, facts: Sequence[Fact], past: Past) -> Finding:
    fate, index = _fate_of(step), len(past.steps)
    if fate in {"wrong", "by-design"}:
        at = next((i for i, event in enumerate(step.events) if event.name() in BROUGHT), None)
        where = (index, len(step.events) - 1 if at is None else at)
    elif fate == "lost":
        first = next((i for i, event in enumerate(step.events) if event.loudness() == "loss"), 0)
        where = _consumer(facts, past) or (index, first)
    else:
        where = (index, len(step.events) - 1)
    ideal = 0 if step.explanation is None else step.explanation.ideal
    title = TITLES[fate].format(
        name=step.name,
        error=step.error,
        message=step.message,
        do=step.do,
        cached=step.cached,
        prompt_tokens=step.prompt_tokens,
        ideal=ideal,
        right=_right(step),
    )
    if fate == "wrong":  # a leak says all that the wrong token says, and whose it is
        said = {fact.word: fact.sentence for fact in facts if fact.word in {"wrong", "leak"}}
        for sentence in [said.get("leak", said.get("wrong", ""))] * bool(said):
            title += f" {sentence[:1].upper()}{sentence[1:]}."
    return Finding(fate=fate, title=title, step=where[0], event=where[1])


def _index(step: Step, *names: str) -> int | None:
    return next((i for i, event in enumerate(step.events) if event.name() in names), None)


def _consumer(facts: Sequence[Fact], past: Past) -> tuple[int, int] | None:
    fact = next((fact for fact in facts if fact.word == "consumed"), None)
    if fact is None:
        return None
    places = [i for i, step in enumerate(past.steps) if step.name == fact.fields["step"]]
    at = _index(past.steps[places[-1]], "cache-entry-loaded") if places else None
    return None if at is None else (places[-1], at)


TITLES: Final[Mapping[Fate, str]] = {
    "wrong": "Request {name} gets a wrong answer.",
    "by-design": "Request {name}: the answer differs, by design of the server.",
    "aborted": "Request {name} crashes the server.",
    "hung": "Request {name} is never answered: the server hangs.",
    "unanswered": "Request {name} gets no reply.",
    "refused": "Request {name} is refused: {error}.",
    "failed": "{name}: {do} failed, {error}.",
    "not-run": "Request {name} was not run: {message}.",
    "lost": (
        "Request {name}: {cached} of {prompt_tokens} tokens cached; an ideal cache would have had"
        " {ideal}."
    ),
    "right": "Request {name}: {right}.",
}


def _right(step: Step) -> str:
    if step.error is not None:
        return "cancelled by the client"
    if step.answer is None:
        return "no answer to compare"
    return "the answer is right" + (", nothing was lost" if step.reuse == "as declared" else "")


# --- several profiles side by side -----------------------------------------------------------


BESIDE: Final = "but with"
"""The word of a run that did better."""


def side_by_side(runs: Sequence[Run]) -> list[Run]:
    """Runs of one scenario, each step with the runs that did better."""
    return [
        replace(run, steps=tuple(_beside(run, i, runs) for i in range(len(run.steps))))
        for run in runs
    ]


def _beside(run: Run, index: int, runs: Sequence[Run]) -> Step:
    step = run.steps[index]
    better = tuple(
        Fact(
            word=BESIDE,
            sentence=(
                f"{other.profile.partition('@')[2]}: answer {SHOWN[there_is(twin.answer)]},"
                f" {twin.cached} of {twin.prompt_tokens} cached"
            ),
            fields={"profile": other.profile, "answer": twin.answer, "cached": twin.cached},
        )
        for other in runs
        for twin in (other.steps[index],)
        if _is_better(twin, step)
    )
    return replace(step, facts=step.facts + better) if better else step


def _is_better(twin: Step, step: Step) -> bool:
    """True if the other answer is correct where this one is not, or reuses more and is correct.

    No answer is better than that of a step that was not run.
    """
    if (
        step.error in {NOT_RUN, TIMEOUT}
        or twin.error is not None
        or twin.answer not in {"same", "rounding"}
    ):
        return False
    bad = step.answer in {"diverged", "by-design"} or step.error is not None
    return bad or (twin.cached or 0) > (step.cached or 0)
