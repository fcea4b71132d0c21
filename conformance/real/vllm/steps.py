"""`cachesim real vllm --runner`: every layer's reads and writes, step by step.

The release's own scheduler schedules drawn workloads, and its own model runner prepares each step:
slots of keys and values, states that are read and written, copies of states before the network and
after the outputs. Beside it the simulated scheduler and runner run the same workload.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, cast

import numpy as np

from cachesim.engines.vllm.block_pool import cdiv
from cachesim.engines.vllm.cells import Cells
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.request import Chunk, Step
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.runner import CachedRequestState, Judge, Pages, Runner, state_groups
from cachesim.engines.vllm.scan import Source
from cachesim.engines.vllm.server import Vllm
from cachesim.model.arithmetic import Network
from cachesim.model.store import lowest
from cachesim.prove.environment import Environment
from cachesim.prove.hunt.proof import Prove, by_metadata
from cachesim.prove.playing import Difference, watched
from cachesim.prove.worker_process import WorkerProcess
from cachesim.prove.worker_side import Stub
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind
from cachesim.units import Array
from conformance.real.agreement import Agreement, first_difference
from conformance.real.schedules import comparable, raised
from conformance.real.vllm.groups import Entry
from conformance.real.vllm.models import LONGEST
from conformance.real.vllm.playing import Driver, play
from conformance.real.vllm.scheduler import SCHEDULER
from conformance.real.vllm.workloads import draft, draw

WORKER: Final = "conformance.real.vllm.runner_worker"
KERNELS: Final = Environment(name="vllm-kernels", requirements=("triton==3.9.0",))
"""Triton, whose interpreter runs the release's kernels on a CPU."""

KINDS: Final = ("delta", "ssm")

DRAWN: Final = (1, 2, 3, 4, 7, 8, 9, 10, 11)
"""Kinds of workloads, by their place: with windows, states, drafters, pressure, priorities."""

FINE: Final = 3
GROUPS: Final = 2
"""Groups of requests in a workload: Triton's interpreter takes its time."""


def draw_steps(seed: int, number: int, rules: Rules) -> Entry:
    """A short workload; with states in any mode that the release has, and drafts in any kind."""
    turn, place = divmod(number, len(DRAWN))
    workload = draw(seed, 13 * turn + DRAWN[place], rules, option="none")
    rng = Random(f"vllm runner {seed} {number}")
    config = workload["config"]
    if not config.get("drafts") and rng.random() < 0.5:
        draft(rng, workload, rules)
    for wanted in (each for group in workload["steps"] for each in group):
        if config.get("drafts") and rng.random() < 0.5:
            wanted["propose"] = [rng.randint(0, config["drafts"]) for _ in range(3)]
    _choose_mode(rng, workload, rules, fine=DRAWN[place] == FINE)
    if rng.random() < 0.5:  # some of these sizes divide blocks
        config["scan_size"] = rng.choice((3, 4, 6, 7, 12))
    mode = mode_of(config)
    return workload | {"id": f"{workload['id']}-{mode}", "steps": workload["steps"][:GROUPS]}


def _choose_mode(rng: Random, workload: Entry, rules: Rules, *, fine: bool) -> None:
    config = workload["config"]
    states = [group for group in config["groups"] if group["kind"] == "mamba"]
    if fine:  # the engine core knows one size of blocks
        config["groups"][0]["block"] = states[0]["block"]
    mode = rng.choice(("align", "align", *rules.modes)) if states else "align"
    ends = config.get("eagle") and rules.runner.model_runner_v1 == "n-grams"
    if mode == "all" and config.get("drafts") and (ends or not rules.runner.drafts_in_all_mode):
        mode = "align"
    if mode == "all":  # a step without drafts ends the engine: MambaMixer2 asserts a step before
        for wanted in (each for group in workload["steps"] for each in group):
            wanted["propose"] = [max(each, 1) for each in wanted.get("propose", ())]
    if mode == "none":
        config |= {"caching": False, "retention": None}
        config.pop("hash_block", None)
    for group in states:
        group["mode"] = mode
        if mode == "none":
            group["block"] = LONGEST  # a state for the whole of a request


