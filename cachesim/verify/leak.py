"""Values of other requests in a reply, where the model recalls facts of its prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachesim.engines.base import Reply
from cachesim.model.recall import leaked_from, text_of
from cachesim.verify.oracle import Oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A reply token that is a value of other requests, and of none of the request's own facts."""

    index: int  # of the generated token
    text: str
    cold: str  # the token of a cold run
    requests: tuple[str, ...]  # that contained it

    def __str__(self) -> str:
        which = "only step" if len(self.requests) == 1 else "only steps"
        return (
            f"the reply is {self.text}, which {which} {' and '.join(self.requests)} contained;"
            f" a cold run replies {self.cold}"
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
