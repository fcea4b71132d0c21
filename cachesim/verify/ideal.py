"""The ideal cache: one that has every state of every prefix that its server ever computed."""

from cachesim.engines.base import Reply
from cachesim.model.adapters import Strengths
from cachesim.units import Count, Token, Tokens


class IdealCache:
    """A trie for each set of adapters, of all tokens that went through; each node is a prefix.

    What it would reuse is the measure of every policy: the longest prefix computed before, but for
    the last token of the prompt, which is always processed because its logits are wanted.
    """

    def __init__(self) -> None:
        self._children: list[dict[Token, int]] = []
        self._roots: dict[Strengths, int] = {}

    def due(self, reply: Reply) -> Count:
        """What it would have reused for a request; at least what the server itself found equal.

        Where several sets of adapters were in force, a server may find equal what another one
        computed: then only what is known of the request's own set is due.
        """
        known = self.common(reply.prompt, reply.strengths)
        if self._roots.keys() <= {reply.strengths}:
            known = max(known, reply.equal)
        return Count(max(0, min(known, len(reply.prompt) - 1)))

    def common(self, tokens: Tokens, strengths: Strengths = ()) -> Count:
        """How many leading tokens were computed before, in this order, under these adapters."""
        node, count = self._root(strengths), 0
        for token in tokens:
            child = self._children[node].get(token)
            if child is None:
                break
            node, count = child, count + 1
        return Count(count)

    def others(self, tokens: Tokens, index: int, strengths: Strengths = ()) -> tuple[Token, ...]:
        """What else followed `tokens[:index]` so far under these adapters, oldest first."""
        node = self._root(strengths)
        for token in tokens[:index]:
            child = self._children[node].get(token)
            if child is None:
                return ()
            node = child
        return tuple(token for token in self._children[node] if token != tokens[index])

    def remember(self, reply: Reply) -> None:
        """Learn what a request computed: its prompt and all it generated but the last token."""
        if reply.error is None:
            self._learn(reply.prompt + reply.generated[:-1], reply.strengths)

    def _root(self, strengths: Strengths) -> int:
        """The first node of a set's trie."""
        if strengths not in self._roots:
            self._roots[strengths] = len(self._children)
            self._children.append({})
        return self._roots[strengths]

    def _learn(self, tokens: Tokens, strengths: Strengths) -> None:
        node = self._root(strengths)
        for token in tokens:
            children = self._children[node]
            if token not in children:
                children[token] = len(self._children)
                self._children.append({})
            node = children[token]
