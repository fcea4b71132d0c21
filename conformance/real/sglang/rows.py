"""`cachesim real sglang --runner`: the states that a release's model runner reads and writes.

A workload is run on both schedulers, batch by batch. Of each row of a batch the comparison has
its tokens, the length of the text in the state that it is computed from, whether that text is the
request's, and the same of the state that is tracked for the tree.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Batch, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.runner import Contents, Judge, Runner
from cachesim.errors import ScenarioError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.prove.hunt.proof import Prove, by_metadata
from cachesim.prove.playing import Difference, watched
from cachesim.prove.worker_side import until_error
from cachesim.scenario.format import Scenario
from cachesim.typed import there_is
from cachesim.units import Array
from conformance.real.agreement import Agreement, first_difference
from conformance.real.schedules import RealScheduler
from conformance.real.sglang.playing import Driver, Played
from conformance.real.sglang.scheduler import SCHEDULER, with_rust
from conformance.real.sglang.workloads import draw, draw_agents, draw_mixed

RUNNER: Final[RealScheduler[Rules]] = replace(
    with_rust(SCHEDULER), worker="conformance.real.sglang.rows_worker"
)
"""The scheduler with PyTorch and the tree core in Rust, and the model runner's preparation."""

Row = list[Any]
"""Request, start, end, length of the text read, whether it is the request's, the tracked state."""


class Labels(Contents):
    """States that are the texts folded into them."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[int, ...]] = {}
        self.written: list[int] = []

    def copy_state(self, source: int, target: int) -> None:
        self._write(target, self.texts.get(source, ()))

    def clear_state(self, slot: int) -> None:
        """A slot holds the state of no text."""
        self.texts.pop(slot, None)

    def state(self, slot: int) -> dict[int, Array]:
        return {0: np.array(self.texts.get(slot, ()), np.int64)}

    def put_state(self, slot: int, state: dict[int, Array]) -> None:
        self._write(slot, tuple(state[0].tolist()))

    def _write(self, slot: int, text: tuple[int, ...]) -> None:
        self.texts[slot] = text
        self.written.append(slot)


class Recorder(Runner):
    """The simulated model runner, with texts in place of a network."""

    __slots__ = ("labels", "pieces", "rows")

    def __init__(self, server: Played, rows: list[Row]) -> None:
        network = build(preset("hybrid-delta"), "ring")
        self.labels = Labels()
        grid = server.tree.shape.grid
        super().__init__(network, self.labels, self.labels, server.rules.runner, grid)
        self.pieces: list[tuple[int, ...]] = []
        self.rows = rows
        self.watch(server.tree.states)
        server.scheduler.on_chunk = self.stashing

    def run(self, batch: Batch, judge: Judge) -> list[list[int]]:
        """Run a batch, and record each row's read and tracked states."""
        first, self.labels.written = len(self.rows), []
        sampled = super().run(batch, judge)
        for req, row in zip(batch.reqs, self.rows[first:], strict=True):
            slots = [each for each in self.labels.written if each in (req.tracks or ())]
            if slots:
                text = self.labels.texts[slots[-1]]
                right = text == tuple(req.tokens[: len(text)].tolist())
                taps = req.track_at if batch.reads(req) else len(text)
                row[-1] = [len(text), right, taps]
        return sampled

    def _extend(self, req: Req) -> Array:
        return self._noted(req, req.prefix, req.fill, super()._extend)

    def _decode(self, req: Req, more: int = 0) -> Array:
        return self._noted(req, req.sampled + more - 1, req.sampled + more, super()._decode)

    def _noted(self, req: Req, start: int, end: int, run: Callable[[Req], Array]) -> Array:
        self.pieces = []
        found = run(req)
        read = self.pieces[0]
        right = read == tuple(req.tokens[:start].tolist())
        self.rows.append([req.id, start, end, len(read), right, None])
        return found

    def _piece(
        self,
        req: Req,
        start: int,
        end: int,
        initial: int | None,
        target: int | None,
        *,
        wanted: bool,
    ) -> Array:
        read = () if initial is None else self.labels.texts.get(initial, ())
        self.pieces.append(read)
        if target is not None:
            self.labels.texts[target] = read + tuple(req.tokens[start:end].tolist())
        return np.zeros((int(wanted), 1))


class Rows(Driver):
    """A simulated server whose batches run on the recorder."""

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        self.rows: list[Row] = []
        super().__init__(config, rules)

    def begin(self) -> None:
        super().begin()
        self.server.runner = Recorder(self.server, self.rows)


def rows_of(workload: Mapping[str, Any], rules: Rules) -> list[Row]:
    """The rows of a workload on the simulated model runner."""
    driver = Rows(workload["config"], rules)
    until_error(map(driver.play, workload["steps"]))
    return driver.rows


def count(agreement: Agreement, name: str, real: list[Row], ours: list[Row]) -> None:
    """Compare a workload's rows, and count those that read a state that is not their prefix's."""
    found = first_difference(real, ours)
    agreement.add(
        name.rpartition("-")[0],
        name,
        found,
        workloads=1,
        rows=len(real),
        tracked=sum(row[-1] is not None for row in real),
        wrong_states=sum(not row[4] for row in real),
        agreeing=int(found is None),
    )


def is_compared(workload: Mapping[str, Any]) -> bool:
    """Return true where the model has states, all of them on the device, and no drafter.

    A row of a verification has several tokens, of which the metadata of a decode names one.
    """
    config = workload["config"]
    return config["kind"] == "mamba" and not {"host", "drafts"} & {*config}


def compare_rows(release: str, seed: int, numbers: range, rules: Rules | None = None) -> int:
    """Run workloads with states on both model runners; the exit status."""
    known = FAMILY.release(release)
    title = f"sglang {known.name}: states that rows read and track, seed {seed}"
    found = Agreement(title=title)
    with RUNNER.start(known.name) as real:
        for number in watched(numbers):
            drawn = [make(seed, number, known.rules) for make in (draw, draw_mixed, draw_agents)]
            for workload in (each for each in drawn if is_compared(each)):
                answer = there_is(real.order(workload).get("results"))
                count(
                    found, workload["id"], answer["rows"], rows_of(workload, rules or known.rules)
                )
    return found.show()


def differs_in(scenario: Scenario, release: str) -> Difference | None:
    """The first row of a scenario in which the release's model runner differs."""
    _, workload, _ = RUNNER.workload_of(scenario, release)
    if not is_compared(workload):
        msg = f"{scenario.name} is not compared: its model has no states, or a host or drafts"
        raise ScenarioError(msg)
    with RUNNER.start(release) as real:
        answer = there_is(real.order(workload).get("results"))
    return first_difference(answer["rows"], rows_of(workload, FAMILY.release(release).rules))


PROVE: Final[Prove] = by_metadata(SCHEDULER.play_scenario, differs_in)
