"""`cachesim real vllm --runner`: what every layer reads and writes, step by step.

The release's own scheduler schedules drawn workloads, and its own model runner prepares each step:
slots of keys and values, states that are read and written, copies of states before the network and
after the outputs. Beside it the simulated scheduler and runner play the same workload.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import numpy as np

from cachesim.engines.vllm.block_pool import cdiv
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.request import Chunk, Request, Step
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.runner import CachedRequestState, Cells, Pages, Runner, state_groups
from cachesim.errors import UpstreamAbort
from cachesim.lab.real.environment import Environment
from cachesim.lab.real.playing import console, table_of_numbers, watched
from cachesim.lab.real.vllm.models import LONGEST
from cachesim.lab.real.vllm.playing import Player
from cachesim.lab.real.vllm.scheduler import SCHEDULER
from cachesim.lab.real.vllm.workloads import draw, speculative
from cachesim.lab.real.worker_process import WorkerProcess
from cachesim.lab.real.worker_side import Bag
from cachesim.model.arithmetic import Network
from cachesim.model.store import lowest
from cachesim.scenario.format import Scenario
from cachesim.units import Array

WORKER: Final = "cachesim.lab.real.vllm.runner_worker"
KERNELS: Final = Environment(name="vllm-kernels", requirements=("triton==3.9.0",))
"""Triton, whose interpreter runs the release's kernels on a CPU."""

KINDS: Final = ("delta", "ssm")
COLUMNS: Final = ("workloads", "steps", "rows", "copies", "agreeing")
MOST_SHOWN: Final = 5

DRAWN: Final = (1, 2, 3, 4, 7, 8, 9, 10, 11)
"""Kinds of workloads, by their place: with windows, states, drafters, pressure, priorities."""

FINE: Final = 3
GROUPS: Final = 2
"""Groups of requests in a workload: Triton's interpreter takes its time."""

Entry = dict[str, Any]


def draw_steps(seed: int, number: int, rules: Rules) -> Entry:
    """A short workload; with states in any mode that the release has, and drafts in any kind."""
    turn, place = divmod(number, len(DRAWN))
    workload = draw(seed, 13 * turn + DRAWN[place], rules)
    rng = Random(f"vllm runner {seed} {number}")
    config = workload["config"]
    if not config.get("drafts") and rng.random() < 0.5:
        _draft(rng, workload, rules)
    for wanted in (each for group in workload["steps"] for each in group):
        if config.get("drafts") and rng.random() < 0.5:
            wanted["propose"] = [rng.randint(0, config["drafts"]) for _ in range(3)]
    _choose_mode(rng, workload, rules, fine=DRAWN[place] == FINE)
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


def _draft(rng: Random, workload: Entry, rules: Rules) -> None:
    """Give the workload's server a drafter: an MTP head or EAGLE, or n-grams."""
    config, drafts, eagle = workload["config"], rng.choice((1, 2, 3)), rng.random() < 0.7
    config |= {"drafts": drafts, "eagle": eagle, "lookahead_hashes": True}
    config["groups"] = speculative(config["groups"], drafts, rules, eagle=eagle)
    config["blocks"] += len(config["groups"]) * (drafts + 1)
    for wanted in (each for group in workload["steps"] for each in group):
        wanted["accept"] = [rng.randint(0, drafts) for _ in range(3)]


def runs_on_v1(config: Mapping[str, Any], rules: Rules) -> bool:
    """True if a workload's server has Model Runner V1. Follows `use_v2_model_runner`."""
    modes = [group.get("mode") for group in config["groups"] if group["kind"] == "mamba"]
    use = rules.runner.model_runner_v1
    some = bool(config.get("drafts") and not config["eagle"]) and use != "never"
    return use == "always" or some or ("all" in modes and use == "n-grams-and-all")


