"""Processor time until a blind search finds a known defect: `python -m benchmarks bugs`.

    python -m benchmarks bugs                                     one seed, two seconds each
    python -m benchmarks.bugs --how guided --seeds 3 4 --seconds 60 --only vllm --file bugs.csv
    python -m benchmarks.bugs --seconds 0 --file bugs.csv         the table of what the file holds

Each search runs in one process, on the report's model with flags of its own (see
`benchmarks.searches`). A file keeps every search; one that it holds already is not repeated, unless
it found nothing in fewer seconds than asked for.
"""

import csv
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.defects import BEYOND, RARE, Defect, defects
from benchmarks.searches import METHODS, Search
from cachesim.errors import InputError
from cachesim.testing.search import shrink
from cachesim.testing.workloads import words_of

SEEDS: Final = (0,)
SECONDS: Final = 2.0
EARLIER: Final = "2026-11-23"
"""The search of that day in a sample of the defects, as a file may keep it."""

TRIALS: Final = 100
"""Most simplifications of a counterexample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A search as the file keeps it."""

    defect: str
    effect: str
    profile: str
    model: str
    how: str
    seed: int
    seconds: float
    workloads: int
    found: bool
    steps: int = 0  # of the shrunk counterexample
    tokens: int = 0  # of its prompts

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of a result in a file."""
        return self.defect, self.how, self.seed

    @property
    def time(self) -> float:
        """Seconds to the finding; endless without one."""
        return self.seconds if self.found else float("inf")


def row_of(search: Search, how: str, *, shrinks: bool = False) -> Row:
    """A search as the file keeps it."""
    defect = search.defect
    steps, tokens = size(search) if shrinks and search.found else (0, 0)
    return Row(
        defect=defect.name,
        effect=defect.effect,
        profile=str(defect.profile),
        model=defect.model,
        how=how,
        seed=search.seed,
        seconds=round(search.seconds, 4),
        workloads=search.workloads,
        found=search.found is not None,
        steps=steps,
        tokens=tokens,
    )


def size(search: Search) -> tuple[int, int]:
    """Steps and prompt tokens of the shrunk counterexample."""
    defect = search.defect
    if search.found is None:
        return 0, 0

    def holds(candidate: object) -> bool:
        try:
            return defect.is_own(candidate, defect.shown(candidate, 0))  # type: ignore[arg-type]
        except InputError:
            return False

    steps = shrink(search.found, holds, trials=TRIALS).step
    turns = (turn for step in steps for turn in step.messages)
    return len(steps), sum(len(step.ids) for step in steps) + sum(len(words_of(t)) for t in turns)


def read(file: Path) -> dict[tuple[str, str, int], Row]:
    """The searches of a file."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            Row(
                defect=each["defect"],
                effect=each["effect"],
                profile=each["profile"],
                model=each["model"],
                how=each["how"],
                seed=int(each["seed"]),
                seconds=float(each["seconds"]),
                workloads=int(each["workloads"]),
                found=each["found"] == "True",
                steps=int(each["steps"]),
                tokens=int(each["tokens"]),
            )
            for each in csv.DictReader(lines)
        ]
    return {row.key: row for row in rows}


def write(file: Path, rows: Iterable[Row]) -> None:
    """Write the searches into a file, sorted."""
    listed = sorted(rows, key=lambda row: (row.how, row.profile, row.defect, row.seed))
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(Row.__slots__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in listed)


def faster(rows: Sequence[Row], one: str, other: str) -> float | None:
    """The speed of one search as a multiple of another's, in the median over defects.

    Each defect counts once, by the median of its seeds; one that the slower search never finds is
    endlessly faster, one that neither finds is left out.
    """
    factors = [
        times[other] / times[one]
        for times in _by_defect(rows).values()
        if one in times and other in times and min(times[one], times[other]) < float("inf")
    ]
    return median(factors) if factors else None


