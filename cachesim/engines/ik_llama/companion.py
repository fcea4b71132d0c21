"""The MTP companion's memory, in the three models that matter for a trim.

`attn` is what every model had at the seed era: cells, never a refusal. `strict_tail` is a what-if:
one recurrent position, which refuses any cut that does not reach the start. `window` is the later
release's rolling cache, which refuses a cut below what it still holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cachesim.engines.ik_llama.context import BatchToken, Context
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Pos, SeqId, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """The result of feeding a companion, and its last rows if it has any."""

    taken: bool
    logits: Array | None = None
    hidden: Array | None = None


SEQ = SeqId(0)
"""A companion serves one slot only."""


class Companion(Protocol):
    """The interface of a companion context."""

    @property
    def tail(self) -> int:
        """Its last position, -1 when it holds nothing."""
        ...

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Forget [p0, p1); False: refused, nothing changed."""
        ...

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1)."""
        ...

    def decode(self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]) -> Fed:
        """Feed tokens from a position on: the last rows, or a refusal."""
        ...


class AttentionCompanion:
    """Cells of its own, K/V for the MTP layer only; really runs the MTP head."""

    def __init__(self, network: Network, *, n_ctx: int, n_ubatch: int) -> None:
        self.network = network
        self.context = Context(network, n_ctx=n_ctx, n_ubatch=n_ubatch, n_seq_max=1)

    @property
    def tail(self) -> int:
        """Its last position."""
        cells = self.context.cells
        return int(cells.seq_pos_max(SEQ)) if cells.used else -1

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Never refuses."""
        return self.context.cells.seq_rm(SEQ, p0, p1)

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1)."""
        self.context.cells.seq_add(SEQ, p0, p1, delta)

    def decode(self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]) -> Fed:
        """Feed tokens; a full table refuses, and drafting quietly stops."""
        last = len(tokens) - 1
        batch = [
            BatchToken(token=token, pos=Pos(first + i), seq=SEQ, output=i == last)
            for i, token in enumerate(tokens)
        ]
        done = self.context.decode(batch, hidden)
        if done.code:
            return Fed(taken=False)
        return Fed(taken=True, logits=done.logits[last], hidden=done.hidden[last])


class StrictTailCompanion:
    """A companion of a single position `t`, as a recurrent one has it; it proposes no tokens."""

    def __init__(self) -> None:
        self.tail = -1

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Refuse a cut that leaves a part: 0 < p0 <= t, or 0 < p1 <= t."""
        p0 = max(p0, 0)
        if 0 < p0 <= self.tail or 0 < p1 <= self.tail:
            return False
        if p0 <= self.tail:
            self.tail = -1
        return True

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Move the position when it lies in the range."""
        if p0 <= self.tail and (p1 < 0 or self.tail < p1):
            self.tail += delta

    def decode(
        self,
        tokens: Sequence[Token],
        first: Pos,
        hidden: Sequence[Array],
    ) -> Fed:
        """Take the batch's last position."""
        del hidden  # there is no network
        self.tail = first + len(tokens) - 1
        return Fed(taken=True)


class WindowCompanion:
    """A rolling cache of `window` rows plus slack (`--swa-compress`): base, live.

    [base, base + live)   the positions it keeps
    A cut at p0 succeeds from base + window on, or at 0, or while nothing has rolled yet.
    """

    def __init__(self, *, window: int, n_ubatch: int) -> None:
        self.window = window
        self.capacity = -(-(window + max(n_ubatch, 256)) // 256) * 256
        self.n_ubatch = n_ubatch
        self.base = 0
        self.live = 0

    @property
    def tail(self) -> int:
        """Its last position."""
        return self.base + self.live - 1

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Refuse what lies below the kept window."""
        p0, end = max(p0, 0), self.base + self.live
        if p0 >= end or 0 <= p1 <= self.base:
            return True
        if 0 <= p1 < end:
            return False
        if p0 == 0:
            self.base = self.live = 0
            return True
        if self.base == 0 or p0 >= self.base + self.window:
            self.live = p0 - self.base
            return True
        return False

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Context shift is not supported on such caches; the server never calls it."""

    def decode(
        self,
        tokens: Sequence[Token],
        first: Pos,
        hidden: Sequence[Array],
    ) -> Fed:
        """Roll where needed; refuse a batch that does not begin at the end."""
        del hidden  # there is no network
        if first != self.base + self.live:
            return Fed(taken=False)
        for start in range(0, len(tokens), self.n_ubatch):
            count = min(self.n_ubatch, len(tokens) - start)
            if self.live + count > self.capacity:
                self.base += self.live - self.window
                self.live = self.window
            self.live += count
        return Fed(taken=True)
