"""Growth of processor time with tokens, slots and requests, in each arithmetic.

    python -m benchmarks growth                     the tables
    python -m benchmarks.growth traces              only files: fails where cost grows too fast
    python -m benchmarks.growth traces traces.json  and their numbers, for docs/make_replays.py

Each cell is played once by llama-server, after a short one has warmed it up. A cell that would take
longer than its limit, if it grows on as it did so far, is left out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import log
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.logs import log_of
from cachesim.engines import Engine, Request
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.testing.workloads import Seeded
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source
from cachesim.units import Tokens, as_tokens

PROFILE: Final = "llama.cpp@b11549"
ARITHMETICS: Final[tuple[ArithmeticName, ...]] = ("float", "ring", "counts")
LIMIT: Final = 30.0
"""Seconds that a cell may take."""

SLOT_TOKENS, SLOT_REPLY = 100, 8
REQUEST_TOKENS, REQUEST_REPLY = 50, 4

MODELS: Final[Mapping[str, ModelSpec]] = {
    "attention": preset("dense"),
    "windows": replace(preset("swa"), name="windows", layers=("window",) * 4),
    "recurrent": preset("recurrent"),
    "hybrid": preset("hybrid"),
}
"""Names of the rows; the preset with windows has full attention in every other layer."""

Play = Callable[[str, ArithmeticName, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of one model in one arithmetic; None where one was left out."""

    axis: str
    model: str
    arithmetic: ArithmeticName
    seconds: Mapping[int, float | None]


def server(model: str, arithmetic: ArithmeticName, options: Mapping[str, Any]) -> Engine:
    """A server with room for all requests."""
    return Engine.create(PROFILE, model=MODELS[model], options=options, arithmetic=arithmetic)


def words(draws: Seeded, count: int) -> Tokens:
    """Tokens that mean nothing to the server."""
    return as_tokens(draws.tokens(count, 265, 500))


def of_tokens(model: str, arithmetic: ArithmeticName, count: int) -> None:
    """One prompt of that many tokens."""
    engine = server(model, arithmetic, {"ctx_size": count + 64})
    draws = Seeded(count)
    engine.submit(Request(prompt=words(draws, count), predict=1, reply=words(draws, 1)))
    engine.run()


def of_slots(model: str, arithmetic: ArithmeticName, count: int) -> None:
    """So many slots, each busy with a prompt and a reply at the same time."""
    room = 256 * count
    engine = server(model, arithmetic, {"parallel": count, "ctx_size": room})
    draws = Seeded(count)
    for slot in range(count):
        prompt, reply = words(draws, SLOT_TOKENS), words(draws, SLOT_REPLY)
        engine.submit(Request(prompt=prompt, predict=SLOT_REPLY, reply=reply, slot=slot))
    engine.run()


def of_requests(model: str, arithmetic: ArithmeticName, count: int) -> None:
    """So many requests, one after the other, each with another prompt."""
    engine = server(model, arithmetic, {"cache_ram": 1})
    draws = Seeded(count)
    for _ in range(count):
        prompt, reply = words(draws, REQUEST_TOKENS), words(draws, REQUEST_REPLY)
        ticket = engine.submit(Request(prompt=prompt, predict=REQUEST_REPLY, reply=reply))
        engine.run()
        engine.forget(ticket)


AXES: Final[Mapping[str, tuple[Play, tuple[str, ...], tuple[int, ...]]]] = {
    "tokens": (of_tokens, ("attention", "windows", "recurrent"), (100, 1_000, 10_000, 100_000)),
    "slots": (of_slots, ("hybrid",), (1, 4, 16, 64)),
    "requests": (of_requests, ("hybrid",), (10, 100, 1_000, 10_000)),
}
"""The growing number, its run, the models and the sizes."""


def measured(axis: str, model: str, arithmetic: ArithmeticName) -> Row:
    """The cells of a row, from the smallest on."""
    play, _, sizes = AXES[axis]
    play(model, arithmetic, sizes[0])
    found: dict[int, float | None] = {}
    known: list[float] = []
    for size, before in zip(sizes, (0, *sizes), strict=False):
        steeper = known[-1] / known[-2] if len(known) > 1 else 0.0
        if known and known[-1] * max(steeper, size / before) > LIMIT:
            found[size] = None
            continue
        begun = time.process_time()
        play(model, arithmetic, size)
        known.append(time.process_time() - begun)
        found[size] = known[-1]
    return Row(axis=axis, model=model, arithmetic=arithmetic, seconds=found)


def rows() -> Iterator[Row]:
    """Every row of every table."""
    for axis, (_, models, _) in AXES.items():
        for model in models:
            for arithmetic in ARITHMETICS:
                yield measured(axis, model, arithmetic)


