"""State of a server at one moment, as frozen values: every token with its origin."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, Final, TypeAlias

import numpy as np

from cachesim.engines.held import (
    UNKNOWN,
    BlockHeld,
    CellsHeld,
    CheckpointHeld,
    EntryHeld,
    Held,
    NodeHeld,
    RowHeld,
    Runs,
    SlotHeld,
    TreeHeld,
)
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.trace import ROOT, NodeId, Traced
from cachesim.play.session import Record
from cachesim.units import Tokens

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Origin:
    """A token of a step's text; `step` may be unknown."""

    step: int
    at: int
    token: int


Piece: TypeAlias = dict[str, Any]


def text_of(record: Record) -> Tokens:
    """A step's prompt and reply."""
    return record.prompt + (() if record.reply is None else record.reply.generated)


class Provenance:
    """The origins of all births and nodes of a finished run."""

    def __init__(self, trace: Traced, records: Sequence[Record]) -> None:
        self.trace = trace
        self._tickets = sorted(
            (int(record.ticket), record.index) for record in records if record.ticket is not None
        )
        self.texts = {record.index: text_of(record) for record in records}
        self._births = 1  # how many are traced back; births are numbered from 1
        self._born: list[Piece] = [{"tokens": [-1]}]
        self._firsts = [0]  # the first birth of each piece
        self._nodes: dict[NodeId, list[tuple[int, Origin]]] = {}  # births of equal histories
        self._of_step: dict[tuple[NodeId, int], list[tuple[int, Origin]]] = {}
        self._spelled: dict[Tokens, list[Piece]] = {}
        self._chains: dict[tuple[NodeId, int], list[Piece]] = {}

    def maker(self, task: int) -> int | None:
        """The step of a task; a ticket is the number of its first task."""
        return next((index for ticket, index in reversed(self._tickets) if ticket <= task), None)

    def learn(self, group: Sequence[Record], end: int) -> None:
        """Assign the births up to `end` to a group of steps."""
        clean: dict[NodeId, Origin] = {}
        for record in group:
            text = self.texts[record.index]
            for at, node in enumerate(self.trace.histories.clean(text)[1:]):
                clean.setdefault(node, Origin(record.index, at, int(text[at])))
        origins = []
        births = np.arange(self._births, end)
        for birth, node in enumerate(self.trace.nodes_of_births(births).tolist(), self._births):
            origin = clean.get(node) or self._by_place(node, group)
            self._nodes.setdefault(node, []).append((birth, origin))
            self._of_step.setdefault((node, origin.step), []).append((birth, origin))
            origins.append(origin)
        for piece in pieces(origins):
            self._firsts.append(self._births)
            self._born.append(piece)
            self._births += size_of(piece)

    def _by_place(self, node: NodeId, group: Sequence[Record]) -> Origin:
        """The step with a token at this position, if its memory was wrong or shifted."""
        token, at = int(self.trace.histories.token(node)), self.trace.histories.depth(node, 0) - 1
        for record in group:
            text = self.texts[record.index]
            if at < len(text) and text[at] == token:
                return Origin(record.index, at, token)
        return Origin(NOBODY, at, token)

    def born(self, birth: int, count: int) -> list[Piece]:
        """Births as pieces; empty without marks."""
        if birth == UNKNOWN:
            return []
        at, pieces = bisect_right(self._firsts, birth) - 1, []
        while count > 0:
            skipped = birth - self._firsts[at]
            piece = part_of(self._born[at], skipped, skipped + count)
            pieces.append(piece)
            birth, count, at = birth + size_of(piece), count - size_of(piece), at + 1
        return pieces

    def folded(self, node: NodeId, until: int) -> list[Piece] | None:
        """The tokens that a recurrent row has folded in, oldest first.

        Equal histories are one node. The last step that computed it before `until` is named, and so
        are its own earlier tokens.
        """
        histories = self.trace.histories
        if node == UNKNOWN or "recurrent" not in histories.places:
            return None
        place = histories.places.index("recurrent")
        fresh: list[Origin] = []
        whole: tuple[NodeId, int] | None = None
        chain: list[Piece] = []
        step = NOBODY
        while node != ROOT:
            origin = self._origin(node, step, until)
            step, key = origin.step, (node, origin.step)
            whole = whole or key
            if key in self._chains:
                chain = self._chains[key]
                break
            fresh.append(origin)
            node = histories.readings(node)[place].node
        if fresh and whole:
            chain = self._chains[whole] = pieces(reversed(fresh), after=chain)
        return chain

    def _origin(self, node: NodeId, step: int, until: int) -> Origin:
        for born in (self._of_step.get((node, step), ()), self._nodes.get(node, ())):
            at = bisect_left(born, until, key=itemgetter(0))
            if at:
                return born[at - 1][1]
        return Origin(NOBODY, 0, int(self.trace.histories.token(node)))

    def spelled(self, tokens: Tokens) -> list[Piece]:
        """Tokens as pieces of texts, each the longest that some step has at that position.

        Of equal steps the first is named.
        """
        if tokens not in self._spelled:
            pieces: list[Piece] = []
            at = 0
            while at < len(tokens):
                rest = tokens[at:]
                shared = {
                    step: get_common_prefix(text[at:], rest) for step, text in self.texts.items()
                }
                step = max(shared, key=lambda step: (shared[step], -step), default=NOBODY)
                count = shared.get(step, 0)
                if count:
                    pieces.append({"step": step, "at": at, "count": count})
                elif pieces and "tokens" in pieces[-1]:
                    pieces[-1]["tokens"].append(int(tokens[at]))
                else:
                    pieces.append({"tokens": [int(tokens[at])]})
                at += max(1, count)
            self._spelled[tokens] = pieces
        return self._spelled[tokens]


