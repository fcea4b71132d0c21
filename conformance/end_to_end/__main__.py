"""`python -m conformance.end_to_end [PART ...]`: the installed program over the whole corpus.

Without a part all of them run. A part is a module of this package whose `tasks(settings)` yields
what two processes run side by side; a failure names its command line and the folder that keeps its
files.
"""

import argparse
import importlib
import importlib.util
import multiprocessing
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from conformance.end_to_end.bench import FAILURES, Failure, Result, Settings, Task, done
from conformance.end_to_end.program import load

PARTS: Final = (
    "kept", "logs", "other_logs", "recordings", "traces", "headers", "scenarios", "commands",
)  # fmt: skip
SEED: Final = 20261122
LOGS: Final = 5
"""Of so many releases one; the nightly run has forty of each, at both verbosities."""

EVERY: Final = 40
"""`why` plays a log with other settings too, which takes time; the nightly run reads all alone."""

RECORDINGS: Final = 8
SHOWN: Final = 60
"""Kinds of failures that are listed; all are kept."""

NUMBER: Final = re.compile(r"\d[\d,]*")


def chosen(names: Sequence[str], settings: Settings) -> Iterator[Task]:
    for name in names or PARTS:
        module = f"{__package__}.{name}"
        if not names and importlib.util.find_spec(module) is None:
            continue
        yield from importlib.import_module(module).tasks(settings)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.end_to_end", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=SEED, help="of server lives and damage")
    parser.add_argument("--logs", type=int, default=LOGS)
    parser.add_argument("--recordings", type=int, default=RECORDINGS)
    parser.add_argument("--every", type=int, default=EVERY, help="logs, of which one is read alone")
    parser.add_argument("--all-commands", action="store_true", help="run each printed command")
    parser.add_argument(
        "--whole", action="store_true", help="all headers, scenarios and logs of other servers"
    )
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(words)
    settings = Settings(
        seed=arguments.seed,
        logs=arguments.logs,
        recordings=arguments.recordings,
        every=arguments.every,
        all_commands=arguments.all_commands,
        whole=arguments.whole,
    )
    shutil.rmtree(FAILURES, ignore_errors=True)
    began = time.monotonic()
    total = Result()
    load()
    work = list(chosen(arguments.parts, settings))
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        for running in as_completed([pool.submit(done, task) for task in work]):
            task, result = running.result()
            total.merge(result)
            if result.failures:
                sys.stdout.write(f"{task.name}: {len(result.failures)} failures\n")
                sys.stdout.flush()
    show(total, time.monotonic() - began)
    return 1 if total.failures else 0


def show(total: Result, seconds: float) -> None:
    """The counts by command and format, and each failure."""
    as_a_shell = total.counts.pop(("as a shell does", "", ""), 0)
    by_form: Counter[tuple[str, str]] = Counter()
    kinds: dict[tuple[str, str], set[str]] = {}
    for (command, form, kind), count in total.counts.items():
        by_form[command, form] += count
        kinds.setdefault((command, form), set()).add(kind)
    lines = [f"{'command':12} {'format':12} {'run':>7} {'kinds':>6}"]
    for (command, form), count in sorted(by_form.items()):
        lines.append(f"{command:12} {form:12} {count:7,} {len(kinds[command, form]):6}")
    slowest = (f"{name} {spent // 1000}" for name, spent in total.milliseconds.most_common(8))
    corpus = (f"{count:,} {kind}" for kind, count in sorted(total.inputs.items()))
    statuses = (f"{key}: {count:,}" for key, count in sorted(total.statuses.items()))
    lines.append(f"seconds of processor time by command: {', '.join(slowest)}")
    lines.append(f"corpus: {', '.join(corpus)}")
    lines.append(
        f"{by_form.total():,} command lines in {seconds:.0f} s, {as_a_shell} of them as a shell "
        f"starts them; by exit status {', '.join(statuses)}"
    )
    lines += [f"SKIPPED {each}" for each in total.skipped]
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in total.failures:
        key = failure.line.split()[1] if " " in failure.line else failure.line
        groups.setdefault((key, NUMBER.sub("N", failure.problem)), []).append(failure)
    for alike in sorted(groups.values(), key=len, reverse=True)[:SHOWN]:
        first = alike[0]
        lines += [f"FAILED  {len(alike)} times: {first.problem}", f"        {first.line}"]
        lines.append(f"        {first.folder}")
    lines.append(f"{len(total.failures):,} failures")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
