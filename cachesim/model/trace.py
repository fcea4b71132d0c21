"""Provenance: a network whose memories keep, beside the real data, whose data it is.

`Traced` gives every place of a memory (attention, window, recurrent) one more layer, of
marks: single numbers. The memory stores, moves, shares, saves and reloads marks as it does any
layer, without special code. So when an answer is wrong the marks identify the tokens in the wrong
state.

    node        a token together with what it read in each place: equal numbers, equal histories
    in a row    the node of the last token folded in; 0 when there is none
    in a cell   the number of the token's birth, for a cell is written before what it reads is known

A token reads, in the recurrent place, its row; in the others the cell below its own, whose history
must be that of all cells it sees. One that breaks the line, or is missing, is a stray. An uncached
run has one node per prefix, with all readings alike and no stray: a history is clean when it has
the uncached run's number. Clean memory gives the uncached answer. Other memory may still do so,
where the network is not affected: beyond its reach, or in a first layer that held the same token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from cachesim.model.arithmetic import GrowingArray, LayerShape, Network, Output, Place
from cachesim.model.spec import ModelSpec
from cachesim.model.store import FAR, Lane, Padding, Store, Ubatch
from cachesim.units import Array, Integers, Pos, Token, Tokens

# Histories: which tokens went into a memory, in what order, and what they read on the way.

NodeId: TypeAlias = int

ROOT: Final[NodeId] = 0
"""The history of no token; also the content of a fresh row and cell."""


@dataclass(frozen=True, slots=True)
class StrayCell:
    """A cell that does not belong to the history it was seen with; ROOT where one is missing."""

    position: Pos
    node: NodeId
    above: NodeId = ROOT  # the cell just above it, which did not continue it
    extra: bool = False  # beside another cell of this position, or beside the reader's own


class Reading(NamedTuple):  # not a dataclass: hashed for each token, several times slower
    """The reading of a token in a place: the history it continues, and the first wrong token."""

    node: NodeId
    stray: StrayCell | None = None


COLD_RUNS: Final = 16
"""Token sequences whose nodes are kept: each event looks up those of all entries again."""


class Histories:
    """The table of all nodes; it only grows, and equal histories are one."""

    def __init__(self, places: tuple[Place, ...], chunk: int = 0) -> None:
        self.places = places
        self._chunk = chunk  # positions of a window that is a chunk; 0: windows slide
        self._ids: dict[tuple[Token, tuple[Reading, ...]], NodeId] = {}
        self._nodes: list[tuple[Token, tuple[Reading, ...]]] = [(Token(-1), ())]
        self._parents = GrowingArray((len(places),), "int64")
        self._parents.append(np.zeros((1, len(places)), np.int64))
        self._depths = [(0,) * len(places)]
        self._cold: dict[Tokens, list[NodeId]] = {}  # the last ones that were computed
        self._next_cold: dict[tuple[NodeId, Token], NodeId] = {}  # not of chunks: they start anew

    def node(self, token: Token, readings: tuple[Reading, ...]) -> NodeId:
        """The number of a token that read this, new or known."""
        key = (token, readings)
        known = self._ids.get(key)
        if known is not None:
            return known
        fresh = len(self._nodes)
        self._nodes.append(key)
        self._parents.append(np.array([[reading.node for reading in readings]]))
        self._depths.append(
            tuple(self._depths[reading.node][i] + 1 for i, reading in enumerate(readings))
        )
        self._ids[key] = fresh
        return fresh

    def settle(self) -> None:
        """Drop a half-recorded node after an interruption."""
        whole = 1 + len(self._ids)
        del self._nodes[whole:], self._depths[whole:]
        self._cold.clear()
        self._next_cold.clear()
        self._parents.count = whole

    def clean(self, tokens: Tokens) -> list[NodeId]:
        """The nodes of an uncached run: of no token, of the first one, and so on."""
        known = self._cold.get(tokens)
        if known is not None:
            return known
        nodes = [ROOT]
        for at, token in enumerate(tokens):
            known_next = self._next_cold.get((nodes[at], token))
            if known_next is None:
                readings = (self.read(place, nodes, at) for place in range(len(self.places)))
                known_next = self.node(token, tuple(map(Reading, readings)))
                if not self._chunk:
                    self._next_cold[nodes[at], token] = known_next
            nodes.append(known_next)
        if len(self._cold) == COLD_RUNS:
            del self._cold[next(iter(self._cold))]
        self._cold[tokens] = nodes
        return nodes

    def begin(self, place: int, at: int) -> int:
        """The first position of a history that continues at `at`: 0, or that of its chunk."""
        chunked = self._chunk and self.places[place] == "window"
        return at // self._chunk * self._chunk if chunked else 0

    def read(self, place: int, clean: list[NodeId], at: int) -> NodeId:
        """The node read by the token at `at` of an uncached run; ROOT for the first of a chunk."""
        return ROOT if self.begin(place, at) == at else clean[at]

    def token(self, node: NodeId) -> Token:
        """The last token of a history; -1 for that of none."""
        return self._nodes[node][0]

    def readings(self, node: NodeId) -> tuple[Reading, ...]:
        """The readings of a node's token, place by place."""
        return self._nodes[node][1]

    def tokens(self, node: NodeId, place: int = 0) -> Tokens:
        """The history of a node as one place has it, oldest token first."""
        backwards = []
        while node != ROOT:
            token, readings = self._nodes[node]
            backwards.append(token)
            node = readings[place].node
        return tuple(reversed(backwards))

    def depth(self, node: NodeId, place: int) -> int:
        """The number of tokens of that history."""
        return self._depths[node][place]

    def parents(self, nodes: Integers, place: int) -> Integers:
        """The node that each one continues in a memory."""
        parents: Integers = self._parents.data[nodes, place]
        return parents