def size_of(piece: Piece) -> int:
    """The number of tokens of a piece."""
    return int(piece["count"]) if "count" in piece else len(piece["tokens"])


def part_of(piece: Piece, start: int, end: int) -> Piece:
    """The tokens `[start, end)` of a piece, clipped to it."""
    if "tokens" in piece:
        return {"tokens": piece["tokens"][start:end]}
    count = min(end, piece["count"]) - start
    if "step" not in piece:
        return piece | {"count": count}
    return {"step": piece["step"], "at": piece["at"] + start, "count": count}


def cut(pieces: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """The tokens `[start, end)` of consecutive pieces."""
    parts, at = [], 0
    for piece in pieces:
        size = size_of(piece)
        first, last = max(start - at, 0), min(end - at, size)
        if first < last:
            parts.append(part_of(piece, first, last))
        at += size
    return parts


def pieces(origins: Iterable[Origin], after: Sequence[Piece] = ()) -> list[Piece]:
    """Consecutive origins merged into as few pieces as possible."""
    merged: list[Piece] = deepcopy(list(after))
    for origin in origins:
        last = merged[-1] if merged else {}
        if origin.step == NOBODY:
            if "tokens" in last:
                last["tokens"].append(origin.token)
            else:
                merged.append({"tokens": [origin.token]})
        elif last.get("step") == origin.step and last["at"] + last["count"] == origin.at:
            last["count"] += 1
        else:
            merged.append({"step": origin.step, "at": origin.at, "count": 1})
    return merged


Pieces: TypeAlias = tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """Neighbouring cells with rising positions, and the origin of their tokens."""

    cell: Annotated[int, "The first cell."]
    position: Annotated[int, "Its position."]
    count: Annotated[int, "How many cells."]
    slots: Annotated[tuple[int, ...], "Who sees them."]
    holds: Annotated[Piece, "The tokens they hold."]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPart:
    """The cells in use of one stream of an attention cache."""

    part: Annotated[str, "attention or window."]
    stream: Annotated[int, "Which stream."]
    size: Annotated[int, "The number of cells."]
    window: Annotated[int | None, "Positions that a window layer sees."]
    runs: Annotated[tuple[CellRun, ...], "The cells in use."]
    blocks: Annotated[tuple[BlockHeld, ...], "Blocks with their hashes, where there are any."] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """A recurrent state: its position, and the tokens folded in, if known."""

    row: Annotated[int, "Which row."]
    position: Annotated[int, "Where it stands."]
    slots: Annotated[tuple[int, ...], "Who sees it."]
    tokens: Annotated[Pieces | None, "The tokens that it has processed."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A memory with its cells and rows."""

    cells: Annotated[tuple[CellPart, ...], "Attention caches."]
    rows: Annotated[tuple[RowState, ...], "Recurrent states."]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """A saved state: the tokens of its recurrent row, the cells of its window."""

    pos_min: Annotated[int, "Its first position."]
    pos_max: Annotated[int, "Its last position."]
    n_tokens: Annotated[int, "Tokens that it covers."]
    made_by: Annotated[int | None, "The step that saved it, if known."]
    row: Annotated[Pieces | None, "The tokens that its row has processed."]
    cells: Annotated[tuple[CellRun, ...], "The cells of its window."]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A slot: its cached tokens and its checkpoints."""

    id: Annotated[int, "Its number."]
    state: Annotated[str, "Its state of processing."]
    tokens: Annotated[Pieces, "The tokens it thinks it holds."]
    checkpoints: Annotated[tuple[CheckpointState, ...], "Its saved states."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """The content of a place that differs from its key."""

    place: Annotated[str, "Which place."]
    tokens: Annotated[Pieces, "What it holds."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A conversation in the prompt cache."""

    n_tokens: Annotated[int, "Its tokens."]
    tokens: Annotated[Pieces, "The tokens."]
    checkpoints: Annotated[int, "The number of its checkpoints."]
    bytes: Annotated[int, "Its size."]
    kind: Annotated[str, "Its queue, where there are several."]
    holds: Annotated[tuple[Misplaced, ...], "Places whose state is not that of its tokens."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A node of a tree; its first position follows its parent's last."""

    number: Annotated[int, "Its number."]
    parent: Annotated[int, "The number of its parent; 0 is the root."]
    start: Annotated[int, "The position of its first token."]
    tokens: Annotated[Pieces, "Its own tokens, and their steps."]
    kept: Annotated[str, "here, host (only there), or gone."]
    saved: Annotated[str, "The content saved at its end to resume from."]
    lacks: Annotated[str, "The content missing there."]
    folded: Annotated[Pieces | None, "The tokens that its state has processed, if known."]
    window: Annotated[bool | None, "True if its window is alive; null without one of its own."]
    holds: Annotated[tuple[Misplaced, ...], "Places whose state is not that of its tokens."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeState:
    """A tree of prefixes, parents before their children."""

    name: Annotated[str, "The engine's name of it."]
    of: Annotated[str, "The indexed content: memory, or entries."]
    nodes: Annotated[tuple[TreeNode, ...], "Its nodes, without the root."]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The server's state at one moment."""

    slots: Annotated[tuple[SlotState, ...], "The slots."]
    memory: Annotated[Memory, "The model's memory."]
    companion: Annotated[Memory | None, "The companion's."]
    prompt_cache: Annotated[tuple[Entry, ...], "The conversations in the prompt cache."]
    tree: Annotated[TreeState | None, "The tree of prefixes, where the engine has one."]


def states_of(moments: Iterable[tuple[Held, int]], origins: Provenance) -> tuple[State, ...]:
    """States in order, each with the number of tokens born by then."""
    made: dict[CheckpointHeld, int] = {}
    return tuple(_state(held, until, made, origins) for held, until in moments)


def _state(held: Held, until: int, made: dict[CheckpointHeld, int], origins: Provenance) -> State:
    for slot in held.slots:
        for checkpoint in slot.checkpoints:
            made.setdefault(checkpoint, until)
    companion = None
    if held.companion_cells or held.companion_rows:
        companion = _memory(held.companion_cells, held.companion_rows, until, origins)
    return State(
        slots=tuple(_slot(slot_held, made, origins) for slot_held in held.slots),
        memory=_memory(held.cells, held.rows, until, origins),
        companion=companion,
        prompt_cache=tuple(_entry(entry, origins) for entry in held.entries),
        tree=None if held.tree is None else _tree(held.tree, until, origins),
    )


def _memory(
    cells: tuple[CellsHeld, ...], rows: tuple[RowHeld, ...], until: int, origins: Provenance
) -> Memory:
    return Memory(
        cells=tuple(
            CellPart(
                part=cell.part,
                stream=cell.stream,
                size=cell.size,
                window=cell.window,
                runs=_runs(cell.runs, origins),
                blocks=cell.blocks,
            )
            for cell in cells
        ),
        rows=tuple(
            RowState(
                row=row.row,
                position=row.position,
                slots=owners(row.owners),
                tokens=_known(origins.folded(row.node, until)),
            )
            for row in rows
        ),
    )


def _known(pieces: list[Piece] | None) -> Pieces | None:
    return None if pieces is None else tuple(pieces)


def _slot(slot: SlotHeld, made: Mapping[CheckpointHeld, int], origins: Provenance) -> SlotState:
    return SlotState(
        id=slot.id,
        state=slot.state,
        tokens=tuple(origins.spelled(slot.tokens)),
        checkpoints=tuple(
            _checkpoint(checkpoint, made[checkpoint], origins) for checkpoint in slot.checkpoints
        ),
    )


def _checkpoint(checkpoint: CheckpointHeld, until: int, origins: Provenance) -> CheckpointState:
    return CheckpointState(
        pos_min=checkpoint.pos_min,
        pos_max=checkpoint.pos_max,
        n_tokens=checkpoint.n_tokens,
        made_by=origins.maker(checkpoint.made_by),
        row=_known(origins.folded(checkpoint.node, until)),
        cells=_runs(checkpoint.runs, origins),
    )


def _entry(entry: EntryHeld, origins: Provenance) -> Entry:
    return Entry(
        n_tokens=len(entry.tokens),
        tokens=tuple(origins.spelled(entry.tokens)),
        checkpoints=entry.checkpoints,
        bytes=entry.size,
        kind=entry.kind,
        holds=_misplaced(entry.held, origins),
    )


def _tree(tree: TreeHeld, until: int, origins: Provenance) -> TreeState:
    nodes = tuple(_node(node, until, origins) for node in tree.nodes)
    return TreeState(name=tree.name, of=tree.of, nodes=nodes)


def _node(node: NodeHeld, until: int, origins: Provenance) -> TreeNode:
    start = len(node.tokens) - node.count
    own = [piece for run in node.runs for piece in origins.born(run.birth, run.count)]
    if not own or any("step" not in piece for piece in own):
        own = cut(origins.spelled(node.tokens), start, len(node.tokens))
    return TreeNode(
        number=node.number,
        parent=node.parent,
        start=start,
        tokens=tuple(_in_a_row(own)),
        kept=node.kept,
        saved=node.saved,
        lacks=node.lacks,
        folded=_known(origins.folded(node.node, until)),
        window=node.window,
        holds=_misplaced(node.held, origins),
    )


def _in_a_row(pieces: Iterable[Piece]) -> Iterator[Piece]:
    last: Piece = {}
    for piece in pieces:
        follows = "step" in piece and last.get("step") == piece["step"]
        if follows and last["at"] + last["count"] == piece["at"]:
            last = last | {"count": last["count"] + piece["count"]}
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _misplaced(held: Iterable[tuple[str, Tokens]], origins: Provenance) -> tuple[Misplaced, ...]:
    return tuple(
        Misplaced(place=place, tokens=tuple(origins.spelled(tokens))) for place, tokens in held
    )


def _runs(runs: Runs, origins: Provenance) -> tuple[CellRun, ...]:
    """Runs of cells, joined where consecutive tokens are of one step's text."""
    found: list[dict[str, Any]] = []
    for run in runs:
        start = 0
        for held in origins.born(run.birth, run.count) or [{"count": run.count}]:
            entry = {
                "cell": run.cell + start,
                "position": run.position + start,
                "count": size_of(held),
                "slots": owners(run.owners),
                "holds": held,
            }
            if not (found and _joins(found[-1], entry)):
                found.append(entry)
            start += size_of(held)
    return tuple(CellRun(**cells) for cells in found)


def _joins(last: dict[str, Any], entry: dict[str, Any]) -> bool:
    ours, theirs = last["holds"], entry["holds"]
    follows = (
        last["slots"] == entry["slots"]
        and last["cell"] + last["count"] == entry["cell"]
        and last["position"] + last["count"] == entry["position"]
        and ours.get("step") == theirs.get("step") is not None
        and ours["at"] + ours["count"] == theirs["at"]
    )
    if follows:
        last["count"] += entry["count"]
        ours["count"] += theirs["count"]
    return bool(follows)


def owners(bits: int) -> tuple[int, ...]:
    """The sequences of a bit set, in increasing order."""
    return tuple(seq for seq in range(bits.bit_length()) if bits >> seq & 1)
