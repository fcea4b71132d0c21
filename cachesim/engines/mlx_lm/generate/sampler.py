"""What turns logits into tokens for one sequence, and tells when it has said enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachesim.model.arithmetic import Network
from cachesim.units import Array, Token, Tokens


@dataclass(slots=True)
class Sampler:
    """Greedy, unless tokens are forced; remembers the row that each token was taken from."""

    network: Network
    forced: Tokens | None = None
    rows: list[Array] = field(default_factory=list)

    def __call__(self, logits: Array) -> Token:
        """The next token of the sequence."""
        self.rows.append(logits)
        return self.choose(logits, len(self.rows) - 1)

    def choose(self, logits: Array, index: int) -> Token:
        """The token of a row, if it came to be said there."""
        if self.forced is not None and index < len(self.forced):
            return self.forced[index]
        return self.network.sample(logits)


@dataclass(slots=True)
class Stopper:
    """Watches one sequence's tokens for the end mark and for stop words.

    A forced token never ends a generation by itself: with a forced reply only the last token's
    match counts, and it only names the reason.
    """

    sequences: tuple[Tokens, ...]
    forced: int | None = None
    seen: list[Token] = field(default_factory=list)
    met: int = 0  # tokens of the sequence that was found

    def advance(self, token: Token) -> bool:
        """Whether a stop sequence ends with this token. Follows `StopSequences.Matcher.advance`."""
        self.seen.append(token)
        if self.forced is not None and len(self.seen) < self.forced:
            return False
        self.met = next((len(each) for each in self.sequences if self._ends_with(each)), 0)
        return self.met > 0

    def _ends_with(self, sequence: Sequence[Token]) -> bool:
        return bool(sequence) and tuple(self.seen[-len(sequence) :]) == tuple(sequence)
