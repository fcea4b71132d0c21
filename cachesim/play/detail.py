"""The heavy part of a run, written when asked for: what the server held after every event.

A session is watched while it runs. Once it is over every token in memory is traced back to the
step that brought it (`provenance`), and equal moments are told once: steps name them by number.

    "detail" of a run     about, issue, kind, model, options, the scenario's text, "states"
    "detail" of a step    its prompt and the parts it is made of, the states "before" it and
                          after each event ("at"), the logits of each token, cached and cold
"""

from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from cachesim.engines.held import Held
from cachesim.errors import ContractError
from cachesim.model.trace import Traced
from cachesim.play.result import LogitRow, Run, RunDetail, StepDetail, Stretch, TopLogit
from cachesim.play.session import TIMEOUT, Record, Session, groups_of
from cachesim.play.states import Provenance, states_of
from cachesim.scenario.writing import to_toml
from cachesim.units import Array
from cachesim.verify.oracle import Oracle

MOST_SEEN: Final = 4_000_000
"""Tokens and runs of cells in all moments together: who watches a long run sees its beginning."""

UNSEEN: Final = -1
"""The number of a moment after that."""

ROWS: Final = 8
"""Generated tokens whose logits are told, from the first one on."""

TOP: Final = 4
"""Tokens told of each row: those largest in the cached one, and those largest in the cold one."""


class Watcher:
    """Looks at a traced session's server after each event."""

    def __init__(self, session: Session) -> None:
        if session.trace is None:
            msg = "only a traced session can be watched"
            raise ContractError(msg)
        self.session = session
        self.trace: Traced = session.trace
        self.left = MOST_SEEN
        self.moments: dict[Held, int] = {}
        self.untils: list[int] = []  # how many tokens had been born when each was first seen
        self.at: list[int] = []  # the moment after each event
        self.first = self._moment()
        self.records: dict[int, Record] = {}
        self.begun = self._seen()
        self.ends: dict[int, tuple[int, int]] = {}  # births and moments when each was done
        session.engine.after_each_event(self._hear)

    def _moment(self) -> int:
        if self.left <= 0:
            return UNSEEN
        held = self.session.engine.held()
        if held not in self.moments:
            self.left -= size_of(held)
            self.moments[held] = len(self.moments)
            self.untils.append(self.trace.births)
        return self.moments[held]

    def _seen(self) -> tuple[int, int]:
        return self.trace.births, len(self.moments)

    def _hear(self) -> None:
        self.at.append(self._moment())

    def heard(self, record: Record) -> None:
        """A step is done, or there was no time for it.

        Then the server was interrupted anywhere, and so was whoever wrote down what it read: what
        was seen since the last step does not count.
        """
        self.records[record.index] = record
        if record.error == TIMEOUT:
            self.trace.histories.settle()
        self.ends[record.index] = self._whole() if record.error == TIMEOUT else self._seen()

    def _whole(self) -> tuple[int, int]:
        done = [i for i, each in self.records.items() if each.error != TIMEOUT]
        return self.ends[done[-1]] if done else self.begun

    def run_detail(self) -> RunDetail:
        """The whole run's detail; the session must be over."""
        scenario = self.session.scenario
        origins, seen = self._origins(), zip(self.moments, self.untils, strict=False)
        return RunDetail(
            about=" ".join(scenario.about.split()),
            issue=scenario.source.issue,
            kind=scenario.kind,
            model=scenario.model.preset or " ".join(scenario.model.layers or ()),
            options=dict(scenario.engine.options),
            toml=to_toml(scenario),
            states=states_of(islice(seen, self._whole()[1]), origins),
        )

    def _origins(self) -> Provenance:
        origins = Provenance(self.trace, tuple(self.records.values()))
        for group in groups_of(self.session.scenario):
            origins.learn([self.records[index] for index in group], self.ends[group[-1]][0])
        return origins

    def step_details(self, oracle: Oracle | None) -> list[StepDetail]:
        """The detail of every step, in order."""
        numbers = {id(event): i for i, event in enumerate(self.session.engine.events)}
        details, before = [], self.first
        for record in self.records.values():
            at = [self.at[numbers[id(event)]] for event in record.events]
            details.append(
                StepDetail(
                    prompt=tuple(int(token) for token in record.prompt),
                    parts=tuple(
                        Stretch(name=part.name, start=int(part.start), end=int(part.end))
                        for part in record.parts
                    ),
                    before=before,
                    at=tuple(at),
                    logits=() if oracle is None else _logits_of(record, oracle),
                )
            )
            before = at[-1] if at else before
        return details


def size_of(held: Held) -> int:
    """The number of tokens and runs in a moment."""
    tokens = sum(len(slot.tokens) for slot in held.slots)
    tokens += sum(len(each.tokens) for each in held.entries)
    tokens += sum(len(each) for entry in held.entries for _, each in entry.held)
    runs = sum(len(each.runs) for each in (*held.cells, *held.companion_cells))
    runs += sum(len(each.runs) for slot in held.slots for each in slot.checkpoints)
    return 1 + tokens + runs


def _logits_of(record: Record, oracle: Oracle) -> tuple[LogitRow, ...]:
    """For each generated token what the server's row says, and what the cold one does."""
    reply = record.reply
    if reply is None or reply.error is not None or not reply.generated:
        return ()
    cold = oracle.logits(reply.prompt, reply.generated, reply.strengths)
    network = oracle.network
    rows = list(zip(reply.logits, cold, strict=True))[:ROWS]
    return tuple(
        LogitRow(
            index=index,
            token=int(reply.generated[index]),
            cached=int(network.sample(one)),
            cold=int(network.sample(other)),
            difference=float(network.difference(one, other)),
            top=_top_of(one, other),
        )
        for index, (one, other) in enumerate(rows)
    )


def _top_of(cached: Array, cold: Array) -> tuple[TopLogit, ...]:
    """The largest logits of both rows, largest cold one first; words of the ring have no order."""
    if not np.issubdtype(cold.dtype, np.floating):
        return ()
    chosen = {int(token) for row in (cached, cold) for token in np.argsort(-row)[:TOP]}
    return tuple(
        TopLogit(token=token, cached=float(cached[token]), cold=float(cold[token]))
        for token in sorted(chosen, key=lambda token: -cold[token])
    )


def with_details(run: Run, watcher: Watcher, oracle: Oracle | None) -> Run:
    """A run with everything that was seen while it ran."""
    steps = zip(run.steps, watcher.step_details(oracle), strict=True)
    told = tuple(replace(step, detail=detail) for step, detail in steps)
    return replace(run, steps=told, detail=watcher.run_detail())
