"""Tokens per second of both arithmetics and of llama.cpp's server, on the same shapes in one run.

    python -m benchmarks model                      the tables
    python -m benchmarks.model speed.json           and their numbers, for docs/make_speed.py

All run in one thread, with their defaults, and take turns; the median of some turns counts. Time is
the processor's own on both sides, so that a busy machine counts for less. Decoding adds 256 tokens
to a prompt; what the prompt takes is measured alone and taken off. Growth is the exponent of
prefill from 1,000 to 4,000 tokens: 1 is linear, 2 is quadratic.
"""

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from cachesim.model.arithmetic import ArithmeticName, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.store import Ubatch
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.fitting import Abilities, Release
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import Played, RealServer
from cachesim.scenario.format import Step
from cachesim.units import Tokens
from conformance.real.llama_cpp.logits import drawn_prompt

PREFILLS: Final = (100, 1_000, 4_000)
DECODED: Final = 256
AFTER: Final = (100, 1_000)
UBATCH: Final = 512
REPEATS: Final = 5
MANY: Final = 1_000_000
TOKENS: Final = (*PREFILLS, *(DECODED for _ in AFTER))
"""Computed tokens of each column of a turn."""

ARITHMETICS: Final[tuple[ArithmeticName, ...]] = ("float", "ring")
RELEASES: Final[tuple[Release, ...]] = ("b9538", "b11549")
THEIRS: Final = "llama.cpp"
SERVER: Final[Mapping[str, Any]] = {"parallel": 1, "ctx_size": 8192, "cache_ram": 0}


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that take turns."""

    prefill: Callable[[int], float]  # seconds that a prompt of so many tokens takes
    decode: Callable[[int], float]  # seconds that further tokens take behind it

    def turn(self) -> list[float]:
        """Every column once."""
        return [*map(self.prefill, PREFILLS), *map(self.decode, AFTER)]


Turn: TypeAlias = Sequence[float]
"""Seconds of every column: the prefills, then what decoding took."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of one side for a preset, turn by turn."""

    turns: Sequence[Turn]

    @property
    def rates(self) -> list[float]:
        """Tokens per second, column by column: those of the median turn."""
        columns = zip(*self.turns, strict=True)
        return [count / median(times) for count, times in zip(TOKENS, columns, strict=True)]

    @property
    def exponent(self) -> float:
        """Growth of prefill between the two longer prompts."""
        shorter, longer = (count / self.rates[PREFILLS.index(count)] for count in PREFILLS[-2:])
        return math.log(longer / shorter) / math.log(PREFILLS[-1] / PREFILLS[-2])

    def beside(self, other: "Speeds") -> list[list[float]]:
        """Each figure as a multiple of the other's, turn by turn, column by column."""
        return [
            [theirs / mine for mine, theirs in zip(*pair, strict=True)]
            for pair in zip(
                zip(*self.turns, strict=True), zip(*other.turns, strict=True), strict=True
            )
        ]


def filled(network: Network, tokens: Tokens, ubatch: int = UBATCH) -> PlainStore:
    """A store after a prompt that went through in ubatches, as on a server."""
    store, ids = PlainStore(network), np.array(tokens)
    for first in range(0, len(ids), ubatch):
        some = ids[first : first + ubatch]
        last = len(some) - 1 if first + ubatch >= len(ids) else len(some)
        outputs = np.arange(last, len(some))
        positions = np.arange(first, first + len(some))
        network.run(Ubatch(tokens=some, positions=positions, outputs=outputs), store)
    return store


def prefill(network: Network, tokens: Tokens, ubatch: int = UBATCH) -> float:
    """The seconds that a prompt takes."""
    start = time.process_time()
    filled(network, tokens, ubatch)
    return time.process_time() - start


def decode(network: Network, tokens: Tokens, count: int = DECODED) -> float:
    """The seconds that further tokens take, one at a time, behind a prompt."""
    store, token = filled(network, tokens), int(tokens[0])
    start = time.process_time()
    for position in range(len(tokens), len(tokens) + count):
        ubatch = Ubatch(tokens=np.array([token]), positions=np.array([position]))
        token = int(network.sample(network.run(ubatch, store).logits[0]))
    return time.process_time() - start


def simulated(name: str, arithmetic: ArithmeticName) -> Side:
    """One preset in one arithmetic."""
    network, random = build(preset(name), arithmetic), np.random.default_rng(0)
    prompts = {count: drawn_prompt(random, count) for count in {*PREFILLS, *AFTER}}
    return Side(
        lambda count: prefill(network, prompts[count]),
        lambda count: decode(network, prompts[count]),
    )


def real_side(server: Played) -> Side:
    """The models that are loaded on a running server."""
    random = np.random.default_rng(0)

    def seconds(count: int, predict: int) -> float:
        prompt = drawn_prompt(random, count)
        before = computed(server.process)
        server.send((Step(name="prompt", prompt=prompt, predict=predict, cache_prompt=False),))
        return computed(server.process) - before

    def further(count: int) -> float:
        # the first token comes with the prompt
        return seconds(count, DECODED + 1) - seconds(count, 1)

    return Side(lambda count: seconds(count, 1), further)


