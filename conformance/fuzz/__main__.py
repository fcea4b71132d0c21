"""`python -m conformance.fuzz`: damaged input of every kind that cachesim reads.

    --mutants N    how many, over all kinds (default 1,000,000)
    --minutes M    stop after so long
    --seed S       other mutants
    --from N       take up a run of that seed that was stopped after N mutants
    --kind K       one kind only, with --first N from which number on
    --jobs J       processes

A mutant may be played or refused in words. A traceback, more than ten seconds or more than a
gigabyte is a failure; each is printed once with the command that repeats it.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from typing import Final

from conformance.fuzz.guard import limit_memory
from conformance.fuzz.kinds import KINDS
from conformance.fuzz.search import Tally, portions, search

TOLD_EVERY: Final = 20_000
"""Mutants between two lines that say how far a long run has come."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.fuzz")
    parser.add_argument("--mutants", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="done")
    parser.add_argument("--kind", choices=tuple(KINDS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    orders: Iterable[tuple[str, int, range]] = portions(given.mutants, given.seed, done=given.done)
    if given.kind:
        end = given.first + given.mutants
        orders = (
            (given.kind, given.seed, range(at, min(end, at + 200)))
            for at in range(given.first, end, 200)
        )
    started = time.monotonic()
    whole, told = Tally(), 0
    for tally in done(orders, given.jobs):
        shown = {last_line(failure.failure) for failure in whole.failures}
        for failure in tally.failures:
            if last_line(failure.failure) not in shown:
                shown.add(last_line(failure.failure))
                say(failure.again, failure.failure)
        whole.add(tally)
        if whole.counts.total() - told >= TOLD_EVERY:
            told = whole.counts.total()
            say(f"{told:,} mutants, {len(whole.failures)} failures")
        if given.minutes and time.monotonic() - started > 60 * given.minutes:
            break
    tell(whole, given.seed, time.monotonic() - started)
    return 1 if whole.failures else 0


def done(orders: Iterable[tuple[str, int, range]], jobs: int) -> Iterator[Tally]:
    """The tallies as they come; a few orders wait for each process."""
    waiting = iter(orders)
    if jobs == 1:
        for order in waiting:
            yield search(*order)
        return
    with ProcessPoolExecutor(jobs, initializer=limit_memory) as pool:
        running = {pool.submit(search, *order) for order in islice(waiting, 3 * jobs)}
        try:
            while running:
                first = next(as_completed(running))
                running.remove(first)
                running |= {pool.submit(search, *order) for order in islice(waiting, 1)}
                yield first.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def last_line(failure: str) -> str:
    """By which failures of one cause are told together: where it was raised, and what."""
    lines = failure.strip().splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    return f"{places[-1] if places else ''} {lines[-1].partition(':')[0]}"


def tell(whole: Tally, seed: int, seconds: float) -> None:
    total = whole.counts.total()
    rate = total / max(seconds, 1e-9)
    say(f"seed {seed}: {total:,} mutants in {seconds:.0f} s, {rate:.0f} a second")
    for name in KINDS:
        words = {
            word: count for (kind, word), count in sorted(whole.counts.items()) if kind == name
        }
        if words:
            say(f"  {name:<9} {', '.join(f'{count:,} {word}' for word, count in words.items())}")
    causes = {last_line(failure.failure) for failure in whole.failures}
    say(f"  {len(whole.failures)} failures of {len(causes)} causes")


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
