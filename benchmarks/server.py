"""Whole workloads on the real llama.cpp server and on the simulator, in one run on one machine.

The real server's time is that of its calls alone, without starting it; the simulator's is
everything, building the engine included. Both play the same workloads on the same weights.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.model.arithmetic import ArithmeticName
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.fitting import Release
from cachesim.prove.llama_cpp.server import Played
from cachesim.prove.llama_cpp.simulated import SimulatedServer, observed
from cachesim.prove.llama_cpp.workload import Outcome, grouped
from cachesim.scenario.format import Scenario, Step
from conformance.real.llama_cpp.compare import SideBySide
from conformance.real.llama_cpp.workloads import draw_setting, grow

SEED: Final = 2026
WORKLOADS: Final = 40
PRESETS: Final = ("dense", "swa", "recurrent", "hybrid", "hybrid-delta")


@dataclass(slots=True)
class Stopwatch:
    """A real server whose answers are timed."""

    server: Played
    seconds: float = 0.0

    @property
    def lost(self) -> bool:
        """True if the server is lost."""
        return self.server.lost

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Ask, and count the time until the answer."""
        start = time.perf_counter()
        outcomes = self.server.send(group)
        self.seconds += time.perf_counter() - start
        return outcomes


@dataclass(slots=True)
class Measured:
    """Requests played, and the seconds that each side took for them."""

    requests: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"real": 0.0, "float": 0.0, "ring": 0.0}
    )

    def rate(self, side: str) -> str:
        """Requests per second."""
        return f"{self.requests / self.seconds[side]:,.0f}"

    def ratio(self, side: str) -> str:
        """The time of a side as a multiple of the real server's."""
        return f"{self.seconds[side] / self.seconds['real']:.2f} x"


def measure(release: Release, workloads: int) -> Measured:
    """Play workloads on the real server of a release, then on both arithmetics."""
    measured = Measured()
    with SideBySide(release) as pair:
        for number in range(workloads):
            setting = draw_setting(SEED, number, release=pair.release, presets=PRESETS)
            model = pair.model(setting.preset, setting.window)
            with pair.real(setting.options).started(setting.options, model) as server:
                watch = Stopwatch(server)
                workload, outcomes = grow(setting, watch)
            measured.requests += workload.requests
            measured.seconds["real"] += watch.seconds
            for arithmetic in ("float", "ring"):
                start = time.perf_counter()
                simulate(workload, outcomes, arithmetic)
                measured.seconds[arithmetic] += time.perf_counter() - start
    return measured


def simulate(workload: Scenario, outcomes: Sequence[Outcome], arithmetic: ArithmeticName) -> None:
    """Play a workload on the simulator, with the replies of the real server."""
    server = SimulatedServer(workload, arithmetic)
    for group in grouped(observed(workload, outcomes).step):
        server.send(group)


def run(out: Console, *, workloads: int = WORKLOADS) -> None:
    """Print one table: requests per second of the real server, of float and of ring."""
    table = Table(title=f"whole workloads, {workloads} per release, one thread", title_style="")
    for head in ("release", "requests", "real/s", "float/s", "ring/s", "float time", "ring time"):
        table.add_column(head, justify="left" if head == "release" else "right")
    for release in FAMILY.real():
        try:
            found = measure(release, workloads)
        except EnvironmentUnavailableError as error:
            Console(stderr=True).print(f"NOT MEASURED: {error}", markup=False)
            continue
        rates = [found.rate(side) for side in ("real", "float", "ring")]
        ratios = [found.ratio(side) for side in ("float", "ring")]
        table.add_row(release, f"{found.requests:,}", *rates, *ratios)
    out.print(table)


if __name__ == "__main__":
    run(Console())
