"""The engine: one request at a time, resumed from the longest kept prefix."""

from copy import deepcopy
from typing import Any

import numpy as np

from cachesim.engines.job import SampledJob, SerialEngine
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.arithmetic import PlainStore
from cachesim.model.store import Ubatch
from cachesim.units import Count, Token, Tokens

from . import vocabulary
from .account import account
from .observe import snapshot
from .options import Options
from .rules import Rules


class Server(SerialEngine[Rules, Options]):
    """`self.network` computes, `self.rules` and `self.options` decide."""

    def _set_up(self) -> None:
        self.kept: list[tuple[Tokens, dict[int, PlainStore]]] = []  # the least recently used first

    _empty = _set_up

    #   | reused: whole blocks | matched, computed again |  new tokens  | reply |
    #   0                    cached                    equal       len(prompt)
    def _serve(self, job: SampledJob) -> None:
        at, states = self._look_up(job)
        tokens, block = list(job.prompt), self.rules.block
        memory = deepcopy(states[at]) if at else PlainStore(self.network)
        for index in range(job.limit):
            while at < len(tokens):
                stop = min(len(tokens), (at // block + 1) * block)
                ids, positions = np.array(tokens[at:stop], np.int64), np.arange(at, stop)
                row, at = self.network.run(Ubatch(ids, positions), memory).logits[-1], stop
                if at % block == 0:
                    states[at] = deepcopy(memory)
            job.rows.append(row)
            job.sampled.append(Token(self._token(job, index, row)))
            tokens.append(job.sampled[-1])
        self.kept.append((tuple(tokens[:-1]), states))
        while len(self.kept) > self.options.entries:
            gone, _ = self.kept.pop(0)
            self._emit(vocabulary.EntryEvicted(task=int(job.ticket), tokens=len(gone)))

    def _look_up(self, job: SampledJob) -> tuple[int, dict[int, PlainStore]]:
        counts = [get_common_prefix(tokens, job.prompt) for tokens, _ in self.kept]
        equal, block = max(counts, default=0), self.rules.block
        job.ledger = account(equal, len(job.prompt), block)
        job.cached = job.ledger.usable
        self._emit(vocabulary.PrefixMatched(task=int(job.ticket), cached=job.cached))
        if not job.cached:
            return 0, {}
        self.kept.append(self.kept.pop(counts.index(Count(equal))))  # used last
        states = self.kept[-1][1]
        return job.cached, {at: state for at, state in states.items() if at <= job.cached}

    def snapshot(self) -> dict[str, Any]:
        return snapshot(tokens for tokens, _ in self.kept)

    def check_integrity(self) -> None:
        """Do nothing: there is no second count."""
