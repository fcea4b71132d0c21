"""The oracle: logits of the network without any cache.

`cold_logits` is the definition. `Oracle` computes the same rows for many prompts: it keeps its last
few uncached runs and extends one that is a prefix of the prompt. An extended run is still uncached:
append-only, in a plain store, no token removed, moved or shared. Logits are a function of the
tokens, so those of a repeated prompt are not computed again.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from cachesim.errors import TokenError
from cachesim.model.adapters import Strengths, adapted_in
from cachesim.model.arithmetic import ArithmeticName, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Ubatch
from cachesim.units import Array, Token, Tokens

PIECE: Final = 1 << 16
"""Tokens per ubatch of an uncached run; the split changes no bit."""

KEPT: Final = 8
"""Cold runs kept by an oracle, in LRU order."""


ROWS: Final = 2048
"""Rows of logits kept by an oracle, in LRU order."""

NETWORKS: Final = 4
"""Networks with kept oracles."""


def cold_logits(
    model: ModelSpec | Network,
    tokens: Sequence[Token],
    *,
    rows: Iterable[int] | None = None,
    arithmetic: ArithmeticName = "float",
) -> Array:
    """The logits of every token of an uncached run, or of these rows, (rows, vocabulary)."""
    network = build(model, arithmetic) if isinstance(model, ModelSpec) else model
    run, ids = _ColdRun(network), tuple(tokens)
    if rows is None:
        return run.extend(ids, range(len(ids)))
    wanted = list(rows)
    ascending = sorted(set(wanted))
    return run.extend(ids, ascending)[np.searchsorted(ascending, wanted)]


class Oracle:
    """Cold logits for histories with common prefixes, such as the turns of a conversation."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._runs: list[_ColdRun] = []
        self._others: list[Oracle] = []
        self._answers: dict[tuple[Tokens, int], Array] = {}  # by tokens and first row, oldest first
        self._remembered = 0  # rows

    def logits(self, prompt: Tokens, generated: Tokens, strengths: Strengths = ()) -> Array:
        """The cold row of each generated token, (len(generated), ...).

        `strengths` of adapters: those are laid over the network from the first token on.
        """
        adapters = adapted_in(self.network)
        if adapters is not None:
            network = adapters.under(strengths)
            found = next((other for other in self._others if other.network is network), None)
            if found is None:
                found = Oracle(network)
                self._others.append(found)
            return found.logits(prompt, generated)
        tokens = prompt + generated[:-1]
        rows = range(len(prompt) - 1, len(prompt) + len(generated) - 1)
        key = tokens, rows.start
        answer = self._answers.pop(key, None)
        if answer is None:
            run = None
            for cold_run in self._runs:
                longer = run is None or len(cold_run.tokens) > len(run.tokens)
                if longer and cold_run.can_answer(tokens, rows):
                    run = cold_run
            if run is None:
                run = _ColdRun(self.network)
            else:
                self._runs.remove(run)
            self._runs = [run, *self._runs[: KEPT - 1]]
            answer = run.extend(tokens, rows)
            answer.flags.writeable = False
            self._remembered += len(answer)
        self._answers[key] = answer
        while self._remembered > ROWS:
            self._remembered -= len(self._answers.pop(next(iter(self._answers))))
        return answer


class Oracles:
    """The oracles of the last networks, for runs of similar workloads."""

    def __init__(self) -> None:
        self._kept: list[Oracle] = []

    def of(self, network: Network) -> Oracle:
        if self._kept and self._kept[0].network is network:
            return self._kept[0]
        found = next((oracle for oracle in self._kept if oracle.network is network), None)
        oracle = found or Oracle(network)
        self._kept = [oracle, *(other for other in self._kept if other is not oracle)][:NETWORKS]
        return oracle


class _ColdRun:
    """Tokens processed from the first one on, and the rows requested of them."""

    def __init__(self, network: Network) -> None:
        self.tokens: Tokens = ()
        self._network = network
        self._store = PlainStore(network)
        self._rows: dict[int, Array] = {}

    def can_answer(self, tokens: Tokens, rows: range) -> bool:
        """True if one history is a prefix of the other, and no other row is requested."""
        held = len(self.tokens)
        if tokens[:held] != self.tokens[: len(tokens)]:
            return False
        return rows.start >= held or all(row in self._rows for row in rows if row < held)

    def extend(self, tokens: Tokens, rows: Sequence[int]) -> Array:
        """Process tokens up to the end of `tokens`; return the requested rows, which ascend."""
        if not tokens:
            raise TokenError("there is nothing to compute: a prompt has at least one token")
        first = len(self.tokens)
        all_new = not rows or first <= rows[0]
        if all_new and first < len(tokens) <= first + PIECE:
            return self._run(tokens[first:], rows)
        for begin in range(first, len(tokens), PIECE):
            piece = tokens[begin : begin + PIECE]
            self._run(piece, rows[bisect_left(rows, begin) : bisect_left(rows, begin + PIECE)])
        return np.array([self._rows[row] for row in rows])

    def _run(self, tokens: Tokens, rows: Sequence[int]) -> Array:
        first = len(self.tokens)
        ubatch = Ubatch(
            np.array(tokens, np.int64),
            np.arange(first, first + len(tokens)),
            outputs=np.array([row - first for row in rows], np.int64),
        )
        logits = self._network.run(ubatch, self._store).logits
        self._rows.update(zip(rows, logits, strict=True))
        self.tokens += tokens
        return logits
