"""The verdict on a reply, on two axes: answer and reuse.

The answer, against an uncached run of the same tokens, row by row:

    same        every row has the cold row's bits
    rounding    float rows are off by less than `BOUND` of their largest logit. Arithmetic here is
                invariant to cuts and layout, so this does not occur; if it does, suspect a layer
    by-design   rows differ, and the server reported that it keeps values of another context, or
                that it cut the prompt: they are those of the rest
    diverged    rows differ

The reuse, against the due reuse: that of an ideal cache, unless a scenario sets another.

    unsound       the answer diverged: memory of other tokens took part. Usually `cached` counts it,
                  but a request may also be served from undeclared leftovers
    lost          the answer stands, and fewer tokens were reused than was due
    as declared   the answer stands, and all that was due was reused
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from cachesim.engines.base import Reply
from cachesim.errors import ContractError
from cachesim.model.arithmetic import Network
from cachesim.model.recall import leaked_from, text_of
from cachesim.model.trace import Fault, Traced
from cachesim.typed import there_is
from cachesim.units import Array, Count, Token
from cachesim.verify.oracle import Oracle

Answer: TypeAlias = Literal["same", "rounding", "by-design", "diverged"]
Reuse: TypeAlias = Literal["as declared", "lost", "unsound"]

SHOWN: Final[Mapping[str, str]] = {
    "same": "matches",
    "rounding": "rounding",
    "by-design": "by design",
    "diverged": "WRONG",
}
"""The words that people read for an answer; JSON and TOML have the keys."""

BOUND: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongStep:
    """The first generated token whose logits differ from the uncached run."""

    step: int
    token: Token  # what greedy sampling makes of the reply's row
    cold: Token  # and of the cold one
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on an answer, and on its reuse."""

    answer: Answer
    reuse: Reuse
    max_difference: float
    wrong: WrongStep | None = None
    fault: Fault | None = None  # the first memory that was wrong, where a trace was kept


def judge(
    reply: Reply, oracle: Oracle, *, due: Count = Count(0), trace: Traced | None = None
) -> Verdict | None:
    """Compare a reply with the uncached run of its own tokens; a refused request has no verdict.

    Row `i` was taken after prompt + generated[:i], so its cold twin is the row at position
    `len(prompt) - 1 + i`. A reply that generated nothing is the same as any other such reply.
    """
    if reply.error is not None:
        return None
    if len(reply.logits) != len(reply.generated):
        msg = f"{len(reply.logits)} rows of logits for {len(reply.generated)} generated tokens"
        raise ContractError(msg)
    cold = reply.logits
    if reply.generated:
        cold = oracle.logits(reply.prompt, reply.generated, reply.strengths)
    differences = _differences(oracle.network, reply.logits, cold)
    largest = max(differences, default=0.0)
    answer = _answer(reply, cold, differences)
    if answer == "diverged" and reply.cut is not None and _is_of_the_rest(reply, oracle):
        answer = "by-design"
    wrong = _first_wrong(oracle.network, reply.logits, cold, differences) if largest else None
    fault = None
    if wrong is not None and trace is not None:
        tokens = reply.prompt + reply.generated[: wrong.step]
        fault = trace.fault(reply.logits[wrong.step], tokens, cached=reply.cached)
    return Verdict(
        answer=answer,
        reuse=_reuse(answer, reply.cached or Count(0), due),
        max_difference=largest,
        wrong=wrong,
        fault=fault,
    )


def _is_of_the_rest(reply: Reply, oracle: Oracle) -> bool:
    """True if a cut prompt is answered as what is left of it: the server says `truncated`."""
    cold = oracle.logits(there_is(reply.cut), reply.generated, reply.strengths)
    differences = _differences(oracle.network, reply.logits, cold)
    return _answer(reply, cold, differences) != "diverged"


def worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """The worst verdict of several completions of one prompt."""
    known = [verdict for verdict in verdicts if verdict is not None]
    if len(known) < 2:
        return known[0] if known else None
    order = get_args(Answer)
    return max(known, key=lambda verdict: order.index(verdict.answer))


def _differences(network: Network, rows: Array, cold: Array) -> list[float]:
    if not network.difference(rows, cold):
        return [0.0] * len(rows)
    return [network.difference(one, other) for one, other in zip(rows, cold, strict=True)]


def _answer(reply: Reply, cold: Array, differences: list[float]) -> Answer:
    if not any(differences):
        return "same"
    if reply.approximated is not None:
        return "by-design"
    return "rounding" if _within_bound(cold, differences) else "diverged"


def _within_bound(cold: Array, differences: list[float]) -> bool:
    if not np.issubdtype(cold.dtype, np.floating):
        return False
    scales = np.abs(cold).max(axis=1)
    return bool((np.array(differences) <= BOUND * scales).all())


def _first_wrong(network: Network, rows: Array, cold: Array, differences: list[float]) -> WrongStep:
    step = next(i for i, difference in enumerate(differences) if difference)
    return WrongStep(
        step=step,
        token=network.sample(rows[step]),
        cold=network.sample(cold[step]),
        difference=differences[step],
    )


def _reuse(answer: Answer, cached: Count, due: Count) -> Reuse:
    if answer == "diverged":
        return "unsound"
    return "lost" if cached < due else "as declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A reply token that is a value of other requests, and of none of the request's own facts."""

    index: int  # of the generated token
    text: str
    cold: str  # the token of an uncached run
    requests: tuple[str, ...]  # that contained it

    def __str__(self) -> str:
        return (
            f"the reply is {self.text}, an uncached run replies {self.cold};"
            f" only {' and '.join(self.requests)} contained {self.text}"
        )


def leak_of(
    reply: Reply, oracle: Oracle, others: Iterable[tuple[str, Sequence[int]]]
) -> Leak | None:
    """The first leak of a reply; `others` are earlier requests with all their tokens."""
    if reply.error is not None or not reply.generated:
        return None
    cold = oracle.logits(reply.prompt, reply.generated, reply.strengths)
    sampled = zip(reply.logits.argmax(axis=1), cold.argmax(axis=1), strict=True)
    others = list(others)
    for index, (token, right) in enumerate((int(one), int(other)) for one, other in sampled):
        own = reply.prompt + reply.generated[:index]
        if token == right or not (names := leaked_from(token, own, others)):
            continue
        return Leak(
            index=index, text=text_of((token,)), cold=text_of((right,)), requests=tuple(names)
        )
    return None
