"""The layers of the ring network: each takes hidden words (T,) and returns what it adds to them."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from cachesim.model.arithmetic import LayerShape, Place
from cachesim.model.ring_words import MASK, ONE, Words, fold, mix, mixed
from cachesim.model.spec import LayerKind
from cachesim.model.store import ABSENT, Ending, Lane, Padding, Store, Ubatch

CHAINS: Final[dict[LayerKind, int]] = {"conv": 0, "ssm": 1, "delta": 2}
"""How many chains a recurrent layer keeps beside the last inputs of its convolution."""

FEW: Final = 4096
"""Queries times keys up to which masks are quicker than running sums."""

HANDFUL: Final = 12
"""Tokens up to which plain numbers are quicker than arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The rotations of an ubatch's rows: g^position for keys, g^-position for queries, (T,)."""

    keys: Words
    queries: Words


class Layer(Protocol):
    """One layer with something to keep."""

    shape: LayerShape

    def run(self, hidden: Words, rotation: Rotation, store: Store, ubatch: Ubatch) -> Words:
        """What the layer adds to each row's word."""
        ...


class Attention:
    """out[i] = sum over visible j of q[i] k[j] v[j] g^(p[j] - p[i]), with odd q, k and v."""

    def __init__(self, layer: int, place: Place, salts: Words, *, turns: bool) -> None:
        self.shape = LayerShape(layer=layer, place=place, dtype="uint64", key=(1,), value=(1,))
        self._salts = salts[:, None]  # (3, 1)
        self._turns = turns

    def run(self, hidden: Words, rotation: Rotation, store: Store, ubatch: Ubatch) -> Words:  # noqa: ARG002
        """Hand keys and values (T, 1) to the store and add up what each row sees."""
        queries, keys, values = mix(hidden + self._salts) | ONE
        if self._turns:
            keys, queries = keys * rotation.keys, queries * rotation.queries
        seen = np.zeros(len(hidden), np.uint64)
        for lane in store.attend(self.shape.layer, keys[:, None], values[:, None]):
            seen[lane.rows] = visible_sums(lane)
        out: Words = queries * seen
        return out


def visible_sums(lane: Lane) -> Words:
    """For each row of a lane the sum of key times value over the cells it sees, (q,)."""
    words = lane.keys[:, 0] * lane.values[:, 0]
    if len(lane.rows) * len(words) <= FEW or len(lane.rows) == 1:
        return masked_sums(words, lane)
    return running_sums(words, lane)


def masked_sums(words: Words, lane: Lane) -> Words:
    """The sums by looking at every cell for every row: any lane, in any order."""
    visible = (lane.low[:, None] <= lane.positions) & (lane.positions <= lane.high[:, None])
    return visible @ words


def running_sums(words: Words, lane: Lane) -> Words:
    """The same in linear time: what lies up to `high`, less what lies below `low`.

    Cells are brought into the order of their positions where they are not; without holes and
    duplicates a position's place among them is a subtraction, else a search.
    """
    positions = lane.positions
    present = positions != ABSENT
    if not present.all():
        positions, words = positions[present], words[present]
    steps = positions[1:] - positions[:-1]
    straight = len(positions) > 0 and bool((steps == 1).all())
    if not straight and (steps < 0).any():
        order = np.argsort(positions, kind="stable")
        positions, words = positions[order], words[order]
    totals = np.zeros(len(words) + 1, np.uint64)
    np.add.accumulate(words, out=totals[1:])
    if straight:
        first, count = positions[0], len(positions)
        below = np.minimum(np.maximum(lane.low - first, 0), count)
        upto = np.minimum(lane.high - first + 1, count)
    else:
        below = np.searchsorted(positions, lane.low, side="left")
        upto = np.searchsorted(positions, lane.high, side="right")
    sums: Words = totals[np.maximum(upto, below)] - totals[below]
    return sums


def _faded(state: int, word: int) -> int:
    """A chain's word times the gate that a row's word sets."""
    return state * (mixed(word) | 1) & MASK


