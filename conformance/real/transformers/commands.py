"""`cachesim real transformers`: each family's cache beside cold runs of the same model."""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter

from cachesim.engines.transformers.family import FAMILY
from cachesim.errors import OptionError
from cachesim.files import Output
from cachesim.prove.environment import Environment, package_of, versions_of
from cachesim.prove.playing import comparing, console, watched
from cachesim.prove.transformers.process import Worker
from cachesim.prove.transformers.program import Model, program_of
from cachesim.prove.transformers.scripts import (
    NAMED,
    OPERATIONS,
    ROUNDED,
    Script,
    drawn,
    shrunk,
    text_of,
)
from cachesim.prove.worker_process import WorkerError
from conformance.real.agreement import show_overrides
from conformance.real.fields import judge_wheel
from conformance.real.transformers.caches import compare, compare_layers, overrides
from conformance.real.transformers.causes import SHOWN
from conformance.real.transformers.environments import NEWEST, Copy, answered, environment_for
from conformance.real.transformers.reports import write_reports
from conformance.real.transformers.results import Cell, Found, is_worse, show, show_changes
from conformance.real.transformers.scenarios import STAGE

ROWS: Final = b'{"release"'
PROCESSES: Final = 2
"""Families that are run at once."""


@comparing
def real_transformers(
    *,
    release: Sequence[str] = (),
    library: Path | None = None,
    family: Sequence[str] = (),
    operation: Sequence[str] = (),
    causes: bool = False,
    attention: str = "eager",
    seed: int = 0,
    shrink: int = 0,
    batches: int = 0,
    layers: int = 0,
    settings: bool = False,
    scenario: str = "",
    reports: Path | None = None,
    newest: bool = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Run cache operations on tiny models of every decoder family, and compare with cold runs.

    A model with random weights in float64 is made of each configuration that `AutoModelForCausalLM`
    knows. The first time torch is installed.

    Example: cachesim real transformers --family mamba2 --operation crop-recorded --shrink 1

    Parameters
    ----------
    release
        A release of transformers, the newest known here if left out; of several, the results that
        change are listed.
    library
        A changed copy of the library: a checkout, or a package folder. It is run after its
        release, with the same packages, and what changes is listed; 1 if a result gets worse.
    family
        Families to run; all if left out.
    operation
        Operations to run; all if left out, but those of quanto and hqq, whose packages are
        installed the first time that one is named, and paged-offloaded.
    causes
        Run one operation of each known cause of a wrong answer, and no others.
    attention
        eager or sdpa.
    seed
        The seed of everything drawn at random.
    shrink
        How many wrong results to reduce to their shortest script.
    batches
        How many workloads of continuous batching to run instead, beside the simulated server.
    layers
        How many scripts of operations on `DynamicCache` to run instead, beside the simulated one.
    settings
        Print in which settings `--batches` differs from a server as users start it, and why no
        result depends on them, instead.
    scenario
        A scenario of continuous batching to run instead, on the scheduler and cache of each
        release that it names, or of `--release`.
    reports
        A folder for a report of each cause, of the last release.
    newest
        Run the newest release beside the newest known here; 1 if a result changes.
    output
        A file for all results, as lines of JSON.

    """
    changed = None
    if library is not None:
        if scenario or newest or batches or layers or settings or len(release) > 1:
            raise OptionError(
                "--library is run beside one release, without --scenario, --newest, --batches, "
                "--layers and --settings"
            )
        changed = Copy.at(library)
    if scenario:
        return max(STAGE.play_named(scenario, each) for each in release or ("",))
    check_names(operation, attention)
    if newest:
        [found_there, *_] = versions_of("transformers")
        unknown = judge_wheel(FAMILY, found_there)
        if found_there == NEWEST:
            console().print(f"transformers {NEWEST} is the newest release")
            return unknown
        release = (NEWEST, found_there)
    if changed is not None:
        release = release or (changed.release,)
    quantises = any(each in ROUNDED for each in operation)
    environments = {
        name: environment_for(name, quantises=quantises) for name in release or (NEWEST,)
    }
    if batches or layers or settings:
        return beside_simulated(environments, seed, 0 if settings else batches, layers)
    results = None if output is None else Output.at(output, "--output", ROWS)
    how = Playing(family, operation or tuple(OPERATIONS), attention, seed, shrink, reports, causes)
    releases = how.play(environments, changed, results)
    changes = len(releases) > 1 and show_changes(releases)
    if changed is not None:
        return int(is_worse(*releases))
    if newest:
        return max(unknown, int(changes))
    return int(any(cell.verdict == "wrong" for found in releases for cell in found.cells))


def check_names(operations: Sequence[str], attention: str) -> None:
    """Refuse unknown operations and attention."""
    known = [*OPERATIONS, *NAMED]
    unknown = [operation for operation in operations if operation not in known]
    if unknown:
        raise OptionError(f"--operation {unknown[0]} is unknown; there are {', '.join(known)}")
    if attention not in ("eager", "sdpa"):
        raise OptionError(f"--attention {attention} is unknown; write eager or sdpa")


class Playing(NamedTuple):
    """Operations run on each release, and the printed results."""

    families: Sequence[str]  # none: all
    operations: Sequence[str]
    attention: str
    seed: int
    shrink: int
    reports: Path | None
    causes: bool = False  # only what shows a known one

    def play(
        self, environments: Mapping[str, Environment], changed: Copy | None, results: Output | None
    ) -> list[Found]:
        """Results of each release, and of a changed copy of the one."""
        releases: list[Found] = []
        with ExitStack() as copies:
            pythons = {name: each.ready() for name, each in environments.items()}
            newest = NEWEST  # what has to know each family
            if changed is not None:
                [(name, environment)] = environments.items()
                newest = f"a changed copy of {name}"
                pythons[newest] = copies.enter_context(changed.python(environment))
            for name, python in pythons.items():
                workers = [Worker(python) for _ in range(PROCESSES)]
                try:
                    releases.append(self._release(workers, name, needed=name == newest))
                    if self.reports is not None and len(releases) == len(pythons):
                        for path in write_reports(
                            self.reports, workers[0], python, releases, self.attention
                        ):
                            console().print(f"{path}", markup=False, soft_wrap=True)
                finally:
                    for worker in workers:
                        worker.close()
                if results is not None:
                    cells = [cell for found in releases for cell in found.cells]
                    results.write("".join(f"{json.dumps(asdict(cell))}\n" for cell in cells))
        return releases

    def _release(self, workers: Sequence[Worker], name: str, *, needed: bool) -> Found:
        """The results of a release; `needed`: it has to know the families."""
        found, began = Found(name), time.monotonic()
        wanted = self.families or (sorted({each for each, _ in SHOWN}) if self.causes else ())
        scripts = {
            each: {
                one: drawn(one, each, self.seed)
                for one in self.operations
                if not self.causes or (each, one) in SHOWN
            }
            for each in families_of(workers[0], found, wanted, needed=needed)
        }
        play_families(workers, scripts, self.attention, found)
        minutes = (time.monotonic() - began) / 60
        how = f"{self.attention}, seed {self.seed}, {minutes:.1f} minutes"
        show(found, f"transformers {name}, {how}")
        wrong = [each for each in found.cells if each.verdict == "wrong"]
        for cell in wrong[: self.shrink]:
            show_smallest(workers[0], cell, self.attention)
        return found


def beside_simulated(
    environments: Mapping[str, Environment], seed: int, batches: int, layers: int
) -> int:
    """Batches or layers beside the simulated ones, or else the settings; the exit status."""
    for name in environments:
        package_of(FAMILY, name)
    pythons = {name: environment.ready() for name, environment in environments.items()}
    if batches:
        return max(compare(python, name, seed, batches) for name, python in pythons.items())
    if layers:
        return max(compare_layers(python, name, seed, layers) for name, python in pythons.items())
    return max(
        show_overrides(
            f"transformers {name}: settings that differ from a server's start",
            overrides(python, name, seed),
        )
        for name, python in pythons.items()
    )


def families_of(worker: Worker, found: Found, wanted: Sequence[str], *, needed: bool) -> list[str]:
    """The wanted families of a release, or all; one where they are not needed may lack some."""
    known = worker.order({"families": True})
    missing = [each for each in wanted if each not in known]
    if missing and needed:
        raise OptionError(f"--family {missing[0]} is no decoder of transformers {found.release}")
    found.unbuilt = dict.fromkeys(missing, f"not in {found.release}")
    return [each for each in wanted or known if each not in missing]


def play_families(
    workers: Sequence[Worker],
    scripts: Mapping[str, Mapping[str, Script]],
    attention: str,
    found: Found,
) -> None:
    """Run each family on the next idle worker; results are in the order of the families."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    for each in workers:
        idle.put(each)

    def play(family: str) -> Found:
        part, worker = Found(found.release), idle.get()
        try:
            play_family(worker, family, scripts[family], attention, part)
        finally:
            idle.put(worker)
        return part

    with ThreadPoolExecutor(len(workers)) as pool:
        for part in watched(pool.map(play, scripts), len(scripts)):
            found.cells += part.cells
            found.unbuilt |= part.unbuilt
            found.not_causal += part.not_causal


def play_family(
    worker: Worker, family: str, scripts: Mapping[str, Script], attention: str, found: Found
) -> None:
    """Run a family's scripts."""
    order = {"family": family, "attention": attention, "scripts": list(scripts.values())}
    try:
        answer = worker.order(order)
    except WorkerError:
        found.unbuilt[family] = "the process ended"
        return
    if "unbuilt" in answer:
        found.unbuilt[family] = answer["unbuilt"]
    elif not answer["causal"]:
        found.not_causal.append(family)
    else:
        found.cells += [
            Cell(release=found.release, family=family, operation=name, script=script, **result)
            for (name, script), result in zip(scripts.items(), answer["results"], strict=True)
            if result["verdict"] != "absent"
        ]


def show_smallest(worker: Worker, cell: Cell, attention: str) -> None:
    """The shortest script that is wrong."""
    answer = partial(answered, worker, cell.family, attention)
    smallest = shrunk(cell.script, lambda each: answer(each)["results"][0]["verdict"] == "wrong")
    found = answer(smallest)
    [last] = found["results"]
    where = f"; first difference in {last['place']}" if last.get("place") else ""
    console().print(
        f"{cell.family}, {cell.operation}: {text_of(smallest)}: off by {last['gap']:.2g} "
        f"deviations{where}",
        markup=False,
    )
    program = program_of(Model.of(cell.family, found), smallest)
    if program:
        console().print(f"\n{program}\n", markup=False, soft_wrap=True)