@dataclass(slots=True)
class Recorder(Runner):
    """The simulated runner without a network; reads, writes and copies are recorded."""

    rows: dict[str, Entry] = field(default_factory=dict)
    copies: dict[str, list[list[int]]] = field(default_factory=dict)
    steps: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pages, self.kind = Pages(cast("Network", Stub(shapes=())), self.groups), "ssm"
        self.state_groups = state_groups(self.groups)

    def run(self, step: Step, judge: Judge) -> list[list[int]]:
        sampled = Runner.run(self, step, judge)
        if step.chunks:
            self.steps.append(self.entry(step.copies))
        return sampled

    def _move(self, held: CachedRequestState, running: int, bias: int, target: int) -> None:
        for table in (held.tables[group] for group in self.state_groups):
            if running + bias < len(table):
                phase = "after" if self.rows else "before"
                noted = [table[target], table[running + bias], table[running], bias]
                self.copies.setdefault(phase, []).append(noted)

    def _compute(self, chunk: Chunk) -> Array:
        held, row = self.held[chunk.request.id], Entry(chunk=[chunk.start, chunk.end])
        row |= {"slots": {}, "seen": {}}
        for number, (spec, table) in enumerate(zip(self.groups, held.tables, strict=True)):
            if spec.kind == "mamba":
                continue
            cells = Cells.of(spec, table, chunk.start, chunk.count)
            first, span = np.array([chunk.start]), spec.chunk or spec.window
            low = int(lowest(first, span, chunked=bool(spec.chunk))[0])
            row["slots"][str(number)] = [int(each) for each in cells.written]
            row["seen"][str(number)] = table[low // spec.block : cdiv(chunk.end, spec.block)]
        for kind in KINDS if self.state_groups else ():
            self.kind = kind
            position, exported = self._exported(chunk)
            pieces = [(chunk.start, chunk.end)] if exported else self._pieces(chunk)
            stores = [self._store(chunk, *piece) for piece in pieces]
            row[kind] = {
                str(group): [
                    stores[0].initial[group],
                    [target for store in stores for target in store.targets[group]],
                    *([[exported[group], position]] if group in exported else []),
                ]
                for group in self.state_groups
            }
        self.rows[str(chunk.request.id)] = row
        return np.zeros(0)

    def _cache_states(self, prefills: Sequence[Chunk], sources: Sequence[Sequence[Source]]) -> None:
        names = [str(chunk.request.id) for chunk in prefills]
        for name, chunk, taken in zip(names, prefills, sources, strict=True):
            for group in self.state_groups:
                table = self.held[chunk.request.id].tables[group]
                last = [table[cdiv(chunk.end, self._state.block) - 1], name, chunk.end]
                found = [[table[index], names[row], end] for index, row, end in taken]
                self.rows[name]["ssm"][str(group)].append([*found, last])

    def entry(self, copies: Sequence[tuple[int, int, int]]) -> Entry:
        """Notes of a step, in the form of the real runner's."""
        noted, self.copies = self.copies, {}
        rows, self.rows = self.rows, {}
        pages = [[target, source, source, 0] for _, source, target in copies]
        found = {phase: sorted(each) for phase, each in noted.items()}
        return {"rows": rows, "copies": found | ({"pages": sorted(pages)} if pages else {})}


class Runs(Driver):
    """A simulated server whose steps run on the recorder."""

    def __init__(self, config: Mapping[str, Any], rules: Rules, **how: Any) -> None:
        super().__init__(config, rules, **how)
        server = self.server
        own = replace(
            rules.runner, reads_first_behind_prefill=True
        )  # some rows have no drafts here
        self.recorder = Recorder(cast("Network", None), server.runner.groups, own)
        self.recorder.v1, self.recorder.scan_size = server.runner.v1, server.runner.scan_size
        self.recorder.exports = server.runner.exports
        server.runner, server.scheduler.passes_block_tables = self.recorder, True

    def play(self, group: Sequence[Mapping[str, Any]]) -> Entry:
        self.recorder.steps = []
        done = super().play(group)
        return {"steps": self.recorder.steps} if "requests" in done else done


def difference(
    real: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]
) -> Difference | None:
    """The first step of all groups that differs, in fields that the real runner has."""
    theirs, mine = _steps(real), _steps(ours)
    likes = [*theirs, *mine[len(theirs) :]]
    return first_difference(
        [_shown(their, their) for their in theirs],
        [_shown(each, like) for each, like in zip(mine, likes, strict=False)],
    )