@dataclass(slots=True)
class Recorder(Runner):
    """The simulated runner without a network: what it would read, write and copy is noted."""

    rows: dict[str, Entry] = field(default_factory=dict)
    copies: dict[str, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pages = Pages(cast("Network", Bag(shapes=())), self.groups)
        self.state_groups = state_groups(self.groups)

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
            stores = [self._store(chunk, *piece) for piece in self._pieces(chunk)]
            row[kind] = {
                str(group): [
                    stores[0].initial[group],
                    [each for store in stores for each in store.targets[group]],
                ]
                for group in self.state_groups
            }
        self.rows[str(chunk.request.id)] = row
        return np.zeros(0)

    def entry(self, copies: Sequence[tuple[int, int, int]]) -> Entry:
        """Notes of a step, in the form of the real runner's."""
        noted, self.copies = self.copies, {}
        rows, self.rows = self.rows, {}
        pages = [[target, source, source, 0] for _, source, target in copies]
        found = {phase: sorted(each) for phase, each in noted.items()}
        return {"rows": rows, "copies": found | ({"pages": sorted(pages)} if pages else {})}


class Runs(Player):
    """A simulated scheduler whose steps run on the recorder."""

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        super().__init__(config, rules)
        self.scheduler.tells_blocks = True
        groups = self.manager.groups
        self.runner = Recorder(cast("Network", None), groups, rules.runner)
        self.runner.v1 = runs_on_v1(config, rules)
        self.steps: list[Entry] = []
        self.answers: dict[int, tuple[list[int], list[int]]] = {}

    def play(self, group: Sequence[Mapping[str, Any]]) -> Entry:
        self.steps = []
        done = super().play(group)
        return {"steps": self.steps} if "requests" in done else done

    def _come_back(self, step: Step, requests: Sequence[Request]) -> None:
        for gone in step.preempted:
            self.runner.forget(gone.id)
        self.answers = {chunk.request.id: super(Runs, self)._answer(chunk) for chunk in step.chunks}
        self.runner.run(step, lambda chunk, _: self.answers[chunk.request.id][0])
        self.steps.append(self.runner.entry(step.copies))
        super()._come_back(step, requests)

    def _answer(self, chunk: Chunk) -> tuple[list[int], list[int]]:
        return self.answers[chunk.request.id]


def difference(real: Sequence[Entry], ours: Sequence[Entry]) -> str:
    """The first place in which the steps of all groups differ; empty where none does."""
    nothing: Entry = {}
    for number, (theirs, mine) in enumerate(zip_longest(real, ours, fillvalue=nothing)):
        if "steps" not in theirs or "steps" not in mine:
            if theirs != mine:
                return f"group {number}: real {str(theirs)[:200]}, simulated {str(mine)[:200]}"
            continue
        for turn, pair in enumerate(zip_longest(theirs["steps"], mine["steps"], fillvalue=nothing)):
            found = _of_step(*pair)
            if found:
                return f"group {number}, step {turn}, {found}"
    return ""


def _of_step(real: Entry, ours: Entry) -> str:
    if "rows" not in real or "rows" not in ours:
        return "one has a step more"
    if real["rows"].keys() != ours["rows"].keys():
        return f"requests: real {[*real['rows']]}, simulated {[*ours['rows']]}"
    for name, row in real["rows"].items():
        for what in row:
            if row[what] != ours["rows"][name].get(what):
                mine = ours["rows"][name].get(what)
                chunk = row["chunk"]
                return f"request {name}, {what}: real {row[what]}, simulated {mine}, chunk {chunk}"
    for phase in ("pages", "before", "after"):
        theirs, mine = real["copies"].get(phase, []), ours["copies"].get(phase, [])
        if theirs != mine:
            return f"copies {phase}: real {theirs}, simulated {mine}"
    return ""


@dataclass(slots=True)
class Compared:
    """Counts of workloads and steps that the real runner and ours play alike."""

    release: str
    workloads: int = 0
    agreeing: int = 0
    steps: int = 0
    rows: int = 0
    copies: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def count(self, workload: Entry, real: Sequence[Entry], ours: Sequence[Entry]) -> None:
        """Hold one workload's steps against each other."""
        self.workloads += 1
        found = difference(real, ours)
        self.agreeing += not found
        if found:
            self.differences.append(f"{workload['id']}: {found}")
        self.modes[mode_of(workload["config"])] += 1
        for step in (each for group in real for each in group.get("steps", ())):
            self.steps += 1
            self.rows += len(step["rows"])
            self.copies += sum(len(each) for each in step["copies"].values())

    def show(self) -> int:
        """The counts, and the first differences; the exit status."""
        title = f"vllm {self.release}: reads, writes and copies of the model runner, step by step"
        shown = table_of_numbers(title, "modes", *COLUMNS)
        counts = (self.workloads, self.steps, self.rows, self.copies, self.agreeing)
        modes = ", ".join(f"{mode} {count}" for mode, count in sorted(self.modes.items()))
        shown.add_row(modes, *map(str, counts))
        console().print(shown)
        for found in self.differences[:MOST_SHOWN]:
            console().print(f"difference in {found}", markup=False)
        return 0 if self.workloads and not self.differences else 1


def mode_of(config: Mapping[str, Any]) -> str:
    """Cache mode of a workload's states."""
    modes = [group["mode"] for group in config["groups"] if group["kind"] == "mamba"]
    return modes[0] if modes else "no states"


def compare_steps(release: str, seed: int, numbers: range, rules: Rules | None = None) -> int:
    """Play workloads on a release's scheduler and runner, and ours beside it; the exit status."""
    known = FAMILY.release(release)
    found = Compared(known.name)
    with start(known.name) as process:
        for number in watched(numbers):
            workload = draw_steps(seed, number, known.rules)
            real = process.play(workload)
            found.count(workload, real, play_steps(workload, rules or known.rules))
    return found.show()


def start(release: str) -> WorkerProcess:
    """A release's scheduler and runner, kernels interpreted."""
    core, kernels = SCHEDULER.core_of(release), KERNELS.ready()
    core.ready()
    given = (str(core.folder), release, str(packages_of(kernels)))
    return WorkerProcess(f"vllm {release}", core.python, SCHEDULER.flags, WORKER, *given)


def differs_in(scenario: Scenario, release: str) -> str:
    """The first read, write or copy of a scenario that the release's runner does not make; empty
    where all are the same.
    """
    _, workload = SCHEDULER.workload_of(scenario, release)
    with start(release) as process:
        real = process.play(workload)
    return difference(real, play_steps(workload, FAMILY.release(release).rules))


def play_steps(workload: Entry, rules: Rules) -> list[Entry]:
    """All groups of a workload on the simulated scheduler and runner."""
    player, found = Runs(workload["config"], rules), list[Entry]()
    for group in workload["steps"]:
        try:
            found.append(player.play(group))
        except UpstreamAbort as error:
            found.append({"error": str(error)})
        if "error" in found[-1]:
            break
    return found


def packages_of(python: Path) -> Path:
    """Folder of an environment's packages."""
    return next(python.parents[1].glob("lib/python*/site-packages"))
