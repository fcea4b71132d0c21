"""The recurrent layers of the ring network: a short convolution, then chains of everything."""

from typing import Final

import numpy as np

from cachesim.model.arithmetic import LayerShape
from cachesim.model.ring_layers import Passage
from cachesim.model.ring_words import MASK, ONE, SCRAMBLER, Words, fold, mix, mixed
from cachesim.model.spec import LayerKind
from cachesim.model.store import Ending, Padding, Store

CHAINS: Final[dict[LayerKind, int]] = {"conv": 0, "ssm": 1, "delta": 2}
"""How many chains a recurrent layer keeps beside the last inputs of its convolution."""

HANDFUL: Final = 12
"""Tokens up to which plain numbers are quicker than arrays."""


def _faded(state: int, word: int) -> int:
    return state * (mixed(word) | 1) & MASK


class Recurrent:
    """A convolution over the last few inputs and, in `ssm` and `delta`, chains of all of them.

    The row of a sequence, oldest input first:  [ taps - 1 inputs | a word for each chain ]
    """

    def __init__(self, layer: int, kind: LayerKind, taps: int, salts: Words) -> None:
        self._past = taps - 1
        self._chains = CHAINS[kind]
        self._salt = np.array(salts[0])
        self._salt_number, self._tap_number = int(salts[0]), int(salts[1]) | 1
        powers = [pow(self._tap_number, i, 1 << 64) for i in range(taps)]
        self._taps = np.array(powers[::-1], np.uint64)
        row = self._past + self._chains
        self.shape = LayerShape(
            layer=layer, place="recurrent", dtype="uint64", row=row, conv=self._past
        )

    def sweep(self, hidden: Words, passage: Passage) -> Words:
        """Fold each set's tokens into its row."""
        store, padding = passage.store, passage.ubatch.padding
        before = store.states(self.shape.layer)
        if padding is None and len(hidden) <= HANDFUL:
            words, states = self._walk(hidden.tolist(), before.tolist(), store.planes)
            store.keep_states(self.shape.layer, np.array(states, np.uint64))
            return np.array(words, np.uint64)
        inputs = mix(hidden + self._salt).reshape(len(before), -1)  # (S, n)
        if padding is not None:
            said, kept = self._walk_padded(inputs, before, padding)
        else:
            said, kept = self._sweep(inputs, before, store.planes)
        store.keep_states(self.shape.layer, kept)
        return mix(hidden + said.reshape(-1))

    def some(self, rows: list[int], hidden: Words, passage: Passage) -> list[int]:
        """The same: what a token says comes of what is kept after it."""
        words = self.sweep(hidden, passage)
        return [words.item(row) for row in rows]

    def step(self, word: int, position: int, store: Store, *, read: bool) -> int:
        """The same of one token, wherever it stands."""
        del position, read
        (row,) = store.states(self.shape.layer).tolist()
        said, row = self._fold_in(word, row)
        store.keep_states(self.shape.layer, np.array([[row]], np.uint64))
        return mixed(word + said)

    def _walk(
        self, hidden: list[int], before: list[list[int]], planes: int
    ) -> tuple[list[int], list[list[list[int]]]]:
        """A handful of tokens one by one: their words, and the rows to keep."""
        count = len(hidden) // len(before)
        words, kept = [], []
        for one, start in enumerate(before):
            after = [start]
            for each in hidden[one * count : (one + 1) * count]:
                said, row = self._fold_in(each, after[-1])
                words.append(mixed(each + said))
                after.append(row)
            kept.append(after[:0:-1][:planes])
        return words, kept

    def _fold_in(self, word: int, row: list[int]) -> tuple[int, list[int]]:
        """What one token adds, and the row after it.

        `mixed` is spelled out three times: here the calls would take longer than what they do.
        """
        past, tap = self._past, self._tap_number
        token = (word + self._salt_number) * SCRAMBLER & MASK
        inputs = [*row[:past], token ^ token >> 32]
        word = 0
        for one in inputs:
            word = word * tap + one
        word = word * SCRAMBLER & MASK
        word ^= word >> 32
        kept = inputs[1:]
        for state in row[past:]:
            gate = word * SCRAMBLER & MASK
            word = (state * (gate ^ gate >> 32 | 1) + word) & MASK
            kept.append(word)
        return word, kept

    def _walk_padded(self, inputs: Words, before: Words, padding: Padding) -> tuple[Words, Words]:
        """As `_walk` where some rows are padding: words (S, n), rows to keep (S, 1, row)."""
        words = np.zeros(inputs.shape, np.uint64)
        joined = np.concatenate(
            [before[:, : self._past], np.where(padding.real, inputs, np.uint64(0))], axis=1
        )
        convolved = self._convolve(joined).tolist()
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
        past = np.concatenate([before[:, : self._past], inputs], axis=1)
        word = self._convolve(past)
        chains = []
        for start in before[:, self._past :].T:
            word = fold(start, mix(word) | ONE, word)
            chains.append(word)
        return word, self._planes(past, chains, planes)

    def _convolve(self, past: Words) -> Words:
        """A polynomial in the tap word over each input and the `taps - 1` before it, (S, n)."""
        along = np.correlate(past.reshape(-1), self._taps, "full")[self._past :]
        return mix(along.reshape(past.shape)[:, : -self._past])  # no window lies in two sets

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
