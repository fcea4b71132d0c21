"""The logs that the repository keeps, with wheels or none: each is read by what has its turn.

A quarter of them where the run is not a whole one: `logs` reads fresh ones of each release.
"""

from collections.abc import Iterator

from conformance.end_to_end import logs, other_logs
from conformance.end_to_end.bench import Result, Settings, Task, bench
from conformance.end_to_end.make import kept, kept_of_others


def tasks(settings: Settings) -> Iterator[Task]:
    """All of them, in two tasks."""
    for half in (0, 1):
        yield Task(name="kept logs", do=of_kept, given=(half, settings.seed, settings.whole))


def of_kept(half: int, seed: int, whole: bool) -> Result:
    result = Result()
    for number, life in enumerate(kept()):
        # Of the two verbosities of a release, one and the other by turns.
        if number % 2 == half and (whole or number % 8 in {0, 7}):
            logs.read(life, number + seed % len(logs.TURNS), result)
    for number, (name, log, answers) in enumerate(kept_of_others()):
        if number % 2 == half:
            with bench(f"kept {name}", result) as place:
                told = answers if "INFO" not in name else ()
                other_logs.read(place, log, told, number)
    return result
