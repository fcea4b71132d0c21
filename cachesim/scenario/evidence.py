"""The oracle's word on each step: whether the answer was right, and why not more was reused."""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.engines.base import Reply
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.trace import Fault
from cachesim.scenario.result import Account, Culprit
from cachesim.scenario.session import Record, Session
from cachesim.units import Count, Token, Tokens
from cachesim.verify.explain import Explanation, explain
from cachesim.verify.ideal import IdealCache
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import Answer, Reuse, Verdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What verification adds to a step; all empty without it."""

    answer: Answer | None = None
    max_difference: float | None = None
    reuse: Reuse | None = None
    account: Account | None = None
    fault: Fault | None = None


class Witness:
    """Holds every reply of a session against the cold recompute."""

    def __init__(self, session: Session, oracle: Oracle | None = None) -> None:
        """`oracle` may have been asked before, about the same network."""
        shared = oracle is not None and oracle.network is session.network
        self.oracle = oracle if oracle and shared else Oracle(session.network)
        self.trace = session.trace
        self.padding = session.engine.padding
        self.ideal = IdealCache()
        self.heard: list[Record] = []

    def judge(self, record: Record) -> Evidence:
        """The evidence on one step; a step without an answer has none."""
        reply = record.reply
        if reply is None or record.step.do != "complete":
            return Evidence()
        account = explain(reply, self.ideal, parts=record.parts, matched=record.matched)
        due = account.ideal if account else Count(0)
        replies = (reply, *record.children)
        verdicts = [judge(each, self.oracle, due=due, trace=self.trace) for each in replies]
        verdict = worst(verdicts)
        self.ideal.remember(reply)
        told = None if account is None else self._account(account, verdict)
        self.heard.append(record)
        if verdict is None:
            return Evidence(account=told)
        return Evidence(
            answer=verdict.answer,
            max_difference=float(verdict.max_difference),
            reuse=verdict.reuse,
            account=told,
            fault=verdict.fault,
        )

    def _account(self, account: Explanation, verdict: Verdict | None) -> Account:
        fault = None if verdict is None else verdict.fault
        return Account(
            equal=account.equal,
            equal_with=account.equal_with,
            parting=account.parting,
            ideal=account.ideal,
            lost=account.lost,
            sentences=account.sentences,
            wrong=None if verdict is None else verdict.wrong,
            fault=None if fault is None else culprit(fault, self.heard, self.padding),
        )


def worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """The verdict on several completions of one prompt: that on the worst of them."""
    order = ("same", "rounding", "by-design", "diverged")
    found = [each for each in verdicts if each is not None]
    return max(found, key=lambda each: order.index(each.answer), default=None)


def culprit(fault: Fault, heard: Sequence[Record], padding: Token | None) -> Culprit:
    """Where the history of a wrong memory and the right one part, and whose token stands there.

        holds      [ right ........ | other ..... )
                   0             matches
        expected   [ right ........ | ........ )

    Of a cell only its own token is looked at: it lies at `position`, and the one that belongs there
    is the last expected one. Of cells too many or missing behind right ones it is the first one.
    """
    matches = get_common_prefix(fault.holds, fault.expected)
    position = matches if fault.place == "recurrent" else int(fault.position)
    last = fault.extra and fault.position >= fault.token
    behind = fault.short or (last and matches == len(fault.expected))
    if fault.place == "recurrent" or behind:
        holds, expected = _token_at(fault.holds, matches), _token_at(fault.expected, matches)
        history = fault.holds[: matches + 1]
    else:
        holds, history = _token_at(fault.holds, -1), fault.holds
        expected = None if fault.extra else _token_at(fault.expected, -1)
    return Culprit(
        layer=fault.layer,
        place=fault.place,
        read_by=int(fault.token),
        position=position,
        holds=holds,
        expected=expected,
        holds_tokens=len(fault.holds),
        expected_tokens=len(fault.expected),
        matches=matches,
        padding=_leading(fault.holds[matches:], padding),
        comes_from=origin(history, heard) if holds is not None else None,
    )


def _leading(tokens: Tokens, padding: Token | None) -> int:
    return next((i for i, each in enumerate(tokens) if each != padding), len(tokens))


def _token_at(tokens: Tokens, index: int) -> int | None:
    return int(tokens[index]) if -len(tokens) <= index < len(tokens) else None


def origin(tokens: Tokens, records: Sequence[Record]) -> str | None:
    """Where the last token of a history was first seen, as `step A, a` or `step A, its reply`."""
    at = len(tokens) - 1
    for record in records:
        if at < 0 or record.reply is None:
            continue
        if whole(record.reply)[: at + 1] == tokens:
            name = next((p.name for p in record.parts if p.start <= at < p.end), "its reply")
            return f"step {record.name}, {name}"
    return None


def whole(reply: Reply) -> Tokens:
    """Everything that a request put into memory."""
    return reply.prompt + reply.generated[:-1]
