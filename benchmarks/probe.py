"""`cachesim probe` on real servers: its blind findings, and its false alarms.

    python -m benchmarks probe                              two cells, one run each
    python -m benchmarks.probe play ROWS.jsonl --engine llama.cpp --release b11549
        --model hybrid --slots 4 --seeds 5 --requests 1000  one cell; rows are added to the file
    python -m benchmarks.probe table ROWS.jsonl             the rows as a table
    python -m benchmarks.probe profiles                     simulated servers that remain
    python -m benchmarks.probe planted                      20 bugs, two dialects, three noises

A run starts the server with toy weights, as `--start` does, and ends at the first finding.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.quantised import quantised
from cachesim.engines.family import Profile, family_of
from cachesim.model.presets import preset
from cachesim.model.weights import draw
from cachesim.probe.command import Settings
from cachesim.probe.command import run as probe
from cachesim.probe.connection import Limits, Meter
from cachesim.probe.loop import DRAWN, Outcome, Plan, Probe
from cachesim.probe.playing import query_of, words_for
from cachesim.probe.profiles import MODELS, Candidate, Fingerprint
from cachesim.probe.target import Target
from cachesim.prove.llama_cpp.gguf import model_keys, write_gguf
from cachesim.prove.mlx_lm.families import spec_of
from cachesim.scenario.format import Scenario
from cachesim.testing.workloads import Seeded, Shape, draw_workload
from conformance.servers import VOCABULARY, llama_server, mlx_server
from tests.probe.fakes import bugs, fake, sound

MARKS: Final = (20, 50, 200)
DIVIDING: Final = 50
"""Requests after which workloads are sent as they are drawn."""

WIDE: Final[Mapping[str, int]] = {"width": 256, "mlp_width": 256, "head_size": 64}
"""Shape of a model whose rows divide into blocks of 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A server and its model."""

    engine: str = "llama.cpp"
    release: str = "b11549"
    model: str = "hybrid"
    slots: int = 1
    flags: str = ""
    weights: str = ""  # Q8_0, Q4_K; else of 32 bits
    chat: bool = False
    window: int = 0  # of mlx-lm's toy; 0: its own

    def command(self, folder: Path) -> str:
        """The command that starts the server."""
        if self.engine == "mlx-lm":
            window = self.window or spec_of(self.model).window
            changes = {"window": window} if window else {}
            toy = spec_of(self.model, small=True, vocabulary=VOCABULARY, **changes)
            return mlx_server(self.release, toy, folder, *shlex.split(self.flags))
        file = folder / "model"
        spec = preset(self.model, **(WIDE if self.weights else {}))
        tensors = quantised(draw(spec), self.weights) if self.weights else draw(spec)
        with file.open("wb") as out:
            write_gguf(out, model_keys(spec), tensors)
        slots = ("-t", "1", "-np", str(self.slots), "-c", str(4096 * self.slots))
        return llama_server(self.release, file, *slots, *shlex.split(self.flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run."""

    cell: dict[str, Any]
    seed: int
    kind: str  # of the finding; empty: nothing was wrong
    sentence: str
    found: tuple[int, float]  # requests and seconds until then
    again: tuple[int, int]  # wrong again, of so many restarts
    requests: int
    seconds: float
    compared: int
    reused: int | None
    suspicions: int
    limit: float
    left: dict[str, int]  # simulated servers left, by requests
    true: bool  # the true release is among them
    mechanism: list[str]
    all: list[tuple[str, int, float, tuple[int, int], list[str]]]  # findings
    notes: list[str]


@contextmanager
def started(cell: Cell, limits: Limits) -> Iterator[tuple[Target, Meter]]:
    """A server of this cell."""
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(limits)
        target = Target(meter, "", start=cell.command(Path(folder)), chat=cell.chat)
        try:
            yield target, meter
        finally:
            target.close()