PADDING: Final = Token(0)
"""Placeholder token of a row of padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first memory that was wrong: where, when, what it held, and what it should have held."""

    layer: int
    place: Place
    token: Pos  # the one whose computation read it
    position: Pos  # the wrong cell's, or that of the last token a row should have seen
    holds: Tokens  # the history of its content; empty if free
    expected: Tokens  # the tokens up to the position, in it only if one belongs there
    extra: bool = False  # none belongs there: cells too many
    short: bool = False  # tokens from the position on are missing, and what follows has moved down


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A wrong cell: its position, and the history that it holds."""

    position: int
    holds: Tokens
    extra: bool = False
    short: bool = False


class Traced:
    """A network with marks; its logits and hidden states are the wrapped network's own bits."""

    def __init__(self, network: Network) -> None:
        self._network = network
        places = _places(network)
        spec = network.spec
        self.histories = Histories(places, spec.window if spec.chunked else 0)
        first = 1 + max(shape.layer for shape in network.shapes)
        self._marks = tuple(_marks_shape(first + i, place) for i, place in enumerate(places))
        self._born = GrowingArray((), "int64")  # birth -> node
        self._born.append(np.zeros(1, np.int64))
        self._answers: dict[bytes, dict[Pos, NodeId]] = {}

    @property
    def inner(self) -> Network:
        """The wrapped network."""
        return self._network

    @property
    def spec(self) -> ModelSpec:
        """The spec of the wrapped network."""
        return self._network.spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The wrapped network's layers, then marks for each place."""
        return self._network.shapes + self._marks

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Run the wrapped network, then record the cells that each token read."""
        output = self._network.run(ubatch, store)
        nodes = self._run_marks(ubatch, store)
        rows = range(len(nodes)) if ubatch.outputs is None else ubatch.outputs
        for logits, row in zip(output.logits, rows, strict=True):
            by_position = self._answers.setdefault(_fingerprint(logits), {})
            by_position[Pos(int(ubatch.positions[row]))] = int(nodes[row])
        return output

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Rotate real keys only: a key's owner stays."""
        if layer in {shape.layer for shape in self._marks}:
            return keys
        return self._network.rotate(layer, keys, shifts)

    def sample(self, logits: Array) -> Token:
        """The wrapped network's result."""
        return self._network.sample(logits)

    def difference(self, one: Array, other: Array) -> float:
        """The wrapped network's result."""
        return self._network.difference(one, other)

    def companion(self) -> Network | None:
        """The wrapped network's companion; it has a memory of its own, and no marks."""
        return self._network.companion()

    def history(self, node: NodeId) -> Tokens:
        """The tokens of a node, oldest first."""
        return self.histories.tokens(node)

    @property
    def births(self) -> int:
        """The number of the next token's birth: the number of tokens so far, and one."""
        return self._born.count

    def nodes_of_births(self, births: Integers) -> Integers:
        """The nodes of cells, from their marks."""
        return self._nodes_of(births, births)

    def node(self, logits: Array, position: Pos) -> NodeId | None:
        """The history that a row of logits was last computed from, or None if it never was.

        Networks with a short memory have equal rows at many positions; a row that was not computed
        at this one (a shifted context) is looked up at any.
        """
        answers = self._answers.get(_fingerprint(logits), {})
        return answers.get(position, next(reversed(answers.values()), None))

    def fault(self, logits: Array, tokens: Tokens, *, cached: int | None = None) -> Fault | None:
        """The first wrong memory behind a row of logits that should have followed `tokens`.

        Descends from the row's token to the first one that read a wrong state or cell. On the way
        are tokens that were computed correctly from wrong memory: those whose memory has the right
        tokens, and those behind the `cached` ones, which the request computed itself.
        """
        node, count = self.node(logits, Pos(len(tokens) - 1)), len(tokens)
        clean = self.histories.clean(tokens)
        if node is None or node == clean[count]:
            return None
        while True:
            count -= 1
            readings = self.histories.readings(node)
            spoilt = [
                reading.node
                for place, reading in enumerate(readings)
                if reading.node != self.histories.read(place, clean, count)
                and (
                    (
                        cached is not None
                        and cached < count
                        and (self.histories.token(reading.node) == tokens[count - 1])
                    )
                    or self.histories.tokens(reading.node, place)
                    == tokens[self.histories.begin(place, count) : count]
                )
            ]
            if not spoilt:
                return self._fault(readings, Pos(count), tokens, clean)
            node = spoilt[0]

    def _fault(
        self, readings: tuple[Reading, ...], at: Pos, tokens: Tokens, clean: list[NodeId]
    ) -> Fault | None:
        for place, reading in enumerate(readings):
            stray = reading.stray
            if stray is None and reading.node == self.histories.read(place, clean, at):
                continue
            kind = self.histories.places[place]
            if kind == "recurrent":
                found = _Wrong(at - 1, self.histories.tokens(reading.node, place))
            elif stray is None:
                found = self._of_line(place, reading.node, at, tokens)
            else:
                found = self._of_stray(place, stray, tokens)
            begin = self.histories.begin(place, found.position)
            end = at if found.short else found.position + (not found.extra)
            layers = (shape.layer for shape in self._network.shapes if shape.place == kind)
            return Fault(
                layer=next(layers),
                place=kind,
                token=at,
                position=Pos(found.position),
                holds=found.holds,
                expected=tokens[begin:end],
                extra=found.extra,
                short=found.short,
            )
        return None

    def _of_line(self, place: int, node: NodeId, at: int, tokens: Tokens) -> "_Wrong":
        """The first wrong cell that a token sees of an unbroken line, the newest if none is.

        Trap: with drafts that were not removed, or a token that was never fed, the line is longer
        or shorter than the tokens before `at`.

            tokens  0 .. m | m .. at       line  0 .. m | other, too many, or nothing
        """
        held, begin = self.histories.tokens(node, place), self.histories.begin(place, at)
        due = tokens[begin:at]
        if not held or len(held) == len(due):
            return _Wrong(at - 1, held)
        window = self.spec.window if self.histories.places[place] == "window" else 0
        seen = max(0, len(held) - window + 1) if window and not self.spec.chunked else 0
        first = next((i for i in range(seen, len(due)) if held[i : i + 1] != due[i : i + 1]), None)
        if first is None:
            whole = held[: len(due)] == due
            return _Wrong(begin + len(due), held if whole else held[: len(due) + 1], extra=True)
        if first < len(held):
            return _Wrong(begin + first, held[: first + 1])
        short = held == due[:first]
        return _Wrong(begin + first - (not short), held, short=short)

    def _of_stray(self, place: int, stray: StrayCell, tokens: Tokens) -> "_Wrong":
        """A cell out of order; where all before it is right, the one above, which diverges."""
        position, begin = stray.position, self.histories.begin(place, stray.position)
        held = self.histories.tokens(stray.node, place)
        if stray.above != ROOT and held == tokens[begin : position + 1]:
            position, held = Pos(position + 1), self.histories.tokens(stray.above, place)
        return _Wrong(position, held, extra=stray.extra or position >= len(tokens))

    def _run_marks(self, ubatch: Ubatch, store: Store) -> Integers:
        """Put the ubatch through the layers of marks; the nodes of its tokens, (T,)."""
        births = np.arange(self._born.count, self._born.count + len(ubatch.tokens))
        nodes, alone = np.zeros_like(births), (Reading(ROOT),) * len(self._marks)
        # A token may see one that comes after it, of another request, whose history is not known.
        lone = [self.histories.node(Token(token), alone) for token in ubatch.tokens.tolist()]
        self._born.append(np.array(lone))
        readers = [
            self._rows(shape, ubatch, store, nodes)
            if shape.place == "recurrent"
            else self._cells(shape, place, births, store)
            for place, shape in enumerate(self._marks)
        ]
        for row, token in enumerate(ubatch.tokens):
            readings = tuple(read(row) for read in readers)
            nodes[row] = self.histories.node(Token(int(token)), readings)
            self._born.data[births[row]] = nodes[row]
        newest_first = nodes.reshape(ubatch.sets, -1, 1)[:, ::-1]
        for shape, reader in zip(self._marks, readers, strict=True):
            if isinstance(reader, PaddedRows):
                store.keep_states(shape.layer, reader.kept())
            elif shape.place == "recurrent":
                store.keep_states(shape.layer, newest_first[:, : store.planes])
        return nodes

    def _rows(
        self, shape: LayerShape, ubatch: Ubatch, store: Store, nodes: Integers
    ) -> Callable[[int], Reading]:
        """Read the row: what the set started from, then the node of the token before."""
        starts = store.states(shape.layer)[:, 0].copy()
        if ubatch.padding is not None:
            padding = ubatch.padding
            if not {"ssm", "delta"} & set(self.spec.layers):
                padding = padding.of_convolution()
            return PaddedRows(self.histories, padding, starts, nodes)
        count = len(nodes) // ubatch.sets

        def read(row: int) -> Reading:
            return Reading(int(nodes[row - 1] if row % count else starts[row // count]))

        return read

    def _cells(
        self, shape: LayerShape, place: int, births: Integers, store: Store
    ) -> Callable[[int], Reading]:
        """Read the cells: each row reads its lane without its own cell."""
        words = births[:, None]
        lanes = {
            int(row): (cells, i)
            for lane in store.attend(shape.layer, words, words)
            for cells in [_Cells(lane, int(births[0]))]
            for i, row in enumerate(lane.rows)
        }

        def read(row: int) -> Reading:
            cells, i = lanes[row]
            low, high, birth = int(cells.low[i]), int(cells.high[i]), int(births[row])
            former = cells.continued(low, high, birth)
            if former is not None:
                node, stray = int(self._born.data[former]), None
            else:
                positions, keys, values = cells.seen(low, high, birth)
                nodes, stray = self._nodes_of(keys, values), None
                if len(nodes):
                    stray = self._stray(place, positions, nodes, low, cells.own(high, birth))
                node = int(nodes[-1]) if len(nodes) else ROOT
            cells.keep_line(low, high, birth if stray is None else ROOT)
            return Reading(node, stray)

        return read

    def _nodes_of(self, keys: Integers, values: Integers) -> Integers:
        """The nodes of cells; a key beside another cell's value, or garbage, is of no history."""
        known = (keys == values) & (keys > 0) & (keys < self._born.count)
        return np.where(known, self._born.data[np.where(known, keys, 0)], ROOT)

    def _stray(
        self, place: int, positions: Integers, nodes: Integers, bottom: int, own: int
    ) -> StrayCell | None:
        """The first cell out of line, going down from a token's own position.

        Each must be just below the one that continues it, down to the first token of all or to
        the bottom of what can be seen.
        """
        gaps = np.empty_like(positions)
        gaps[:-1] = positions[1:] - positions[:-1]
        gaps[-1] = own - positions[-1]
        broken = (gaps != 1) | (nodes == ROOT)
        broken[:-1] |= self.histories.parents(nodes[1:], place) != nodes[:-1]
        if broken.any():
            i = int(np.flatnonzero(broken)[-1])
            position, node = Pos(int(positions[i])), int(nodes[i])
            if gaps[i] > 1:
                return StrayCell(Pos(position + int(gaps[i]) - 1), ROOT)
            if gaps[i] < 1:
                return StrayCell(position, node, extra=True)
            return StrayCell(
                position, node, int(nodes[i + 1]) if node and i + 1 < len(nodes) else ROOT
            )
        lowest, first = int(positions[0]), int(nodes[0])
        if lowest == 0:
            return None if self.histories.depth(first, place) == 1 else StrayCell(Pos(0), first)
        # A line may begin with a first token above the bottom: whatever was below it is gone.
        return StrayCell(Pos(lowest - 1), ROOT) if lowest > bottom else None


class PaddedRows:
    """The marks of a recurrent place where some rows are padding: what each row reads.

    What is kept follows the layers: tokens that they lose are not in it, and padding that they let
    in, into the state or into the convolution, is in it as tokens of its own.
    """

    def __init__(
        self, histories: Histories, padding: Padding, starts: Integers, nodes: Integers
    ) -> None:
        self._histories = histories
        self._padding = padding
        self._count = int(padding.real.shape[1])
        self._nodes = nodes.reshape(-1, self._count)
        self._former = [int(start) for start in starts]
        self._now = list(self._former)
        self._ends = [
            {int(ending.rows[-1]): ending for ending in padding.endings(one)}
            for one in range(len(starts))
        ]

    def __call__(self, row: int) -> Reading:
        """The reading of a row; rows come in order, each after the previous one's node is set."""
        one, at = divmod(row, self._count)
        if at:
            self._leave(one, at - 1)
        return Reading(self._now[one])

    def kept(self) -> Integers:
        """The nodes to be kept, (S, 1, 1)."""
        count = self._count
        for one, real in enumerate(self._padding.real):
            self._leave(one, count - 1)
            if self._padding.conv_ends is None and self._now[one] != ROOT:
                self._pad(one, count - 1 - int(np.flatnonzero(real)[-1]) if real.any() else count)
        return np.array(self._now).reshape(-1, 1, 1)

    def _leave(self, one: int, at: int) -> None:
        if self._padding.real[one, at]:
            self._now[one] = int(self._nodes[one, at])
        ending = self._ends[one].get(at)
        if ending is None:
            return
        if ending.keeps_former or len(ending.lost):
            self._now[one] = self._former[one]
        elif self._former[one] != ROOT:
            self._pad(one, len(ending.fading))
        self._former[one] = self._now[one]

    def _pad(self, one: int, count: int) -> None:
        for _ in range(count):
            readings = (Reading(self._now[one]),) * len(self._histories.places)
            self._now[one] = self._histories.node(PADDING, readings)


class _Cells:
    """The lane of marks by position, as it stands now: memory may change before it is read.

    A reader usually sees the cells of the one before it and that one's own cell, so an unbroken
    line need not be checked again from its start:

        one reader    first .. end | own
        the next              first .. end, own | its own      (a window's `first` moves up)
    """

    def __init__(self, lane: Lane, first_birth: int) -> None:
        order = np.argsort(lane.positions, kind="stable")
        self.positions: Integers = lane.positions[order]
        self.keys: Integers = lane.keys[order, 0]
        self.values: Integers = lane.values[order, 0]
        self.low, self.high = lane.low.copy(), lane.high.copy()
        fresh = self.keys[self.keys >= first_birth]
        # A node of a later row is not known yet; in order, no reader sees one.
        self._in_order = bool((fresh[1:] > fresh[:-1]).all())
        self._line: tuple[int, int] | None = None  # its reader's own cell, and `low`

    def keep_line(self, low: int, high: int, birth: int) -> None:
        """Keep where a reader's own cell ends an unbroken line; ROOT as birth for a broken one."""
        own = int(self.positions.searchsorted(high, side="right")) - 1
        ends = self._in_order and own >= 0 and self.keys[own] == birth
        self._line = (own, low) if ends else None

    def continued(self, low: int, high: int, birth: int) -> int | None:
        """The birth of the former reader, if this one sees its line and its own cell; or None."""
        if self._line is None:
            return None
        former, bottom = self._line
        own = former + 1
        follows = (
            own < len(self.keys)
            and self.keys[own] == birth
            and self.positions[own] == high == self.positions[former] + 1
            and (own + 1 == len(self.keys) or self.positions[own + 1] > high)
            and bottom <= low < high
        )
        return int(self.keys[former]) if follows else None

    def own(self, high: int, birth: int) -> int:
        """A reader's own position: where it sees ahead without end, that of its own cell."""
        if high < FAR:
            return high
        return next(iter(self.positions[self.keys == birth].tolist()), high)

    def seen(self, low: int, high: int, own: int) -> tuple[Integers, Integers, Integers]:
        """Positions, keys and values from `low` to `high`, the reader's own cell left out."""
        first = self.positions.searchsorted(low)
        end = self.positions.searchsorted(high, side="right")
        if first < end and self.keys[end - 1] == own:
            end -= 1
        held = slice(first, end)
        positions, keys, values = self.positions[held], self.keys[held], self.values[held]
        if not (keys == own).any():
            return positions, keys, values
        others = keys != own
        return positions[others], keys[others], values[others]


def _places(network: Network) -> tuple[Place, ...]:
    """The places where a token reads anything of others; in a window of 1 it sees itself alone."""
    blind = {"window"} if network.spec.window == 1 else set()
    return tuple(dict.fromkeys(s.place for s in network.shapes if s.place not in blind))


def _marks_shape(layer: int, place: Place) -> LayerShape:
    if place == "recurrent":
        return LayerShape(layer=layer, place=place, dtype="int64", marks=True, row=1)
    return LayerShape(layer=layer, place=place, dtype="int64", marks=True, key=(1,), value=(1,))


def _fingerprint(logits: Array) -> bytes:
    return blake2b(logits.tobytes(), digest_size=16).digest()