class Recurrent:
    """A convolution over the last few inputs and, in `ssm` and `delta`, chains of all of them.

    The row of a sequence, oldest input first:  [ taps - 1 inputs | a word for each chain ]
    """

    def __init__(self, layer: int, kind: LayerKind, taps: int, salts: Words) -> None:
        self._past = taps - 1
        self._chains = CHAINS[kind]
        self._salt, self._tap = np.array(salts[0]), np.array(salts[1] | ONE)
        self._tap_number = int(self._tap)
        row = self._past + self._chains
        self.shape = LayerShape(
            layer=layer, place="recurrent", dtype="uint64", row=row, conv=self._past
        )

    def run(self, hidden: Words, rotation: Rotation, store: Store, ubatch: Ubatch) -> Words:  # noqa: ARG002
        """Fold each set's tokens into its row."""
        inputs = mix(hidden + self._salt).reshape(ubatch.sets, -1)  # (S, n)
        before = store.states(self.shape.layer)
        if ubatch.padding is not None:
            word, states = self._walk_padded(inputs, before, ubatch.padding)
            store.keep_states(self.shape.layer, states)
            return word.reshape(-1)
        go = self._walk if len(hidden) <= HANDFUL else self._sweep
        word, states = go(inputs, before, store.planes)
        store.keep_states(self.shape.layer, states)
        return word.reshape(-1)

    def _walk(self, inputs: Words, before: Words, planes: int) -> tuple[Words, Words]:
        """Token by token in plain numbers: what each adds, (S * n,), and the rows to keep."""
        words, states = [], []
        for tokens, start in zip(inputs.tolist(), before.tolist(), strict=True):
            rows = [start]
            for token in tokens:
                word, row = self._step(token, rows[-1])
                words.append(word)
                rows.append(row)
            states.append(rows[:0:-1][:planes])
        return np.array(words, np.uint64), np.array(states, np.uint64)

    def _step(self, token: int, row: list[int]) -> tuple[int, list[int]]:
        """One token: the word that it adds, and the row that it leaves."""
        past = [*row[: self._past], token]
        word = 0
        for each in past:
            word = word * self._tap_number + each
        word = mixed(word)
        word, chains = self._fold_word(word, row[self._past :])
        return word, past[1:] + chains

    def _walk_padded(self, inputs: Words, before: Words, padding: Padding) -> tuple[Words, Words]:
        """As `_walk` where some rows are padding: words (S, n), rows to keep (S, 1, row)."""
        words = np.zeros(inputs.shape, np.uint64)
        joined = np.concatenate(
            [before[:, : self._past], np.where(padding.real, inputs, np.uint64(0))], axis=1
        )
        convolved = self._convolve(joined, inputs.shape[1]).tolist()
        ends = np.full(len(inputs), inputs.shape[1])
        if padding.conv_ends is not None:
            ends = np.clip(padding.conv_ends, 0, inputs.shape[1])
        rows = []
        for one, end in enumerate(ends):
            state = before[one, self._past :].tolist()
            for ending in padding.endings(one):
                said, state = self._chunk(convolved[one], ending, state, padding)
                words[one, ending.rows] = said
            rows.append([[*joined[one, end : end + self._past].tolist(), *state]])
        return words, np.array(rows, np.uint64)

    def _chunk(
        self, inputs: list[int], ending: Ending, former: list[int], padding: Padding
    ) -> tuple[list[int], list[int]]:
        """The words of one chunk's rows, and the chains that are kept after it."""
        tokens = {*ending.folded.tolist(), *ending.undecayed.tolist(), *ending.lost.tolist()}
        fading = set(ending.fading.tolist())
        chains, alone, said = former, former, []
        for row in ending.rows.tolist():
            word, after = self._fold_word(inputs[row], chains)
            if row in tokens:
                chains = after
            if self._chains == 1 and padding.chunked:
                if row in tokens or row in fading:
                    alone = [_faded(alone[0], inputs[row])]
                word = word if row in tokens else alone[0]
            said.append(word)
        if ending.keeps_former:
            return said, former
        if self._chains != 1 or ending.plain(fresh=not any(former)):
            return said, chains
        kept = 0
        for row in ending.folded.tolist():
            kept = self._fold_word(inputs[row], [kept])[0]
        return said, [(kept + sum(inputs[i] for i in ending.undecayed) + alone[0]) & MASK]

    @staticmethod
    def _fold_word(word: int, chains: list[int]) -> tuple[int, list[int]]:
        after = []
        for state in chains:
            word = (_faded(state, word) + word) & MASK
            after.append(word)
        return word, after

    def _sweep(self, inputs: Words, before: Words, planes: int) -> tuple[Words, Words]:
        """All tokens at once in arrays: what each adds, (S, n), and the rows to keep."""
        past = np.concatenate([before[:, : self._past], inputs], axis=1)
        word = self._convolve(past, inputs.shape[1])
        chains = []
        for start in before[:, self._past :].T:
            word = fold(start, mix(word) | ONE, word)
            chains.append(word)
        return word, self._planes(past, chains, planes)

    def _convolve(self, past: Words, count: int) -> Words:
        """A polynomial in the tap word over each input and the `taps - 1` before it, (S, n)."""
        word = past[:, :count]
        for i in range(1, self._past + 1):
            word = word * self._tap + past[:, i : i + count]
        return mix(word)

    def _planes(self, past: Words, chains: list[Words], planes: int) -> Words:
        """The rows after the last token, the last but one, and so on, (S, planes, row)."""
        count = past.shape[1] - self._past
        depth = min(count, planes)
        rows = np.empty((len(past), depth, self.shape.row), np.uint64)
        for plane, end in enumerate(range(count, count - depth, -1)):
            rows[:, plane, : self._past] = past[:, end : end + self._past]
            for i, chain in enumerate(chains, self._past):
                rows[:, plane, i] = chain[:, end - 1]
        return rows
