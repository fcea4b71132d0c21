"""The content of a server at one moment, with its owners: the data of pages.

Cells and rows of a traced network (`cachesim.model.trace`) have marks: a cell the birth of its
token, a row the node of its last token. Without a trace, and in companions, there are positions
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Integers, Tokens

UNKNOWN: Final = -1
"""The birth or node of a cell or row without a mark."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive cells with consecutive positions and births, and the same owners."""

    cell: int
    position: int
    count: int
    owners: int  # bit `s` is set where sequence `s` sees the cells
    birth: int


Runs: TypeAlias = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class BlockHeld:
    """A cached block; its hash includes its parent's, and so covers all tokens up to its end."""

    block: int
    cell: int  # its first cell
    position: int  # of its first token
    count: int
    hash: int
    parent: int  # the hash of the block before it; negative for a first block


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsHeld:
    """The cells in use of one part of a memory, stream by stream."""

    part: str  # attention, or window
    stream: int
    size: int
    window: int | None
    runs: Runs
    blocks: tuple[BlockHeld, ...] = ()  # in engines that look up blocks by hash


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHeld:
    """A recurrent state: its position, the sequences that share it, the node of its last token."""

    row: int
    position: int
    owners: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeld:
    """A saved state: the row's node, and the cells of a window."""

    pos_min: int
    pos_max: int
    n_tokens: int
    made_by: int = UNKNOWN  # the task that saved it
    node: int = UNKNOWN
    runs: Runs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeld:
    """A slot: its token list and its checkpoints."""

    id: int
    state: str
    tokens: Tokens
    checkpoints: tuple[CheckpointHeld, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryHeld:
    """A prompt-cache entry; `held` lists the places whose state is that of other tokens."""

    tokens: Tokens
    checkpoints: int
    size: int
    kind: str = ""
    held: tuple[tuple[str, Tokens], ...] = ()


Kept: TypeAlias = Literal["here", "host", "gone"]
"""Location of a node's tokens: the device, the host only, or evicted."""

ROOT: Final = 0
"""The number of a tree's root, which is empty and not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeld:
    """A node of a prefix tree; its tokens follow those of its parent.

    `saved` is the content at its end to resume from (a state, a whole cache), `lacks` the content
    that is missing there; `window` is True if the slots of its window are live, None without a
    window.
    """

    number: int
    parent: int
    tokens: Tokens  # from the root to its end
    count: int  # the number of its own among them
    kept: Kept = "here"
    runs: Runs = ()  # its cells, if known
    saved: str = ""
    lacks: str = ""
    node: int = UNKNOWN  # the mark of its state
    window: bool | None = None
    held: tuple[tuple[str, Tokens], ...] = ()  # places that hold other tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeHeld:
    """A tree, parents before their children; `of` is the storage that it indexes."""

    name: str
    of: Literal["memory", "entries"]
    nodes: tuple[NodeHeld, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The content of a server; equal contents compare and hash equal."""

    slots: tuple[SlotHeld, ...] = ()
    cells: tuple[CellsHeld, ...] = ()
    rows: tuple[RowHeld, ...] = ()
    companion_cells: tuple[CellsHeld, ...] = ()
    companion_rows: tuple[RowHeld, ...] = ()
    entries: tuple[EntryHeld, ...] = ()
    tree: TreeHeld | None = None

    @property
    def texts(self) -> "Texts":
        """The tokens of slots and entries."""
        return Texts(
            slots=tuple((slot.id, slot.tokens) for slot in self.slots),
            entries=tuple(entry.tokens for entry in self.entries),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The tokens of slots, by their numbers, and of prompt-cache entries."""

    slots: tuple[tuple[int, Tokens], ...] = ()
    entries: tuple[Tokens, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amount of each kind of content: sums over `Held`, without building it."""

    attention: int = 0  # tokens
    window: int = 0  # tokens of layers with a window
    states: int = 0  # live recurrent states
    checkpoints: int = 0  # bytes of saved states
    prompt_cache: int = 0  # bytes of conversations in host memory

    def in_bytes(self, spec: ModelSpec) -> dict[str, int]:
        """The amounts in bytes, by kind."""
        attention, window, state = sizes_of(spec)
        return {
            "attention": self.attention * attention,
            "window": self.window * window,
            "states": self.states * state,
            "checkpoints": self.checkpoints,
            "parked": self.prompt_cache,
        }


def sizes_of(spec: ModelSpec) -> tuple[int, int, int]:
    """Bytes of a token's attention, of its windows, and of a state, on a real server.

    Independent of the arithmetic; without the MTP layer, whose memory is a companion's.
    """
    token = {"attention": 0, "window": 0}
    state = 0
    for layer, kind in enumerate(spec.layers):
        if kind in token:
            token[kind] += spec.key_bytes(layer) + spec.value_bytes(layer)
        state += spec.conv_bytes(layer) + spec.state_bytes(layer)
    return token["attention"], token["window"], state


@dataclass(frozen=True, slots=True)
class Marks:
    """The mark layers of a network, by their place; none without a trace."""

    layers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network) -> "Marks":
        """The marks among the network's layers."""
        return cls.among(network.shapes)

    @classmethod
    def among(cls, shapes: Sequence[LayerShape]) -> "Marks":
        """The marks among some layers."""
        return cls({shape.place: shape.layer for shape in shapes if shape.marks})

    def births(
        self, keys: Mapping[int, Array], place: str, at: Integers | slice
    ) -> Integers | None:
        """The births in the marks of some rows of a key buffer."""
        layer = self.layers.get(place)
        if layer is None or layer not in keys:
            return None
        births: Integers = keys[layer][at].reshape(-1).astype(np.int64)
        return births


def runs_of(
    cells: Integers, positions: Integers, owners: Array, births: Integers | None
) -> tuple[Run, ...]:
    """Cells as runs; a new run begins at a break in any of the four arrays."""
    if not len(cells):
        return ()
    known = births is not None
    marks = births if births is not None else np.full(len(cells), UNKNOWN, dtype=np.int64)
    breaks = (np.diff(cells) != 1) | (np.diff(positions) != 1) | (owners[1:] != owners[:-1])
    breaks |= np.diff(marks) != int(known)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.append(starts[1:], len(cells))
    return tuple(
        Run(int(cells[a]), int(positions[a]), int(b - a), int(owners[a]), int(marks[a]))
        for a, b in zip(starts, ends, strict=True)
    )