def played(cell: Cell, plan: Plan, limits: Limits) -> Row:
    """One run of a cell."""
    left: dict[str, int] = {}

    def watch(outcome: Outcome) -> None:
        prints = outcome.fingerprint
        left.setdefault("0", prints.first)
        for mark in MARKS:
            if prints.requests >= mark:
                left.setdefault(str(mark), len(prints.left))

    with started(cell, limits) as (target, meter):
        probe = Probe(target, meter, plan, watch)
        outcome = probe.run()
    finding, last = outcome.finding, outcome.fingerprint.left
    return Row(
        cell=asdict(cell),
        seed=plan.seed,
        kind=finding.kind if finding else "",
        sentence=finding.sentence if finding else "",
        found=(finding.requests, finding.seconds) if finding else (0, 0.0),
        again=finding.proofs if finding else (0, 0),
        requests=meter.requests,
        seconds=meter.seconds,
        compared=outcome.compared,
        reused=outcome.reused,
        suspicions=outcome.suspicions,
        limit=probe.judge.noise.limit,
        left=left | {"last": len(last)},
        true=any(cell.release in candidate.releases for candidate in last),
        mechanism=finding.mechanism if finding else [],
        all=[
            (each.kind, each.requests, each.seconds, each.proofs, each.mechanism)
            for each in outcome.findings
        ],
        notes=[*outcome.notes, *outcome.refused, outcome.fingerprint.unexplained],
    )


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each cell."""
    found = Table(box=None)
    heads = ("server", "model", "slots", "flags", "runs", "found", "requests", "seconds", "again")
    for head in (*heads, "replies", "left", "true"):
        found.add_column(head)
    cells = dict.fromkeys(json.dumps(row["cell"]) for row in rows)
    for key in cells:
        cell, runs = json.loads(key), [row for row in rows if json.dumps(row["cell"]) == key]
        wrong = [run for run in runs if run["kind"]]
        again = [sum(part) for part in zip(*(run["again"] for run in wrong), strict=True)]
        found.add_row(
            f"{cell['engine']} {cell['release']}",
            f"{cell['model']} {cell['weights']}".strip(),
            str(cell["slots"]),
            cell["flags"] + " chat" * cell.get("chat", False),
            str(len(runs)),
            str(len(wrong)),
            *(_spread([run["found"][part] for run in wrong]) for part in (0, 1)),
            " of ".join(map(str, again)),
            f"{sum(run['compared'] for run in runs):,}",
            _spread([run["left"]["last"] for run in runs]),
            f"{sum(run['true'] for run in runs)}",
        )
    return found


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def remaining(slots: int, seed: int = 0) -> Table:
    """The number of simulated servers that explain the counts of one of them, by its model.

    Those that have replied alike so far are a group, and get the same next workload, the one that a
    probe would send. Identified are all releases with default flags, and the newest with all flags.

        requests    0          20         50
        groups      [a b c d]  [a b] [c]  [a] [b]
    """
    whole, chance, number = Fingerprint.of("llama.cpp", slots, 4096), Random(seed), 0
    servers = Counter(candidate.model for candidate in whole.left if _identified(candidate))
    sizes: dict[tuple[str, int], list[int]] = defaultdict(list)
    groups = [(whole.left, 0)]
    while groups:
        whole.left, sent = groups.pop()
        drawn = []
        for _ in range(DRAWN if sent < DIVIDING else 1):
            number += 1
            steps = _steps(f"profiles {seed} {number}", slots)
            named = words_for(range(1000), chance)
            drawn.append((steps, [query_of(step, named) for step in steps.step]))
        best = whole.dividing(drawn) if len(drawn) > 1 else drawn[0][0]
        queries = next(queries for steps, queries in drawn if steps is best)
        parts = [whole.left]
        for at, query in enumerate(queries, start=sent + 1):
            numbers = whole.numbered(query.prompt, query.reply)
            split: dict[tuple[int, object], list[Candidate]] = defaultdict(list)
            for part, members in enumerate(parts):
                for member in members:
                    split[part, member.cached(query, numbers, query.reply)].append(member)
            parts = list(split.values())
            if at in MARKS:
                for members in parts:
                    for member in filter(_identified, members):
                        sizes[member.model, at].append(len(members))
        parts = [part for part in parts if len(part) > 1 and any(map(_identified, part))]
        groups += [(part, at) for part in parts if at < max(MARKS)]
    found = Table(box=None)
    for head in ("model", "servers", *map(str, MARKS)):
        found.add_column(head)
    for model in MODELS:
        alone = [1] * servers[model]  # those that were alone before a mark
        spread = [_spread((sizes[model, mark] + alone)[: len(alone)]) for mark in MARKS]
        found.add_row(model, str(len(alone)), *spread)
    return found


def _identified(each: Candidate) -> bool:
    return not each.shown or family_of(each.engine_name).names()[-1] in each.releases


def _steps(seed: str, slots: int) -> Scenario:
    """A workload of requests one at a time."""
    shape = Shape(flags=False, longest=120, fixed={"parallel": slots})
    profile = Profile.parse("llama.cpp@b11549")
    drawn = draw_workload(Seeded(seed), profile, "hybrid", shape, name="profiles")
    steps = (step for step in drawn.step if step.do == "complete" and step.ids and step.reply)
    return replace(drawn, step=tuple(steps))


def planted(requests: int) -> Table:
    """Requests until each planted bug is found; `sound` is to be right."""
    found = Table(box=None)
    names = [
        (dialect, noise) for dialect in ("vllm", "sglang") for noise in (0.0, 1e-4, 1e-3, 2e-2)
    ]
    for head in ("bug", *(f"{dialect} {noise:g}" for dialect, noise in names)):
        found.add_column(head)
    for bug, context in (("sound", sound), *bugs()):
        cells = []
        for dialect, noise in names:
            profile = f"{dialect}@{family_of(dialect).names()[-1]}"
            with fake(dialect, profile, context=context, noise=noise) as server:
                result = probe(Settings(url=server.url, requests=requests, longest=60)).result
            finding = result.outcome.finding
            cells.append("right" if finding is None else str(finding.requests))
        found.add_row(bug, *cells)
    return found


def run(out: Console) -> None:
    """Two cells: one that is wrong, one that is right."""
    limits = Limits(minutes=2.0, requests=1000)
    cells = (Cell(model="hybrid"), Cell(model="dense"))
    out.print(table([asdict(played(cell, Plan(shrinking=10), limits)) for cell in cells]))


def main(words: Sequence[str]) -> None:
    """Play cells, or print those of a file."""
    asked = argparse.ArgumentParser()
    asked.add_argument("what", choices=("play", "table", "profiles", "planted"))
    asked.add_argument("rows", type=Path, nargs="?")
    for name in ("engine", "release", "model", "slots", "flags", "weights", "window"):
        asked.add_argument(f"--{name}", nargs="+")
    numbers = {
        "failures": 1,
        "seeds": 3,
        "first": 0,
        "requests": 1000,
        "identifying": 40,
        "tries": 8,
    }
    for name, value in (numbers | {"minutes": 2.0, "shrinking": 10.0, "patience": 60.0}).items():
        asked.add_argument(f"--{name}", type=type(value), default=value)
    asked.add_argument("--no-repeats", action="store_true")
    asked.add_argument("--chat", action="store_const", const=[True])
    given = asked.parse_args(words)
    if given.what == "profiles":
        for slots in given.slots or [1]:
            Console(width=200).print(remaining(int(slots), given.first))
        return
    if given.what == "planted":
        Console(width=200).print(planted(given.requests))
        return
    if given.what == "play":
        _play_all(given)
    lines = given.rows.read_text().splitlines()
    Console(width=200).print(table([json.loads(line) for line in lines]))


def _play_all(given: argparse.Namespace) -> None:
    cells = [Cell()]
    for name in (field.name for field in fields(Cell)):
        values = getattr(given, name) or [getattr(Cell(), name)]
        kind = type(getattr(Cell(), name))
        cells = [Cell(**{**asdict(cell), name: kind(value)}) for cell in cells for value in values]
    limits = Limits(minutes=given.minutes, requests=given.requests, patience=given.patience)
    for seed in range(given.first, given.first + given.seeds):
        for cell in cells:
            plan = Plan(
                seed=seed,
                shrinking=given.shrinking,
                identifying=given.identifying,
                tries=given.tries,
                repeats=not given.no_repeats,
                failures=given.failures,
            )
            row = played(cell, plan, limits)
            with given.rows.open("a") as file:
                file.write(f"{json.dumps(asdict(row))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
