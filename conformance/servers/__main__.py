"""The table of releases, models and laws: docs/conformance.csv, written by runs alone.

    python -m conformance.servers llama.cpp@b11549 mlx-lm@0.32.2 --minutes 3
    python -m conformance.servers llama.cpp@b11549 --model dense --again

A model of a release is run once: what the file has is left out, so that a run which was ended goes
on where it was, and `--again` replaces its rows.
"""

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cachesim.cli import version
from cachesim.conform.command import Asked, run
from cachesim.conform.result import Examined, evidence
from cachesim.engines.family import Profile
from cachesim.probe.command import Settings
from conformance.servers import models_of

TABLE: Final = Path(__file__).parents[2] / "docs" / "conformance.csv"
HEAD: Final = ("server", "model", "law", "status", "requests", "detail", "minutes", "seed", "by")
LOGGED: Final = re.compile(r"127\.0\.0\.1 - - \[[^\]]{1,40}\] ")
"""Client and moment of a line of an access log."""

ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")


def rows_of(column: Examined, minutes: float, seed: int) -> Iterator[tuple[str, ...]]:
    """A row for each law."""
    for verdict in column.verdicts:
        detail = steady("; ".join(map(evidence, verdict.findings)))
        if verdict.status.startswith("not"):
            detail = verdict.reason
        run_by = (f"{minutes:g}", str(seed), f"cachesim {version()}")
        count = str(verdict.requests)
        yield column.server, column.model, verdict.law, verdict.status, count, detail, *run_by


def steady(text: str) -> str:
    """A detail without the address and the moment of its run, so that equal findings are equal."""
    return ADDRESS.sub("the server", LOGGED.sub("", text))


def read() -> list[tuple[str, ...]]:
    """The rows so far."""
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)][1:]
    return [(*row[:5], steady(row[5]), *row[6:]) for row in rows]


def write(rows: Sequence[tuple[str, ...]]) -> None:
    """The file with these rows, ordered by server and model as they were run."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])


def main() -> int:
    """Run what is missing."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("profiles", nargs="+", metavar="ENGINE@RELEASE")
    asked.add_argument("--model", action="append")
    asked.add_argument("--minutes", type=float, default=5.0)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--again", action="store_true")
    given = asked.parse_args()
    for profile in map(Profile.parse, given.profiles):
        for model in given.model or models_of(profile):
            held = read()
            own = [row for row in held if row[:2] == (str(profile), model)]
            if own and not given.again:
                continue
            settings = Settings(minutes=given.minutes, seed=given.seed)
            table = run(Asked(what=str(profile), models=(model,), settings=settings))
            [column] = table.columns
            rows = list(rows_of(column, given.minutes, given.seed))
            write([*(row for row in held if row not in own), *rows])
            sys.stdout.writelines(f"{' '.join(row[:6])}\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
