"""How many workloads a release's own scheduler and the simulated one played alike."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

from cachesim.real.playing import console, table_of_counts
from cachesim.real.vectors.replay import differing
from cachesim.typed import Json

Workload = dict[str, Any]

MOST_LINES: Final = 12
NOT_RAISED: Final = frozenset({"stuck", "too many steps"})


@dataclass(slots=True)
class Agreement:
    """How many workloads came out alike, by kind; the first that did not."""

    engine: str
    release: str
    fails_alike: bool = False  # where the release raises, the simulator must end, too
    workloads: Counter[str] = field(default_factory=Counter)
    agreeing: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    difference: tuple[str, Any, Any] | None = None

    @property
    def all_agree(self) -> bool:
        """Whether every workload came out alike."""
        return self.difference is None

    def count(self, workload: Workload, real: Json, simulated: Json) -> None:
        """Hold one workload's results against each other."""
        kind = workload["id"].rpartition("-")[0]
        self.workloads[kind] += 1
        raised = _raised(real)
        self.raised[kind] += raised
        real, simulated = comparable(real, simulated, fails_alike=self.fails_alike)
        requests = [each for group in real for each in group.get("requests", ())]
        self.requests[kind] += len(requests)
        self.cached[kind] += sum(each["cached"] or 0 for each in requests)
        if real == simulated:
            self.agreeing[kind] += 0 if raised else 1
        elif self.difference is None:
            self.difference = (workload["id"], real, simulated)

    def table(self, seed: int) -> Table:
        """How many came out alike, kind by kind."""
        title = f"{self.engine} {self.release}: scheduler, seed {seed}"
        columns = {
            "workloads": self.workloads,
            "requests": self.requests,
            "tokens cached": self.cached,
            "agreeing": self.agreeing,
            "raised": self.raised,
        }
        return table_of_counts(title, "groups", columns)

    def tell(self, seed: int) -> int:
        """The table, and the first difference; the exit status."""
        out = console()
        out.print(self.table(seed))
        if self.difference is not None:
            tell_difference(*self.difference)
        return 0 if self.all_agree else 1


def _raised(real: Json) -> bool:
    return bool(real) and "error" in real[-1] and real[-1]["error"] not in NOT_RAISED


def comparable(real: Json, simulated: Json, *, fails_alike: bool) -> tuple[Json, Json]:
    """The results of both that are compared: where the release raises, what came before."""
    if _raised(real):
        last = simulated[len(real) - 1 :]
        if not fails_alike or (last and "error" in last[0]):
            return real[:-1], simulated[: len(real) - 1]
    return real, simulated


def tell_difference(workload: object, real: Json, simulated: Json) -> None:
    """The first fields that differ."""
    out = console()
    out.print(f"first difference, workload {workload}: real, then simulated")
    for where, one, other in list(differing(real, simulated, ""))[:MOST_LINES]:
        out.print(f"  {where}: {one!s:.200} | {other!s:.200}")
