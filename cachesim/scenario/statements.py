"""What is said of a step, composed here and nowhere else: reports, pages and lessons show it.

Each statement is a claim about the run: its numbers come from the step's own values, from the
events of this step and of earlier ones, and from what the server held in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.events import Event
from cachesim.scenario.result import Account, Fact, Fate, Finding, Run, Step
from cachesim.scenario.session import ABORTED, CANCELLED, ENDLESS, NOT_RUN, TIMEOUT, Record
from cachesim.scenario.wrong import Past, slipped, wrong_facts
from cachesim.units import Tokens

BROUGHT: Final = frozenset({"checkpoint-restored", "cache-entry-loaded", "prompt-loaded"})
"""Events that brought back what an answer was computed on."""


def with_statements(steps: Sequence[Step], records: Sequence[Record]) -> tuple[Step, ...]:
    """The steps of a run, each with its verdict and all that is to be said of it."""
    told = []
    for index, (step, record) in enumerate(zip(steps, records, strict=True)):
        past = Past(steps=tuple(steps[:index]), records=tuple(records))
        facts = tuple(_facts(step, record, past))
        told.append(replace(step, facts=facts, finding=_finding(step, facts, past)))
    return tuple(told)


def _facts(step: Step, record: Record, past: Past) -> Iterator[Fact]:
    if step.message:
        yield Fact(word="server", sentence=step.message)
    account = step.explanation
    if account is not None:
        yield from _reuse(step, account)
        if account.ideal > account.equal:
            yield from _gone(account, record, past)
        yield from wrong_facts(step, account)
    yield from slipped(step, past)


# --- how much was reused ---------------------------------------------------------------------


def _reuse(step: Step, account: Account) -> Iterator[Fact]:
    fields = {"equal": account.equal, "of": step.prompt_tokens, "with": account.equal_with}
    yield Fact(word="equal", sentence=account.sentences[0], fields=fields)
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


def _gone(account: Account, record: Record, past: Past) -> Iterator[Fact]:
    wanted = record.prompt[: account.ideal]
    alike = (each for each in past.earlier if _adapters(each) == _adapters(record))
    computed = next((each for each in alike if _text(each)[: len(wanted)] == wanted), None)
    if computed is None:
        return
    if computed.snapshot is record.snapshot:
        yield Fact(
            word="together",
            sentence=(
                f"step {computed.name}, which arrived together with this one, computed these"
                f" {len(wanted)} tokens"
            ),
            fields={"computed": computed.name, "n_tokens": len(wanted)},
        )
        return
    groups = [each for each in _by_moment(past.earlier) if each[-1].snapshot is not record.snapshot]
    if not any(group[-1].holds for group in groups):
        return  # this server does not say what it holds
    held = [any(each[: len(wanted)] == wanted for each in group[-1].holds) for group in groups]
    if held[-1]:
        return
    last = max((i for i, each in enumerate(held) if each), default=None)
    if last is None:  # not even the step that computed them left them behind
        last = next(i for i, group in enumerate(groups) if computed in group) - 1
    taken = _taken(groups[last], groups[last + 1], wanted) if last >= 0 else None
    names = " and ".join(each.name for each in groups[last + 1])
    if taken is not None:
        index, event = taken
        taker = groups[last + 1][index].name
        yield Fact(
            word="consumed",
            sentence=(
                f"step {taker} loaded the parked {event['n_tokens']} tokens for the"
                f" {event['shared']} it shares with them; the entry left the prompt cache"
            ),
            fields={"step": taker, "n_tokens": event["n_tokens"], "shared": event["shared"]},
        )
        return
    yield Fact(
        word="gone",
        sentence=(
            f"step {computed.name} computed these {len(wanted)} tokens;"
            f" they have been gone since step {names}"
        ),
        fields={"computed": computed.name, "n_tokens": len(wanted), "since": names},
    )


def _adapters(record: Record) -> tuple[float, ...]:
    return () if record.reply is None else record.reply.strengths


def _text(record: Record) -> Tokens:
    reply = record.reply
    if reply is None or reply.error is not None:
        return ()
    return reply.prompt + reply.generated[:-1]


def _by_moment(records: Sequence[Record]) -> list[list[Record]]:
    groups: list[list[Record]] = []
    for each in records:
        if groups and groups[-1][-1].snapshot is each.snapshot:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _taken(
    before: Sequence[Record], group: Sequence[Record], wanted: Tokens
) -> tuple[int, dict[str, Any]] | None:
    """The load that took the conversation with these tokens out of the prompt cache."""
    lengths = {len(each) for each in before[-1].holds if each[: len(wanted)] == wanted}
    for index, record in enumerate(group):
        for event in record.events:
            told = event.as_dict()
            if told.get("kept") is False and told.get("n_tokens") in lengths and "shared" in told:
                return index, told
    return None


# --- the verdict -----------------------------------------------------------------------------


def _fate_of(step: Step) -> Fate:
    if step.error is not None:
        known: Mapping[str, Fate] = {
            ABORTED: "aborted",
            ENDLESS: "hung",
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
        at = next((i for i, each in enumerate(step.events) if each.name() in BROUGHT), None)
        where = (index, len(step.events) - 1 if at is None else at)
    elif fate == "lost":
        where = _consumer(facts, past) or (index, max(0, _first_loss(step.events)))
    else:
        where = (index, len(step.events) - 1)
    return Finding(fate=fate, title=_title(step, fate, facts), step=where[0], event=where[1])


def _index(step: Step, *names: str) -> int | None:
    return next((i for i, each in enumerate(step.events) if each.name() in names), None)


def _consumer(facts: Sequence[Fact], past: Past) -> tuple[int, int] | None:
    fact = next((each for each in facts if each.word == "consumed"), None)
    if fact is None:
        return None
    found = [i for i, each in enumerate(past.steps) if each.name == fact.fields["step"]]
    at = _index(past.steps[found[-1]], "cache-entry-loaded") if found else None
    return None if at is None else (found[-1], at)


def _first_loss(events: Sequence[Event]) -> int:
    return next((i for i, each in enumerate(events) if each.loudness() == "loss"), -1)


TITLES: Final[Mapping[Fate, str]] = {
    "wrong": "Step {name} gets a wrong answer.",
    "by-design": "Step {name}: the answer differs, by design of the server.",
    "aborted": "Step {name} ends the server process.",
    "hung": "Step {name} is never answered: the server hangs.",
    "refused": "Step {name} is refused: {error}.",
    "failed": "Step {name}: {do} failed, {error}.",
    "not-run": "Step {name} was not run: {message}.",
    "lost": (
        "Step {name} reuses {cached} of {prompt_tokens} tokens; an ideal cache would have reused"
        " {ideal}."
    ),
    "right": "Step {name} went as it should.",
}


def _title(step: Step, fate: Fate, facts: Sequence[Fact]) -> str:
    ideal = 0 if step.explanation is None else step.explanation.ideal
    title = TITLES[fate].format(
        name=step.name,
        error=step.error,
        message=step.message,
        do=step.do,
        cached=step.cached,
        prompt_tokens=step.prompt_tokens,
        ideal=ideal,
    )
    wrong = next((each.sentence for each in facts if each.word == "wrong"), "")
    return f"{title} {wrong[:1].upper()}{wrong[1:]}." if fate == "wrong" and wrong else title


# --- several profiles side by side -----------------------------------------------------------


def side_by_side(runs: Sequence[Run]) -> list[Run]:
    """Runs of one scenario, each step knowing where the same step went better."""
    return [
        replace(run, steps=tuple(_beside(run, i, runs) for i in range(len(run.steps))))
        for run in runs
    ]


def _beside(run: Run, index: int, runs: Sequence[Run]) -> Step:
    step = run.steps[index]
    better = tuple(
        Fact(
            word="but with",
            sentence=(
                f"{other.profile.partition('@')[2]}: answer {twin.answer},"
                f" {twin.cached} of {twin.prompt_tokens} reused"
            ),
            fields={"profile": other.profile, "answer": twin.answer, "cached": twin.cached},
        )
        for other in runs
        for twin in (other.steps[index],)
        if _is_better(twin, step)
    )
    return replace(step, facts=step.facts + better) if better else step


def _is_better(twin: Step, step: Step) -> bool:
    """A right answer where this one is wrong or missing, or more reused with a right answer.

    A step that was not run asked nothing: nothing is better than it.
    """
    if (
        step.error in {NOT_RUN, TIMEOUT}
        or twin.error is not None
        or twin.answer not in {"same", "rounding"}
    ):
        return False
    bad = step.answer in {"diverged", "by-design"} or step.error is not None
    return bad or (twin.cached or 0) > (step.cached or 0)
