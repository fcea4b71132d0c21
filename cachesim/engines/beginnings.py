"""Stored prompts by the tokens that they begin with.

    s s s s a a a a      one        ssss ──> aaaa   one
    s s s s b b b b      two             └─> bbbb   two, three
    s s s s b b b b c    three                  └─> c   three

A server compares a prompt with all that it holds. Here a walk down the tree finds how many tokens
each of them has in common, so a replay does not become slower as a cache fills.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Token


class Holder(Protocol):
    """An entry of a cache: its tokens do not change while it is in the tree."""

    @property
    def tokens(self) -> Sequence[Token]: ...


Held = TypeVar("Held", bound=Holder)


@dataclass(slots=True, eq=False)
class Branch(Generic[Held]):
    """All that have the first `end` of these tokens in common, oldest first."""

    tokens: Sequence[Token] = ()
    end: int = 0
    held: dict[Held, None] = field(default_factory=dict)
    after: "dict[Token, Branch[Held]]" = field(default_factory=dict)


class Beginnings(Generic[Held]):
    """A radix tree of stored prompts."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: Branch[Held] = Branch()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self)()
        for holder in self._root.held:
            twin.add(deepcopy(holder, memo))
        return twin

    def add(self, new: Held) -> None:
        """Add what is stored last."""
        tokens, above, length = new.tokens, self._root, len(new.tokens)
        for count, branch in self._walk(tokens):
            if count == branch.end:
                branch.held[new] = None
                above = branch
                continue
            divided = {branch.tokens[count]: branch}
            above.after[tokens[above.end]] = above = Branch(
                tokens, count, {**branch.held, new: None}, divided
            )
        if above.end < length:
            above.after[tokens[above.end]] = Branch(tokens, length, {new: None})

    def remove(self, old: Held) -> None:
        """Take one out, with the branches that are no longer needed."""
        path = [branch for _, branch in self._walk(old.tokens)]
        for branch in path:
            del branch.held[old]
        while len(path) > 1:
            branch, above = path.pop(), path[-1]
            below = list(branch.after.values())
            if not branch.held:
                del above.after[old.tokens[above.end]]
            elif len(below) == 1 and len(below[0].held) == len(branch.held):
                above.after[old.tokens[above.end]] = below[0]
            else:
                return

    def shared(self, tokens: Sequence[Token]) -> list[tuple[Count, dict[Held, None]]]:
        """From 0 tokens on: a number, and all that have so many or more in common with these."""
        return [(count, branch.held) for count, branch in self._walk(tokens)]

    def _walk(self, tokens: Sequence[Token]) -> Iterator[tuple[Count, Branch[Held]]]:
        """The branches that tokens follow, each with the tokens that it shares with them."""
        branch, length = self._root, len(tokens)
        count = Count(0)
        yield count, branch
        while count < length and (below := branch.after.get(tokens[count])) is not None:
            count = Count(min(below.end, get_common_prefix(below.tokens, tokens)))
            yield count, below
            if count < below.end:
                return
            branch = below
