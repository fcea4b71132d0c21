"""The oracle, the verdict, the explanation of a miss.

oracle = Oracle(network)                            one for each server
ideal = IdealCache()

verdict = judge(reply, oracle, due=ideal.due(reply))
account = explain(reply, ideal, parts=parts)
ideal.remember(reply)                               in the order of the replies
"""

from cachesim.verify.explain import (
    Divergence,
    Explanation,
    IdealCache,
    Part,
    adds_up,
    explain,
    sentence,
)
from cachesim.verify.oracle import Oracle, cold_logits
from cachesim.verify.verdict import BOUND, Answer, Reuse, Verdict, WrongStep, judge

__all__ = [
    "BOUND", "Answer", "Divergence", "Explanation", "IdealCache", "Oracle", "Part", "Reuse",
    "Verdict", "WrongStep", "adds_up", "cold_logits", "explain", "judge", "sentence",
]  # fmt: skip
