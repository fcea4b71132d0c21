"""`PromptTrie`: values under (model, tokens), found by what they share with a prompt."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from cachesim.engines.mlx_lm.caches.raised import UpstreamKeyError, UpstreamTypeError

V = TypeVar("V")

Key: TypeAlias = Sequence[int]
"""Tokens as the caller has them; the store keeps the very object (an oddity of upstream's)."""


class _Nothing:
    """No value here; None may be one."""


_NOTHING = _Nothing()


class _Node(dict[int, "_Node[V]"], Generic[V]):
    """The nodes below a node, by token; most have no value, and cost a dictionary alone."""

    value: V | _Nothing = _NOTHING

    @property
    def bare(self) -> bool:
        """Neither a value nor children: such a node may go."""
        return isinstance(self.value, _Nothing) and not self


_Way: TypeAlias = "tuple[_Way, int] | None"
"""The last token on the way to a node, and the way to the one above: no copy at each step."""


def _tokens_of(way: "_Way") -> list[int]:
    tokens: list[int] = []
    while way is not None:
        way, token = way
        tokens.append(token)
    return tokens[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch(Generic[V]):
    """Tokens without a value or a branch between them, as one node of a smaller tree."""

    number: int
    parent: int  # 0: the root
    tokens: tuple[int, ...]  # from the root to its end
    count: int  # how many of them are its own
    values: tuple[V, ...]  # the one at its end, or none
    leads_on: bool  # to further stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTrieResult:
    """Result of a search. Follows `PromptTrieResult`.

    exact: the query itself; shorter: the longest stored prefix of it; longer: the shortest entry
    below the deepest node that the walk reached; common_prefix: how deep that was.
    """

    model: Hashable
    exact: Key | None = None
    shorter: Key | None = None
    longer: Key | None = None
    common_prefix: int = 0


class PromptTrie(Generic[V]):
    """A tree of tokens per model; children are kept in the order of their creation.

    Upstream: `PromptTrie`.
    """

    def __init__(self) -> None:
        self._trie: dict[Hashable, _Node[V]] = {}

    def add(self, model: Hashable, tokens: Key, value: V) -> V | None:
        """Put a value; the one that was there before. Follows `PromptTrie.add`."""
        node = self._trie.setdefault(model, _Node())
        for token in tokens:
            child = node.get(token)
            if child is None:
                child = node[token] = _Node()
            node = child
        previous, node.value = node.value, value
        return None if isinstance(previous, _Nothing) else previous

    def get(self, model: Hashable, tokens: Key) -> V:
        """The value of a key; a key that is not there raises. Follows `PromptTrie.get`."""
        node = self._root(model)
        for token in tokens:
            child = node.get(token)
            if child is None:
                raise UpstreamKeyError(token)
            node = child
        return self._value(node)

    def holds(self, model: Hashable, tokens: Key) -> bool:
        """Check whether the key has a value."""
        node = self._trie.get(model)
        for token in tokens:
            if node is None:
                return False
            node = node.get(token)
        return node is not None and not isinstance(node.value, _Nothing)

    def pop(self, model: Hashable, tokens: Key) -> V:
        """Take a value out, and the nodes that led to it alone. Follows `PromptTrie.pop`."""
        path = [self._root(model)]
        for token in tokens:
            path.append(self._child(path[-1], token))
        value = self._value(path[-1])
        path[-1].value = _NOTHING
        for depth in range(len(tokens), 0, -1):
            if not path[depth].bare:
                break
            del path[depth - 1][tokens[depth - 1]]
        return value

    def pop_prefixes(self, model: Hashable, tokens: Key) -> list[tuple[int, V]]:
        """Take out every value on the way, the root's too; their nodes stay.

        Follows `PromptTrie.pop_prefixes`.
        """
        values: list[tuple[int, V]] = []
        node = self._root(model)
        for depth, token in enumerate(tokens):
            if not isinstance(node.value, _Nothing):
                values.append((depth, node.value))
                node.value = _NOTHING
            node = self._child(node, token)
        return values

    def prefixes(self, model: Hashable, tokens: Key) -> list[int]:
        """Lengths of the proper prefixes that have a value, shortest first."""
        lengths: list[int] = []
        node = self._trie.get(model, _Node())
        for depth, token in enumerate(tokens):
            if not isinstance(node.value, _Nothing):
                lengths.append(depth)
            if token not in node:
                break
            node = node[token]
        return lengths

    def search(
        self,
        model: Hashable,
        tokens: Key,
        *,
        empty_is_exact: bool = False,
        longer_beside_shorter: bool = True,
    ) -> PromptTrieResult:
        """Walk as far as the query leads, then look below. Follows `PromptTrie.search`.

        root . . v . . . v . . . (walk ends) . . v      v: a value
             shorter, if beyond its first token     longer: found below the end of the walk

        A value on a key of one token is never offered as "shorter" (an off-by-one of upstream's).
        The search does not go back up: a deep branch hides what its ancestors' branches hold.
        """
        root = self._trie.get(model)
        if root is None:
            return PromptTrieResult(model=model)
        if not tokens and (empty_is_exact or not isinstance(root.value, _Nothing)):
            return PromptTrieResult(model=model, exact=tokens)
        node, index, last = root, 0, -1
        while index < len(tokens) and tokens[index] in node:
            node = node[tokens[index]]
            if not isinstance(node.value, _Nothing):
                last = index
            index += 1
        if last == len(tokens) - 1 >= 0:
            return PromptTrieResult(model=model, exact=tokens)
        shorter = tokens[: last + 1] if last > 0 else None
        longer = None
        if index > 0 and (longer_beside_shorter or last <= 0):
            longer = [*tokens[:index], *self._nearest_below(node)]
        return PromptTrieResult(model=model, shorter=shorter, longer=longer, common_prefix=index)

    @staticmethod
    def _nearest_below(node: _Node[V]) -> list[int]:
        """The fewest further tokens that lead to a value; among equals the newest branch wins."""
        best: tuple[int, _Way] | None = None
        stack: list[tuple[_Node[V], int, _Way]] = [(node, 0, None)]
        while stack:
            current, depth, way = stack.pop()
            if best is not None and depth >= best[0]:
                continue
            if not isinstance(current.value, _Nothing):
                best = depth, way
            else:
                stack += [(child, depth + 1, (way, token)) for token, child in current.items()]
        if best is None:
            msg = 'can only concatenate list (not "NoneType") to list'
            raise UpstreamTypeError(msg)
        return _tokens_of(best[1])

    def items(self) -> list[tuple[Hashable, list[int], V]]:
        """All values, depth first, children in the order of their creation."""
        found: list[tuple[Hashable, list[int], V]] = []
        for model, root in self._trie.items():
            stack: list[tuple[_Node[V], list[int]]] = [(root, [])]
            while stack:
                node, tokens = stack.pop()
                while len(node) == 1:  # the only child goes on with its parent's tokens
                    if not isinstance(node.value, _Nothing):
                        found.append((model, tokens.copy(), node.value))
                    [(token, node)] = node.items()
                    tokens.append(token)
                if not isinstance(node.value, _Nothing):
                    found.append((model, tokens, node.value))
                stack += [(child, [*tokens, token]) for token, child in node.items()][::-1]
        return found

    def stretches(self) -> Iterator[Stretch[V]]:
        """The trie with its parents: one node where tokens end, branch off or have a value."""
        number = 0
        for root in self._trie.values():
            below: list[tuple[_Node[V], int, tuple[int, ...], int]] = [(root, 0, (), 0)]
            while below:
                node, parent, tokens, count = below.pop()
                while count and isinstance(node.value, _Nothing) and len(node) == 1:
                    [(token, node)] = node.items()
                    tokens, count = (*tokens, token), count + 1
                above = parent
                if count:
                    number += 1
                    above = number
                    values = () if isinstance(node.value, _Nothing) else (node.value,)
                    leads_on = bool(node)
                    yield Stretch(
                        number=number, parent=parent, tokens=tokens, count=count,
                        values=values, leads_on=leads_on,
                    )  # fmt: skip
                below += [(child, above, (*tokens, token), 1) for token, child in node.items()][
                    ::-1
                ]

    def _root(self, model: Hashable) -> _Node[V]:
        if model not in self._trie:
            raise UpstreamKeyError(model)
        return self._trie[model]

    @staticmethod
    def _child(node: _Node[V], token: int) -> _Node[V]:
        if token not in node:
            raise UpstreamKeyError(token)
        return node[token]

    @staticmethod
    def _value(node: _Node[V]) -> V:
        if isinstance(node.value, _Nothing):
            msg = "__value__"
            raise UpstreamKeyError(msg)
        return node.value