def computed(process: int) -> float:
    """Seconds of the processor that a process has had, its ended threads' too.

    The number of a process's clock is made as Linux makes it (`clock_getcpuclockid`).
    """
    return time.clock_gettime(~process << 3 | 2)


def measured(sides: Mapping[str, Side]) -> dict[str, Speeds]:
    """The speeds of all sides, which take turns; the first turn is for getting warm."""
    turns = [[side.turn() for side in sides.values()] for _ in range(REPEATS + 1)][1:]
    return {name: Speeds(each) for name, each in zip(sides, zip(*turns, strict=True), strict=True)}


def real_release() -> RealServer | None:
    """The first release whose server can be set up here."""
    for release in RELEASES:
        try:
            return RealServer(release)
        except EnvironmentUnavailableError as error:
            Console(stderr=True).print(f"NOT MEASURED: {error}", markup=False)
    return None


def measured_presets(real: RealServer | None) -> Iterator[tuple[str, dict[str, Speeds]]]:
    """Every preset and the speeds of its sides; the real server first, where it can run it."""
    with TemporaryDirectory() as folder:
        for name in PRESETS:
            with ExitStack() as stack:
                sides = {side: simulated(name, side) for side in ARITHMETICS}
                if real and name in Abilities(real.release).presets:
                    path = Path(folder) / f"{name}.gguf"
                    write_model(preset(name), path)
                    server = stack.enter_context(real.started(SERVER, path))
                    sides = {THEIRS: real_side(server), **sides}
                yield name, measured(sides)


def speed_table(found: Mapping[str, Mapping[str, Speeds]], beside: str) -> Table:
    """Tokens per second, preset by preset, and how many times the real server's."""
    table = Table(title=f"tokens per second, one thread, {beside}", title_style="")
    table.add_column("preset")
    table.add_column("side")
    prefills = [f"prefill {count:,}" for count in PREFILLS]
    for head in (*prefills, "growth", *(f"decode at {count:,}" for count in AFTER)):
        table.add_column(head, justify="right")
    for name, speeds in found.items():
        for side, speed in speeds.items():
            growth = f"{speed.exponent:.2f}"
            table.add_row(name, side, *row([f"{rate:,.0f}" for rate in speed.rates], growth))
            if side != THEIRS and THEIRS in speeds:
                theirs = speeds[THEIRS]
                times = zip(speed.rates, theirs.rates, strict=True)
                table.add_row("", "  x real", *row([f"{one / two:.2f}" for one, two in times]))
                spread = speed.beside(theirs)
                texts = [f"{min(turns):.3g}-{max(turns):.3g}" for turns in spread]
                table.add_row("", "  spread", *row(texts))
        table.add_section()
    return table


def row(texts: Sequence[str], growth: str = "") -> list[str]:
    """A row's cells: growth follows the prefills."""
    return [*texts[: len(PREFILLS)], growth, *texts[len(PREFILLS) :]]


def small_table() -> Table:
    """Cost of a request on the tiny models of property tests; and a long ring run."""
    table = Table(title="small and large", title_style="")
    for head in ("what", "", "milliseconds"):
        table.add_column(head, justify="right" if head == "milliseconds" else "left")
    random = np.random.default_rng(0)
    for name in PRESETS:
        network, prompt = build(tiny(name)), drawn_prompt(random, 60)
        times = [prefill(network, prompt) + decode(network, prompt, 4) for _ in range(REPEATS)]
        what = f"{name}, 2 layers, width 16"
        table.add_row(what, "60 tokens, 4 generated", f"{median(times) * 1e3:.2f}")
    for name in ("dense", "hybrid"):
        network, prompt = build(preset(name), "ring"), drawn_prompt(random, MANY)
        seconds = prefill(network, prompt, MANY)
        table.add_row(f"{name}, ring", f"{MANY:,} tokens at once", f"{seconds * 1e3:,.0f}")
    return table


def told(found: Mapping[str, Mapping[str, Speeds]], release: str | None) -> dict[str, Any]:
    """The seconds of every turn, and where they were measured, for docs/make_speed.py."""
    return {
        "release": release,
        "prefills": PREFILLS,
        "after": AFTER,
        "decoded": DECODED,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rows": [
            {
                "preset": name,
                "side": side,
                "turns": [[round(seconds, 6) for seconds in turn] for turn in speeds.turns],
            }
            for name, sides in found.items()
            for side, speeds in sides.items()
        ],
    }


def run(out: Console, *, file: Path | None = None) -> None:
    """Print both tables; the numbers of the first are kept where a file is named."""
    real = real_release()
    release = real.release if real else None
    try:
        found = dict(measured_presets(real))
    finally:
        if real:
            real.close()
    beside = f"beside llama.cpp {release}" if release else "without a real server"
    out.print(speed_table(found, beside))
    out.print(small_table())
    if file is not None:
        file.write_text(json.dumps(told(found, release), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Console(width=120, highlight=False), file=Path(sys.argv[1]) if sys.argv[1:] else None)
