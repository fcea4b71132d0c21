"""The oracle's word on each step: whether the answer was right, and why not more was reused."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachesim.engines.base import Reply
from cachesim.model.trace import Fault
from cachesim.scenario.session import Record, Session
from cachesim.units import Count, Tokens
from cachesim.verify.explain import explain
from cachesim.verify.ideal import IdealCache
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import Verdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What verification adds to a step; all empty without it."""

    answer: str | None = None
    max_difference: float | None = None
    reuse: str | None = None
    explanation: dict[str, Any] | None = None


class Witness:
    """Holds every reply of a session against the cold recompute."""

    def __init__(self, session: Session, oracle: Oracle | None = None) -> None:
        """`oracle` may have been asked before, about the same network."""
        shared = oracle is not None and oracle.network is session.network
        self.oracle = oracle if oracle and shared else Oracle(session.network)
        self.trace = session.trace
        self.ideal = IdealCache()
        self.heard: list[Record] = []

    def judge(self, record: Record) -> Evidence:
        """The evidence on one step; a step without an answer has none."""
        reply = record.reply
        if reply is None or record.step.do != "complete":
            return Evidence()
        account = explain(reply, self.ideal, parts=record.parts)
        due = account.ideal if account else Count(0)
        replies = (reply, *record.children)
        verdicts = [judge(each, self.oracle, due=due, trace=self.trace) for each in replies]
        verdict = worst(verdicts)
        self.ideal.remember(reply)
        explanation = None
        if account is not None:
            explanation = {k: v for k, v in account.as_dict().items() if k not in LEFT_OUT}
            explanation |= self._wrong(verdict)
        self.heard.append(record)
        if verdict is None:
            return Evidence(explanation=explanation)
        return Evidence(
            answer=verdict.answer,
            max_difference=float(verdict.max_difference),
            reuse=verdict.reuse,
            explanation=explanation,
        )

    def _wrong(self, verdict: Verdict | None) -> dict[str, Any]:
        if verdict is None or verdict.wrong is None:
            return {"wrong": None, "fault": None}
        fault = None if verdict.fault is None else self._fault(verdict.fault)
        return {"wrong": asdict(verdict.wrong), "fault": fault}

    def _fault(self, fault: Fault) -> dict[str, Any]:
        """The first wrong memory; its tokens, and the step and span that they came from."""
        return {
            "layer": fault.layer,
            "place": fault.place,
            "read_by": int(fault.token),
            "position": int(fault.position),
            "holds": last_of(fault.holds),
            "expected": last_of(fault.expected),
            "holds_tokens": len(fault.holds),
            "comes_from": origin(fault.holds, self.heard),
        }


def worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """The verdict on several completions of one prompt: that on the worst of them."""
    order = ("same", "rounding", "by-design", "diverged")
    found = [each for each in verdicts if each is not None]
    return max(found, key=lambda each: order.index(each.answer), default=None)


LEFT_OUT = frozenset({"losses", "prompt_tokens", "cached"})
"""What the step says itself."""


def last_of(tokens: Tokens) -> int | None:
    """The token that a history ends with."""
    return int(tokens[-1]) if tokens else None


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
