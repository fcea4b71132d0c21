"""The logs that the repository keeps: every command line over each of them, wheels or none."""

from collections.abc import Iterator

from conformance.end_to_end import logs, other_logs
from conformance.end_to_end.bench import Result, Settings, Task, bench
from conformance.end_to_end.make import kept, kept_of_others


def tasks(settings: Settings) -> Iterator[Task]:
    """All of them, in two tasks."""
    for half in (0, 1):
        yield Task(name="kept logs", do=of_kept, given=(half, settings.seed))


def of_kept(half: int, seed: int) -> Result:
    result = Result()
    for number, life in enumerate(kept()):
        if number % 2 == half:
            logs.read(life, number + seed % len(logs.TURNS), result)
    for number, (name, log, answers) in enumerate(kept_of_others()):
        if number % 2 == half:
            with bench(f"kept {name}", result) as place:
                told = answers if "INFO" not in name else ()
                other_logs.read(place, log, told, number)
    return result
