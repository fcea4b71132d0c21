"""What the server believes a slot's memory holds: tokens, and checkpoints along them."""

from collections.abc import Sequence
from typing import cast

from cachesim.engines.llamacpp.approximation import Approximation
from cachesim.engines.llamacpp.checkpoint import Checkpoint
from cachesim.engines.rope import as_rope
from cachesim.units import Count, Token


class Prompt:
    """The tokens of one slot and its checkpoints, oldest first (upstream: `server_prompt`)."""

    __slots__ = ("approximate", "checkpoints", "tokens")

    def __init__(
        self,
        tokens: list[Token] | None = None,
        checkpoints: list[Checkpoint] | None = None,
        approximate: Approximation | None = None,
    ) -> None:
        self.tokens: list[Token] = [] if tokens is None else tokens
        self.checkpoints: list[Checkpoint] = [] if checkpoints is None else checkpoints
        self.approximate = approximate

    @property
    def n_tokens(self) -> Count:
        """How many tokens the slot holds; also the position of the next one."""
        return Count(len(self.tokens))

    def keep_first(self, count: int) -> None:
        """Forget all tokens but the first `count`."""
        del self.tokens[count:]
        if self.approximate is not None and self.approximate.start >= count:
            self.approximate = None

    def take_shape_of(self, tokens: Sequence[Token]) -> None:
        """Where nothing is held, keep what follows as it comes: a list, or a rope."""
        rope = as_rope(tokens)
        if rope is not None and not self.tokens:
            self.tokens = cast("list[Token]", rope[:0])

    def approximate_from(self, start: int, why: str) -> None:
        """Remember that values from `start` on were computed in another context."""
        if self.approximate is None or start < self.approximate.start:
            self.approximate = Approximation(start=Count(start), why=why)

    def clone(self) -> "Prompt":
        """The same tokens and checkpoints in lists of their own."""
        return Prompt(self.tokens[:], list(self.checkpoints), self.approximate)
