"""`python -m conformance.claims [N]`: every claim of all scenarios, and of searched workloads.

10,000 workloads in all, shared out over releases and models, on two processes, in at most half an
hour; prints how many claims were checked, kind by kind, and each that is false. With N workloads
every third scenario is run, on its first and its last profile, and the longest are left out, as
`make check` does.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Final

from cachesim.cli.jobs import jobs_of
from cachesim.cli.run import seconds_of
from cachesim.engines.family import FAMILIES, Profile
from cachesim.errors import InputError
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_files
from cachesim.testing.search import workloads
from conformance.claims.checks import Tally, every
from conformance.claims.played import all_profiles, play

WORKLOADS: Final = 10_000
BATCH: Final = 10
SECONDS: Final = 1800
MODELS: Final = ("dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa")

IN_CHECK: Final = 3
"""Scenarios of which `make check` takes one; their sentences are of the same few hundred forms."""

LONGEST: Final = 20.0
"""Seconds in float arithmetic of scenarios that `make check` leaves out."""

Task = tuple[str, str, int] | tuple[Path, int | None]


def jobs(many: int) -> Iterator[Task]:
    """The scenarios; then batches of workloads, round by round over releases and models."""
    if many >= WORKLOADS:
        yield from ((file, None) for file in shipped_files())
    else:
        yield from ((file, 2) for file in shipped_files()[::IN_CHECK] if not _is_long(file))
    kinds = [
        (f"{engine}@{release.name}", model)
        for engine, family in FAMILIES.items()
        for release in family.releases
        for model in MODELS
    ]
    batches = many // BATCH
    apart = max(1, len(kinds) // batches) if batches else 1  # few batches, spread over all engines
    for number in range(batches):
        profile, model = kinds[number * apart % len(kinds)]
        yield profile, model, number // len(kinds) * BATCH


def _is_long(file: Path) -> bool:
    if seconds_of(jobs_of([str(file)], (), None)) < LONGEST:
        return False
    sys.stdout.write(f"{file.stem} is left to make nightly\n")
    return True


def done(job: Task) -> tuple[Tally, int]:
    """The claims of one scenario, or of one batch of workloads."""
    if isinstance(job[0], Path):
        return every(all_profiles(load(job[0]), job[1])), 0
    profile, model, first = Profile.parse(job[0]), job[1], job[2]
    tally, played = Tally(), 0
    drawn = workloads(profile, model, seed=7, first=first)
    for _, scenario in zip(range(BATCH), drawn, strict=False):
        try:
            found = every(iter([play(scenario, profile)]))
        except InputError:  # a model that this engine does not serve
            break
        played += 1
        tally.checked += found.checked
        tally.false += found.false
        tally.kinds = dict(Counter(tally.kinds) + Counter(found.kinds))
    return tally, played


def main(many: int = WORKLOADS) -> int:
    """Check all; 1 where a claim is false."""
    began, kinds = monotonic(), Counter[str]()
    false: list[str] = []
    work = list(jobs(many))
    files, played = sum(isinstance(job[0], Path) for job in work), 0
    with ProcessPoolExecutor(2) as pool:
        for tally, count in pool.map(done, work):
            kinds.update(tally.kinds)
            false += tally.false
            played += count
            if monotonic() - began > SECONDS:
                sys.stdout.write(f"stopped after {SECONDS} s\n")
                pool.shutdown(wait=False, cancel_futures=True)
                break
    for kind, count in kinds.most_common():
        sys.stdout.write(f"{count:>9}  {kind}\n")
    for line in false[:50]:
        sys.stdout.write(f"FALSE  {line}\n")
    total = sum(kinds.values())
    sys.stdout.write(
        f"{total} claims of {files} scenarios and {played} workloads, {len(false)} false,"
        f" in {monotonic() - began:.0f} s\n"
    )
    return int(bool(false))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