def _by_defect(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The median time of each search for each defect."""
    times: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        times.setdefault(row.defect, {}).setdefault(row.how, []).append(row.time)
    return {
        defect: {how: median(each) for how, each in found.items()}
        for defect, found in times.items()
    }


def cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A line for each search: findings, times, size."""
    for how in (*METHODS, EARLIER):
        some = [row for row in rows if row.how == how]
        if not some:
            continue
        right = [row for row in some if row.found]
        names = {row.defect for row in some}
        seconds = [row.seconds for row in right]
        missed = [row.seconds for row in some if not row.found]
        middle = median(row.time for row in some)
        yield (
            how,
            f"{len({row.defect for row in right})} of {len(names)}",
            f"{100 * len(right) / len(some):.0f} %",
            f"{middle:.3f}" if middle < float("inf") else "-",
            f"{max(seconds):.1f}" if right else "-",
            f"{max(missed):.0f}" if missed else "-",
        )


HEADS: Final = ("search", "defects found", "share", "median, s", "slowest, s", "given, s")


def table(rows: Sequence[Row]) -> Table:
    """A row for each search."""
    shown = Table(title="known defects found by blind searches, processor time", title_style="")
    for number, head in enumerate(HEADS):
        shown.add_column(head, justify="right" if number else "left")
    for line in cells(rows):
        shown.add_row(*line)
    return shown


def misses(rows: Sequence[Row], how: str) -> Iterator[str]:
    """The defects that no search of a kind found, and those that not all found."""
    some: dict[str, list[Row]] = {}
    for row in rows:
        if row.how == how:
            some.setdefault(row.defect, []).append(row)
    for defect, searches in some.items():
        found = sum(search.found for search in searches)
        if found == len(searches):
            continue
        most = max(search.seconds for search in searches if not search.found)
        first = searches[0]
        often = f"{found} of {len(searches)} searches found it in {most:.0f} s"
        reason = BEYOND.get(defect) or RARE.get(defect) or "rare"
        yield f"{defect} ({first.effect}, {first.profile}): {reason}; {often}"


def missing(
    known: Mapping[tuple[str, str, int], Row],
    how: Sequence[str],
    seeds: Sequence[int],
    seconds: float,
    only: str,
) -> Iterator[tuple[Defect, str, int]]:
    """The searches that the file does not hold."""
    for seed in seeds:
        for each in how:
            for defect in defects(only):
                row = known.get((defect.name, each, seed))
                known_beyond = row is not None and defect.name in BEYOND
                if row is None or not (row.found or row.seconds >= seconds or known_beyond):
                    yield defect, each, seed


def run(
    out: Console,
    *,
    how: Sequence[str] = ("random", "guided"),
    seeds: Sequence[int] = SEEDS,
    seconds: float = SECONDS,
    only: str = "",
    file: Path | None = None,
    shrinks: bool = False,
) -> None:
    """Search, print the table and the misses; keep every search where a file is named."""
    known = {} if file is None else read(file)
    wanted = missing(known, how, seeds, seconds, only) if seconds else ()
    for defect, each, seed in list(wanted):
        row = row_of(METHODS[each](defect, seed, seconds), each, shrinks=shrinks)
        known[row.key] = row
        if file is not None:
            write(file, known.values())
    rows = list(known.values())
    out.print(table(rows))
    for other in ("random", EARLIER):
        factor = faster(rows, "guided", other)
        if factor is not None:
            said = f"guided is {factor:.1f} times faster than {other} in the median over defects"
            out.print(said)
    small = [each.tokens for each in rows if each.tokens]
    if small:
        out.print(f"prompts of shrunk counterexamples: {median(small):.0f} tokens in the median")
    for line in misses(rows, "guided"):
        out.print(f"not always found by guided: {line}")


if __name__ == "__main__":
    given = ArgumentParser(prog="python -m benchmarks.bugs")
    given.add_argument("--how", nargs="+", default=("random", "guided"), choices=[*METHODS])
    given.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given.add_argument("--seconds", type=float, default=SECONDS)
    given.add_argument("--only", default="", help="part of the name or profile")
    given.add_argument("--file", type=Path, help="a CSV file that keeps the searches")
    given.add_argument("--shrinks", action="store_true", help="shrink what is found")
    run(Console(width=140, highlight=False), **vars(given.parse_args()))