def _steps(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [step for group in groups for step in group.get("steps", [group])]


def _shown(step: Mapping[str, Any], like: Mapping[str, Any]) -> Mapping[str, Any]:
    if "rows" not in step:
        return step
    known = like.get("rows", {})
    rows = {
        name: {what: row.get(what) for what in known.get(name, row)}
        for name, row in step["rows"].items()
    }
    return {"rows": rows, "copies": {phase: copy for phase, copy in step["copies"].items() if copy}}


def count(agreement: Agreement, workload: Entry, real: list[Entry], ours: list[Entry]) -> None:
    """Count a workload by the mode of its states; one that the release fails on is no agreement."""
    failed = raised(real)
    found = difference(*comparable(real, ours))
    steps = [step for step in _steps(real) if "rows" in step]
    agreement.add(
        mode_of(workload["config"]),
        workload["id"],
        found,
        workloads=1,
        steps=len(steps),
        rows=sum(len(step["rows"]) for step in steps),
        copies=sum(len(copies) for step in steps for copies in step["copies"].values()),
        agreeing=int(found is None and not failed),
        raised=int(failed),
    )


def mode_of(config: Mapping[str, Any]) -> str:
    """Cache mode of a workload's states."""
    modes = [group["mode"] for group in config["groups"] if group["kind"] == "mamba"]
    return modes[0] if modes else "no states"


def compare_steps(release: str, seed: int, numbers: range, rules: Rules | None = None) -> int:
    """Run workloads on a release's scheduler and runner, and ours beside it; the exit status."""
    known = FAMILY.release(release)
    title = f"vllm {known.name}: reads, writes and copies of the model runner, seed {seed}"
    found = Agreement(title=title, kinds="mode")
    with start(known.name) as process:
        for number in watched(numbers):
            workload = draw_steps(seed, number, known.rules)
            real = process.play(workload)
            count(found, workload, real, play_steps(workload, rules or known.rules))
    return found.show()


def start(release: str) -> WorkerProcess:
    """A release's scheduler and runner, kernels interpreted."""
    core, kernels = SCHEDULER.core_of(release), KERNELS.ready()
    core.ready()
    packages = next(kernels.parents[1].glob("lib/python*/site-packages"))
    given = str(core.folder), release, str(packages)
    return WorkerProcess(f"vllm {release}", core.python, WORKER, *given)


def differs_in(scenario: Scenario, release: str) -> Difference | None:
    """The first step of a scenario that the release's runner reads, writes or copies otherwise."""
    _, workload, server = SCHEDULER.workload_of(scenario, release)
    with start(release) as process:
        real = process.play(workload)
    rules = FAMILY.release(release).rules
    return difference(*comparable(real, play_steps(workload, rules, of_kind(Vllm, server))))


def play_steps(workload: Entry, rules: Rules, like: Vllm | None = None) -> list[Entry]:
    """All groups of a workload on the simulated scheduler and runner."""
    return play(workload, rules, kind=Runs, like=like)


PROVE: Final[Prove] = by_metadata(SCHEDULER.play_scenario, differs_in)