def table(axis: str, found: Sequence[Row]) -> Table:
    """Seconds of one axis, a column for each size."""
    sizes = AXES[axis][2]
    drawn = Table(title=f"seconds of processor time, by {axis}", title_style="")
    for head in ("model", "arithmetic", *map("{:,}".format, sizes)):
        drawn.add_column(head, justify="left" if head in {"model", "arithmetic"} else "right")
    for row in found:
        cells = (row.seconds[size] for size in sizes)
        told = ("left out" if cell is None else f"{cell:.3g}" for cell in cells)
        drawn.add_row(row.model, row.arithmetic, *told)
    return drawn


ENGINES: Final = (
    "llama.cpp@b11549", "ik_llama.cpp@8337e4cd3", "llama-cpp-python@0.3.36", "mlx-lm@0.32.2",
    "vllm@0.33.0", "sglang@0.5.23", "transformers@5.24.0", "marconi@paper",
)  # fmt: skip
"""Servers that replay a made trace."""

FEW, MANY, MOST = 1_000, 4_000, 5.0
"""Requests of a file, and by how much more time those many may take than the few."""


RECORDED: Final = Path(__file__).parents[1] / "docs" / "examples" / "recorded.jsonl"


def recording_of(requests: int) -> Iterator[str]:
    """A recording in which the example's conversation comes again and again."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    for number in range(requests):
        yield json.dumps(rows[number % len(rows)] | {"number": number}) + "\n"


READERS: Final[Mapping[str, Callable[[int], Iterator[str]]]] = {
    "why server.log": log_of,
    "why recorded.jsonl": recording_of,
}
"""Commands that read a file of so many requests."""


def commanded(command: str, requests: int) -> float:
    """Processor seconds of a command on a file, its start included."""
    name = command.rsplit(maxsplit=1)[-1]
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_text("".join(READERS[command](requests)), encoding="utf-8")
        before = os.times()
        subprocess.run(
            (sys.executable, "-m", "cachesim", *command.split()),
            cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        after = os.times()
    return after.children_user + after.children_system - sum(before[2:4])


def replayed(profile: str, requests: int) -> float:
    """Processor seconds of a made trace, or of a command that reads a file."""
    if profile in READERS:
        return commanded(profile, requests)
    model = "hybrid" if profile.startswith("marconi") else "dense"
    cell = Cell(source=Source(name=f"made:{requests}"), profile=profile, model=model)
    begun = time.process_time()
    play(cell)
    return time.process_time() - begun


def replays(profile: str) -> tuple[float, float]:
    """Seconds of few requests and of many, the least of three turns, each in its own process."""
    found: dict[int, list[float]] = {FEW: [], MANY: []}
    for _ in range(3):
        for requests, turns in found.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                turns.append(process.submit(replayed, profile, requests).result())
    return min(found[FEW]), min(found[MANY])


def run_replays(out: Console) -> dict[str, tuple[float, float]]:
    """The table of traces, and its seconds by server."""
    drawn = Table(title="seconds of a made trace, by requests", title_style="")
    for head in ("server", f"{FEW:,}", f"{MANY:,}", "times", "power"):
        drawn.add_column(head)
    found = {}
    for profile in (*ENGINES, *READERS):
        few, many = found[profile] = replays(profile)
        power = log(many / few) / log(MANY / FEW)
        drawn.add_row(profile, f"{few:.2f}", f"{many:.2f}", f"{many / few:.2f}", f"{power:.2f}")
    out.print(drawn)
    return found


def too_steep(out: Console, found: Mapping[str, tuple[float, float]]) -> int:
    """1 if a server's cost grows faster than it may, which is printed."""
    steep = [profile for profile, (few, many) in found.items() if many / few > MOST]
    for profile in steep:
        out.print(f"{profile} takes more than {MOST:g} times as long for {MANY:,} requests")
    return int(bool(steep))


def run(out: Console) -> int:
    """The tables; 1 as `run_traces`."""
    found = list(rows())
    for axis in AXES:
        out.print(table(axis, [row for row in found if row.axis == axis]))
    out.print(f"a cell may take {LIMIT:.0f} s; load {machine()['load']}")
    return run_traces(out)


def run_traces(out: Console, *, file: Path | None = None) -> int:
    """The table of traces; 1 if a server's cost grows faster than it may."""
    found = run_replays(out)
    if file is not None:
        told = {"requests": [FEW, MANY], "most": MOST, **machine(), "seconds": found}
        file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return too_steep(out, found)


def machine() -> dict[str, Any]:
    """How busy it is."""
    return {"load": round(os.getloadavg()[0], 1), "processors": os.cpu_count()}


if __name__ == "__main__":
    screen = Console(width=120, highlight=False)
    if sys.argv[1:2] != ["traces"]:
        sys.exit(run(screen))
    sys.exit(run_traces(screen, file=Path(sys.argv[2]) if sys.argv[2:] else None))
