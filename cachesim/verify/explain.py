"""The account of a miss, as data: the equal tokens, the divergence, the rules that lowered it.

    equal to the best thing in memory   --rule-->  ...  --rule-->   reused
            196                                0            96          96

The rules and their numbers are the engine's own entries. Nothing here derives them again; they are
only added up, and must come out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cachesim.engines.base import Reply
from cachesim.engines.causes import Loss
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import ContractError
from cachesim.model.adapters import Strengths
from cachesim.units import Count, Pos, Token, Tokens

# The ideal cache: one that has every state of every prefix that its server ever computed.


@dataclass(slots=True)
class _RadixNode:
    """A run of tokens, a node of a radix tree; continuations oldest first."""

    tokens: Tokens
    children: "dict[Token, _RadixNode]" = field(default_factory=dict)

    def part_at(self, count: int) -> None:
        """Split the run after `count` tokens."""
        rest = _RadixNode(self.tokens[count:], self.children)
        self.tokens, self.children = self.tokens[:count], {rest.tokens[0]: rest}


class IdealCache:
    """A radix tree of all processed tokens for each set of adapters; any prefix is reusable.

    Its reuse is the measure of every policy: the longest prefix computed before, without the last
    token of the prompt, which is always processed for its logits.
    """

    def __init__(self) -> None:
        self._roots: dict[Strengths, _RadixNode] = {}

    def due(self, reply: Reply) -> Count:
        """Tokens that an ideal cache reuses; at least those that the server matched.

        With several sets of adapters a server may match tokens computed under another one: then
        only tokens computed under the request's own set are due.
        """
        known = self.common(reply.prompt, reply.strengths)
        if self._roots.keys() <= {reply.strengths}:
            known = max(known, reply.equal)
        return Count(max(0, min(known, len(reply.prompt) - 1)))

    def common(self, tokens: Tokens, strengths: Strengths = ()) -> Count:
        """The number of leading tokens computed before, under these adapters."""
        return Count(self._follow(tokens, strengths)[1])

    def others(self, tokens: Tokens, index: int, strengths: Strengths = ()) -> tuple[Token, ...]:
        """Earlier tokens after `tokens[:index]` under these adapters, oldest first."""
        last, known, within = self._follow(tokens[:index], strengths)
        if known < index:
            return ()
        following = last.tokens[within : within + 1] or tuple(last.children)
        return tuple(token for token in following if token != tokens[index])

    def remember(self, reply: Reply) -> None:
        """Add a request's tokens: its prompt and all generated ones but the last."""
        if reply.error is None:
            tokens = reply.written
            last, known, within = self._follow(tokens, reply.strengths)
            if known == len(tokens):
                return
            if within < len(last.tokens):
                last.part_at(within)
            last.children[tokens[known]] = _RadixNode(tokens[known:])

    def _follow(self, tokens: Tokens, strengths: Strengths) -> tuple[_RadixNode, int, int]:
        """The node where tokens end or diverge from all earlier ones, and the number of matched
        tokens.

        And how many of them are within that node.
        """
        node = self._roots.setdefault(strengths, _RadixNode(()))
        known = within = 0
        while known < len(tokens):
            child = node.children.get(tokens[known])
            if child is None:
                break
            node = child
            end = known + len(node.tokens)
            within = get_common_prefix(node.tokens, tokens[known:end])
            known += within
            if within < len(node.tokens):
                break
        return node, known, within


NOT_HELD: Final = "not-held"
"""The cause of tokens computed earlier that the server no longer holds or did not find."""


