"""The answers of a server that quantises keys and values, computed again without its caches.

An uncached run cannot judge them: a token's keys depend on the calls that fed it.

    call      [ 0 ...... 8 )[ 8 ..... 16 )[ 16 )[ 17 )    attends to what those before it left
    written       exact         rounded    rounded ...    rounded once a call ends at the limit
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from cachesim.engines.tokens import get_common_prefix
from cachesim.model.arithmetic import Network
from cachesim.model.store import Frame, Lanes, Ubatch, grown
from cachesim.units import Array, Tokens

HALF: Final = np.uint64(32)
"""The bits that quantisation clears: here numbers are words, of which the upper half stays."""

MOST: Final = 300
"""Calls of a request that is computed again."""


@dataclass(frozen=True, slots=True)
class History:
    """Calls of the model for a sequence: the end of each, true if it wrote rounded numbers."""

    tokens: Tokens
    calls: tuple[tuple[int, bool], ...]
    rounds: bool = False  # the next call writes rounded numbers

    def cut(self, count: int) -> "History":
        """The first tokens, as a request resumes from them; calls that wrote exactly are one."""
        kept = [call for call in self.calls if call[0] < count]
        if count:
            kept.append((count, self.calls[len(kept)][1]))
        exact = max((end for end, rounds in kept if not rounds), default=0)
        calls: tuple[tuple[int, bool], ...] = ((exact, False),) if exact else ()
        calls += tuple(call for call in kept if call[1])
        return History(self.tokens[:count], calls, self.rounds)

    def continued(self, tokens: Tokens, ends: Sequence[int], start: int) -> "History":
        """The following calls; from `start` tokens on, stored rows are rounded."""
        calls, rounds = list(self.calls), self.rounds
        for end in ends:
            calls.append((end, rounds))
            rounds = rounds or end >= start
        return History(tokens, tuple(calls), rounds)


def ends_of(cached: int, prompt: int, generated: int, step: int) -> Iterator[int]:
    """Ends of a request's calls: steps, the last token of the prompt alone, then the reply."""
    yield from range(cached + step, prompt - 1, step)
    if cached < prompt - 1:
        yield prompt - 1
    yield from range(prompt, prompt + generated + 1)


class Recomputed:
    """Every sequence that a server has fed, and the answers that follow from it."""

    def __init__(self, network: Network, *, start: int, step: int) -> None:
        self._network, self._start, self._step = network, start, step
        self._fed: list[History] = []

    def wrong(self, prompt: Tokens, generated: Tokens, cached: int, logits: Array) -> bool | None:
        """True if no calls lead to these logits; None where the calls are unknown, or too many."""
        whole = prompt + generated
        ends = tuple(ends_of(cached, len(prompt), len(generated), self._step))
        found = {
            history.cut(cached)
            for history in (*self._fed, History((), ()))
            if cached <= get_common_prefix(history.tokens, prompt)
            and (cached or not history.tokens)
        }
        histories = [history.continued(whole, ends, self._start) for history in found]
        if not histories or sum(len(history.calls) for history in histories) > MOST:
            self._fed += histories
            return None
        right = [
            history
            for history in histories
            if np.array_equal(logits, self._logits(history, len(prompt)))
        ]
        self._fed += right or histories
        return not right

    def _logits(self, fed: History, prompt: int) -> Array:
        """The row before each token of the reply."""
        store, begin, rows = _Rows(self._network), 0, []
        calls = [*fed.calls, (0, fed.rounds)]
        for (end, rounds), (_, following) in pairwise(calls):
            store.rounds = rounds
            last = np.array([end - begin - 1])
            tokens = np.array(fed.tokens[begin:end], np.int64)
            ubatch = Ubatch(tokens, np.arange(begin, end), outputs=last)
            logits = self._network.run(ubatch, store).logits
            if prompt <= end < len(fed.tokens):
                rows.append(logits[0])
            if following and not rounds:
                store.round_all()
            begin = end
        return np.stack(rows)


def rounded(rows: Array) -> Array:
    """Numbers as they are quantised, and read again."""
    return rows >> HALF << HALF


class _Rows:
    """Keys and values of one sequence, in order; the states of its other layers."""

    planes = 1

    def __init__(self, network: Network) -> None:
        self.rounds = False
        self._rows: dict[int, tuple[Array, Array]] = {}
        self._states = {
            shape.layer: np.zeros((1, shape.row), shape.dtype)
            for shape in network.shapes
            if shape.place == "recurrent"
        }

    def round_all(self) -> None:
        """Round the stored rows."""
        for layer, (keys, values) in self._rows.items():
            self._rows[layer] = rounded(keys), rounded(values)

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Append the rows; each attends to itself and to those before it."""
        more = (rounded(keys), rounded(values)) if self.rounds else (keys, values)
        held = self._rows.get(layer)
        begin = 0 if held is None else len(held[0])
        if held is not None:
            more = np.concatenate((held[0], more[0])), np.concatenate((held[1], more[1]))
        self._rows[layer] = more
        frame = Frame.of_run(begin, begin + len(keys))
        size = len(frame.positions)
        return (frame.lane(grown(more[0], size), grown(more[1], size)),)

    def states(self, layer: int) -> Array:
        """The state after the last call, zeros at first."""
        return self._states[layer]

    def keep_states(self, layer: int, states: Array) -> None:
        """Keep the newest plane."""
        self._states[layer] = states[:, 0]
