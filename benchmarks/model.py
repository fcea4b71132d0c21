"""Tokens per second of both arithmetics and of llama.cpp's server, on the same shapes in one run.

All run in one thread, with their defaults, and take turns; the median of some turns counts. Time is
the processor's own on both sides, so that a busy machine counts for less. Decoding adds 256 tokens
to a prompt; what the prompt takes is measured alone and taken off. Growth is the exponent of
prefill from 1,000 to 4,000 tokens: 1 is linear, 2 is quadratic.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.plain import PlainStore
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.store import Ubatch
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.abilities import Abilities
from cachesim.real.llama_cpp.gguf import write_model
from cachesim.real.llama_cpp.greedy import drawn_prompt
from cachesim.real.llama_cpp.server import Played, RealServer
from cachesim.real.llama_cpp.workload import Release, Step
from cachesim.units import Tokens

PREFILLS: Final = (100, 1_000, 4_000)
DECODED: Final = 256
AFTER: Final = (100, 1_000)
UBATCH: Final = 512
REPEATS: Final = 5
MANY: Final = 1_000_000
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


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of one side on one preset."""

    prefill: Sequence[float]
    decode: Sequence[float]

    @classmethod
    def of(cls, turns: Sequence[Sequence[float]]) -> "Speeds":
        """The medians of some turns."""
        columns = [median(column) for column in zip(*turns, strict=True)]
        return cls(columns[: len(PREFILLS)], columns[len(PREFILLS) :])

    @property
    def rates(self) -> list[float]:
        """Tokens per second, column by column."""
        pairs = zip(PREFILLS, self.prefill, strict=True)
        prefills = [count / seconds for count, seconds in pairs]
        return [*prefills, *(DECODED / seconds for seconds in self.decode)]

    @property
    def exponent(self) -> float:
        """How prefill grows between the two longer prompts."""
        growth = self.prefill[-1] / self.prefill[-2]
        return math.log(growth) / math.log(PREFILLS[-1] / PREFILLS[-2])


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
    """What is loaded on a running server."""
    random = np.random.default_rng(0)

    def ask(count: int, predict: int) -> float:
        prompt = drawn_prompt(random, count)
        before = computed(server.process)
        server.ask((Step(name="prompt", prompt=prompt, predict=predict, cache_prompt=False),))
        return computed(server.process) - before

    def further(count: int) -> float:
        return ask(count, DECODED + 1) - ask(count, 1)  # the first token comes with the prompt

    return Side(lambda count: ask(count, 1), further)


def computed(process: int) -> float:
    """Seconds of the processor that a process has had, as Linux keeps its books."""
    books = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in books) / 1e9


def measured(sides: Mapping[str, Side]) -> dict[str, Speeds]:
    """The speeds of all sides, which take turns; the first turn is for getting warm."""
    turns = [[side.turn() for side in sides.values()] for _ in range(REPEATS + 1)][1:]
    return {
        name: Speeds.of(each) for name, each in zip(sides, zip(*turns, strict=True), strict=True)
    }


def real_release() -> RealServer | None:
    """The first release whose server can be set up here."""
    for release in RELEASES:
        try:
            return RealServer(release)
        except EnvironmentUnavailableError as error:
            Console(stderr=True).print(f"NOT MEASURED: {error}", markup=False)
    return None


def speed_table(real: RealServer | None) -> Table:
    """Tokens per second, preset by preset, and how many times the real server's."""
    beside = f"beside llama.cpp {real.release}" if real else "without a real server"
    table = Table(title=f"tokens per second, one thread, {beside}", title_style="")
    table.add_column("preset")
    table.add_column("side")
    prefills = [f"prefill {count:,}" for count in PREFILLS]
    for head in (*prefills, "growth", *(f"decode at {count:,}" for count in AFTER)):
        table.add_column(head, justify="right")
    with TemporaryDirectory() as folder:
        for name in PRESETS:
            with ExitStack() as stack:
                sides = {side: simulated(name, side) for side in ARITHMETICS}
                if real and name in Abilities(real.release).presets:
                    path = Path(folder) / f"{name}.gguf"
                    write_model(preset(name), path)
                    server = stack.enter_context(real.started(SERVER, path))
                    sides = {THEIRS: real_side(server), **sides}
                speeds = measured(sides)
            for side, each in speeds.items():
                table.add_row(name, side, *rates(each))
                if side != THEIRS and THEIRS in speeds:
                    table.add_row("", "  x real", *ratios(each, speeds[THEIRS]))
            table.add_section()
    return table


def rates(speeds: Speeds) -> list[str]:
    """A row's figures."""
    texts = [f"{rate:,.0f}" for rate in speeds.rates]
    return [*texts[: len(PREFILLS)], f"{speeds.exponent:.2f}", *texts[len(PREFILLS) :]]


def ratios(mine: Speeds, theirs: Speeds) -> list[str]:
    """How many times the real server's each figure is."""
    pairs = zip(mine.rates, theirs.rates, strict=True)
    texts = [f"{rate / other:.2f}" for rate, other in pairs]
    return [*texts[: len(PREFILLS)], "", *texts[len(PREFILLS) :]]


def small_table() -> Table:
    """What a request costs on the tiny models that property tests live on; and a long ring run."""
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


def run(out: Console) -> None:
    """Print both tables."""
    real = real_release()
    try:
        out.print(speed_table(real))
    finally:
        if real:
            real.close()
    out.print(small_table())