UNNAMED: Final = "prompt"
"""Name of a part that is a whole list of tokens; it is not printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A named range `[start, end)` of a prompt: a span, a message, an earlier reply."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token of a prompt that differs from all earlier continuations."""

    index: Pos
    token: Token
    others: tuple[Token, ...]  # what else ever followed, anywhere; empty where nothing did
    there: Token | None = None  # what follows in the thing that matched best, if that is known
    within: str | None = None  # the named part of the prompt that contains it


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The complete account of a request's reuse."""

    prompt_tokens: Count
    cached: Count
    equal: Count
    equal_with: str
    parting: Divergence | None  # None where the whole prompt was equal
    losses: tuple[Loss, ...]
    ideal: Count  # what an ideal cache, one with every state, would have reused
    lost: Count  # against that one: the loss of the policy, as one number
    sentences: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON."""
        return asdict(self) | {"losses": [loss.as_dict() for loss in self.losses]}


def explain(
    reply: Reply,
    ideal: IdealCache,
    *,
    parts: Sequence[Part] = (),
    matched: Tokens | None = None,
    show: Callable[[int], str] = str,
    memory: str = "memory",
) -> Explanation | None:
    """Account for a reply's reuse, given the tokens that its server computed before it.

    `matched`: the tokens of the best match, where known. `show`: a token in a sentence.
    `memory`: the server's, or that of one of its models.

    None for a refused request: nothing was reused or processed.
    """
    if reply.error is not None or reply.cached is None:
        return None
    adds_up(reply)
    due = ideal.due(reply)
    divergence = _divergence(reply, ideal, parts, matched)
    return Explanation(
        prompt_tokens=Count(len(reply.prompt)),
        cached=reply.cached,
        equal=reply.equal,
        equal_with=reply.equal_with,
        parting=divergence,
        losses=reply.losses,
        ideal=due,
        lost=Count(max(0, due - reply.cached)),
        sentences=(
            _beginning(reply, ideal, divergence, matched, show, memory=memory),
            *map(sentence, reply.losses),
        ),
    )


def adds_up(reply: Reply) -> None:
    """Raise ContractError unless matched minus cached tokens equal the sum over the rules."""
    if reply.cached is None:
        return
    lost = sum(loss.before - loss.after for loss in reply.losses)
    if reply.equal - reply.cached != lost:
        chain = ", ".join(f"{loss.rule} {loss.before} to {loss.after}" for loss in reply.losses)
        raise ContractError(
            f"{reply.equal} equal and {reply.cached} cached tokens are {reply.equal - reply.cached}"
            f" apart, but the rules account for {lost}: {chain or 'no rule'}"
        )


def lost_below(reply: Reply, bound: int) -> Counter[str]:
    """The tokens of a prompt up to a bound that were not reused, by cause.

    A token belongs to the rule that lowered the number below it last: what a checkpoint wins back
    after a refused cut is lost to nothing.

        |<-- cached -->|<-- rule -->|<-- rule -->|<-- not held -->|
        0                                      equal            bound
    """
    left: list[tuple[str, int, int]] = []  # rule, and the tokens that it took; the lowest last
    for loss in reply.losses:
        while left and left[-1][1] < loss.after:
            rule, _, end = left.pop()
            if end > loss.after:
                left.append((rule, loss.after, end))
        if loss.after < loss.before:
            left.append((loss.rule, loss.after, loss.before))
    lost: Counter[str] = Counter()
    for rule, start, end in left:
        lost[rule] += max(0, min(end, bound) - start)
    lost[NOT_HELD] += max(0, bound - int(reply.cached or 0) - lost.total())
    return +lost


def _divergence(
    reply: Reply, ideal: IdealCache, parts: Sequence[Part], matched: Tokens | None
) -> Divergence | None:
    index = int(reply.equal)
    if index >= len(reply.prompt):
        return None
    return Divergence(
        index=Pos(index),
        token=reply.prompt[index],
        others=ideal.others(reply.prompt, index, reply.strengths),
        there=matched[index] if matched is not None and index < len(matched) else None,
        within=next(
            (p.name for p in parts if p.start <= index < p.end and p.name != UNNAMED), None
        ),
    )


def _beginning(
    reply: Reply,
    ideal: IdealCache,
    first: Divergence | None,
    matched: Tokens | None,
    show: Callable[[int], str],
    *,
    memory: str,
) -> str:
    count = len(reply.prompt)
    if first is None:
        every = f"All {count} tokens match" if count > 1 else "The one token matches"
        return f"{every} {reply.equal_with}."
    if not reply.equal:
        return f"No prefix of this {count}-token prompt is in {memory}."
    some = (
        f"{reply.equal} of {count} tokens match"
        if reply.equal > 1
        else f"1 of {count} tokens matches"
    )
    held = reply.equal_with
    equal = f"{some} {held}"
    token = f"oken {first.index}" + (f" (in {first.within})" if first.within else "")
    if first.there is not None:
        one, other = show(first.token), show(first.there)
        return f"{equal}. T{token} is {one} in the prompt, {other} in {held}."
    if ideal.common(reply.prompt, reply.strengths) <= reply.equal and not first.others:
        return f"{equal}. T{token} and all after it are new."
    if matched is not None:
        return f"{equal}, which ends before t{token}."
    return f"{equal}. T{token} was not found."


def sentence(loss: Loss) -> str:
    """An entry of "why": the event, and the number of tokens before and after."""
    return f"{loss.sentence}: {loss.before} to {loss.after}."
