"""`python -m conformance.in_float [--every]`: shipped scenarios in float arithmetic, as expected.

`make check` plays every third one, nightly all. Those that would take minutes are named and left
to `make run`, which plays all in ring.
"""

import contextlib
import io
import sys
from typing import Final

from cachesim.cli.jobs import jobs_of
from cachesim.cli.main import main as cachesim
from cachesim.cli.run import seconds_of
from cachesim.scenario.shipped import shipped_files

IN_CHECK: Final = 3
"""Scenarios of which `make check` plays one."""

LONGEST: Final = 2.0
"""Seconds, at most, of what is played."""


def main() -> int:
    short: list[str] = []
    for file in shipped_files()[:: 1 if "--every" in sys.argv[1:] else IN_CHECK]:
        if seconds_of(jobs_of([str(file)], (), None)) < LONGEST:
            short.append(str(file))
        else:
            sys.stdout.write(f"in float: {file.stem} is left to make run\n")
    with contextlib.redirect_stdout(io.StringIO()) as told_of_it:
        status = cachesim(["run", *short, "--format", "json"])
    if status:
        sys.stdout.write(told_of_it.getvalue())
    sys.stdout.write(f"in float: {len(short)} scenarios, exit status {status}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
