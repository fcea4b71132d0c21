"""States of Mamba-2 layers that mode `all` caches in a prefill.

The kernel scans a prefill in chunks that end at multiples of its own size, and returns the state
after each. A block gets the last of the whole chunks that it is counted to hold:

    position        0       4       8       12      16
    chunks of 4     |  s4   |  s8   |  s12  |  s16  |
    blocks of 8     |      s8       |      s16      |       two chunks each
    blocks of 6     |   s4     |    s8     |                one chunk each, the more the earlier

Trap (#57266): where chunks do not divide blocks, the state of a block is another one's, or of
another request; where none is left to take, the engine core ends. A place before the first state
counts from the last one. Follows `_compute_chunk_metadata` and `MambaMixer2.conv_ssm_forward`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cachesim.engines.vllm.block_pool import cdiv
from cachesim.errors import UpstreamAbort
from cachesim.model.store import Lanes, Store
from cachesim.units import Array

MIXER: Final = "MambaMixer2.conv_ssm_forward"

Span = tuple[int, int]
"""First position of a prefill's chunk, and its end."""


class Source(NamedTuple):
    """The state that a block gets."""

    place: int  # of the block, in the table of its request
    row: int  # whose state it is, of the prefills of the batch
    end: int  # the tokens that the state stands for


def chunk_ends(span: Span, size: int) -> list[int]:
    """Positions at which the kernel's chunks end."""
    start, end = span
    return [*range((start // size + 1) * size, end, size), end]


def cached_states(
    spans: Sequence[Span], block: int, size: int, *, singly: bool
) -> list[list[Source]]:
    """The states that go to the blocks before the last one, for each prefill of a batch.

    Follows `MambaMixer2.conv_ssm_forward`.
    """
    ends = [chunk_ends(span, size) for span in spans]
    states = [(row, end) for row, own in enumerate(ends) for end in own]
    stride, first_chunk = block // size, 0
    sources: list[list[Source]] = []
    for (start, end), own in zip(spans, ends, strict=True):
        first = start // block
        count = cdiv(end, block) - 1 - first
        # Trap: upstream counts states as if each block had `stride` of them, all of equal length;
        # the place is among those of all prefills of the batch (#57266).
        aligned = first_chunk + stride - 1 - start % block // size
        taken: list[tuple[int, int]] = []
        if singly:
            taken = [states[aligned + i * stride] for i in range(count)]
        elif count and not stride:
            raise UpstreamAbort(MIXER, "slice step cannot be zero")
        elif count:
            taken = states[aligned : aligned + count * stride : stride]
            # As an assignment to a slice does upstream.
            if len(taken) not in {1, count}:  # one state goes to all blocks
                raise UpstreamAbort(MIXER, f"shape mismatch: {len(taken)} states, {count} blocks")
        sources.append([Source(first + i, *taken[i % len(taken)]) for i in range(count)])
        first_chunk += len(own)
    return sources


@dataclass(slots=True)
class Scan:
    """A prefill whose states stay with the kernel until all of the batch are computed."""

    span: Span
    rows: dict[tuple[int, int], Array] = field(default_factory=dict)  # by layer and position
    running: dict[int, Array] = field(default_factory=dict)  # by layer

    def pieces(self, block: int, size: int) -> list[Span]:
        """The prefill between the ends of chunks and of blocks, where convolutions are kept."""
        cuts = sorted({*chunk_ends(self.span, block), *chunk_ends(self.span, size)})
        return list(zip([self.span[0], *cuts], cuts, strict=False))


@dataclass(slots=True)
class PieceStore:
    """Memory of a piece of a scan: keys and values in blocks, states in the kernel."""

    inner: Store
    scan: Scan
    end: int
    planes: int = 1

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Attend as without a scan."""
        return self.inner.attend(layer, keys, values)

    def states(self, layer: int) -> Array:
        """The state after the last piece, before the first one that of the block."""
        running = self.scan.running.get(layer)
        return self.inner.states(layer) if running is None else running[None].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Keep the state after the piece."""
        row: Array = states[0][0].copy()
        self.scan.running[layer] = self.scan.rows[layer, self.end] = row
