"""The ideal cache: one that has every state of every prefix that its server ever computed."""

from dataclasses import dataclass, field

from cachesim.engines.base import Reply
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.adapters import Strengths
from cachesim.units import Count, Token, Tokens


@dataclass(slots=True)
class _Stretch:
    """Tokens in a row after which histories end or part; what follows, oldest first."""

    tokens: Tokens
    children: "dict[Token, _Stretch]" = field(default_factory=dict)

    def part_at(self, count: int) -> None:
        """Its tokens from `count` on become a stretch of their own."""
        rest = _Stretch(self.tokens[count:], self.children)
        self.tokens, self.children = self.tokens[:count], {rest.tokens[0]: rest}


class IdealCache:
    """A tree for each set of adapters, of all tokens that went through; any prefix is in it.

    What it would reuse is the measure of every policy: the longest prefix computed before, but for
    the last token of the prompt, which is always processed because its logits are wanted.
    """

    def __init__(self) -> None:
        self._roots: dict[Strengths, _Stretch] = {}

    def due(self, reply: Reply) -> Count:
        """Tokens that it would have reused; at least those that the server itself found equal.

        Where several sets of adapters were in force, a server may find equal what another one
        computed: then only what is known of the request's own set is due.
        """
        known = self.common(reply.prompt, reply.strengths)
        if self._roots.keys() <= {reply.strengths}:
            known = max(known, reply.equal)
        return Count(max(0, min(known, len(reply.prompt) - 1)))

    def common(self, tokens: Tokens, strengths: Strengths = ()) -> Count:
        """The number of leading tokens computed before, in this order, under these adapters."""
        return Count(self._follow(tokens, strengths)[1])

    def others(self, tokens: Tokens, index: int, strengths: Strengths = ()) -> tuple[Token, ...]:
        """Tokens that followed `tokens[:index]` so far under these adapters, oldest first."""
        last, known, within = self._follow(tokens[:index], strengths)
        if known < index:
            return ()
        following = last.tokens[within : within + 1] or tuple(last.children)
        return tuple(token for token in following if token != tokens[index])

    def remember(self, reply: Reply) -> None:
        """Learn what a request computed: its prompt and all it generated but the last token."""
        if reply.error is None:
            self._learn(reply.prompt + reply.generated[:-1], reply.strengths)

    def _learn(self, tokens: Tokens, strengths: Strengths) -> None:
        last, known, within = self._follow(tokens, strengths)
        if known == len(tokens):
            return
        if within < len(last.tokens):
            last.part_at(within)
        last.children[tokens[known]] = _Stretch(tokens[known:])

    def _follow(self, tokens: Tokens, strengths: Strengths) -> tuple[_Stretch, int, int]:
        """The stretch where tokens end or part from all known ones; how many are known.

        And how many of them lie within that stretch.
        """
        node = self._roots.setdefault(strengths, _Stretch(()))
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
