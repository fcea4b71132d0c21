"""A report for each cause of wrong answers in Transformers, and of crashes: ready to post."""

import csv
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Final, NamedTuple

from cachesim.prove.transformers.process import Worker
from cachesim.prove.transformers.program import Model, has_program, program_of
from cachesim.prove.transformers.scripts import Script, shrunk, text_of
from cachesim.scenario.labels import table
from cachesim.typed import Json
from conformance.real.transformers.causes import Cause, cause_of
from conformance.real.transformers.environments import answered
from conformance.real.transformers.results import Cell, Found, normal, steps_of

OFF: Final = re.compile(r"^off by (\S+); [^:]+: (\S+)", re.MULTILINE)
TOKENS: Final = re.compile(r"^expected (\[.*?\]) got (\[.*?\]) ?(.*)$", re.MULTILINE)
AT_FAULT: Final = "Line at fault, read in the source of"
SECONDS: Final = 120
"""Time of a program."""


class Subject(NamedTuple):
    """Subject of a report: a title, and the results of a cause."""

    title: str
    cause: Cause | None
    cells: Sequence[Cell]


def write_reports(
    folder: Path, worker: Worker, python: Path, releases: Sequence[Found], attention: str
) -> Iterator[Path]:
    """Write a report for each cause in the last release, those of most scripts first."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, about in enumerate(_causes(releases[-1]), 1):
        cells = about.cells
        path = folder / f"{number:02}-{cells[0].operation}-{cells[0].family}.md"
        text = _report(about, worker, python, releases, attention)
        path.write_text(text, encoding="utf-8")
        yield path


def _causes(found: Found) -> Iterator[Subject]:
    """A title and the results of each cause; unexplained ones by family."""
    by_cause: dict[str, list[Cell]] = defaultdict(list)
    known: dict[str, Cause] = {}
    for cell in found.cells:
        if cell.verdict == "wrong":
            cause = cause_of(cell)
            title = f"right with {cell.cause}" if cell.cause else cell.family
            if cause is not None:
                title = cause.title
                known[title] = cause
            by_cause[f"Wrong logits: {title}"].append(cell)
        elif cell.verdict == "crash":
            by_cause[f"Crash: {normal(cell.error)}"].append(cell)
    for title, cells in sorted(by_cause.items(), key=lambda each: -len(each[1])):
        plain = sorted(cells, key=lambda each: (not has_program(each.script), len(each.script)))
        yield Subject(title, known.get(title.partition(": ")[2]), plain)


def _report(
    about: Subject, worker: Worker, python: Path, releases: Sequence[Found], attention: str
) -> str:
    title, cause, cells = about
    shown = cells[0]
    answer = partial(answered, worker, shown.family, attention)

    def is_same(script: Script) -> bool:
        [result] = answer(script)["results"]
        same = (result["verdict"], result.get("cause", "")) == (shown.verdict, shown.cause)
        return same and normal(result.get("error", "")) == normal(shown.error)

    for script in (shrunk(shown.script, is_same, 16), shown.script):
        found = answer(script)
        [last] = found["results"]
        model = Model.of(shown.family, found)
        program = program_of(model, script)
        printed = _printed(python, program) if program else ""
        if _shows(printed, shown):
            break
    else:
        program = ""  # its weights are not those of the script's model
    setting = (
        f"transformers {shown.release}, {attention} attention, float64 on the CPU, random weights. "
        "Compared with `use_cache=False` over the same tokens."
    )
    verdicts = [
        (found.release, cell.verdict)
        for found in releases
        for cell in found.cells
        if (cell.family, cell.operation) == (shown.family, shown.operation)
    ]
    parts = [
        f"# {title}",
        setting,
        _sentence(shown, script, last),
        fill(f"{AT_FAULT} {cause.read}: {cause.source}. {cause.why}", 100) if cause else "",
        f"```python\n{program}\n```\n\nprints\n\n```text\n{printed}\n```" if program else "",
        f"Upstream: {cause.known or 'no thread found.'}" if cause else "",
        f"Releases: {steps_of(verdicts)}.",
        fill(_measured(cause), 100) if cause else "",
        fill("Operations: " + _listed(cell.operation for cell in cells), 100),
        fill("Families: " + _listed(cell.family for cell in cells), 100),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _measured(cause: Cause) -> str:
    """The verdicts of all measured releases on what shows a cause, seed 0 and eager attention."""
    path = table("transformers-causes.csv")
    if path is None:
        return ""
    with path.open(newline="", encoding="utf-8") as rows:
        verdicts = [
            (each["release"], each["verdict"])
            for each in csv.DictReader(rows)
            if (each["family"], each["operation"]) == cause.shown
        ]
    family, operation = cause.shown
    found = f"{family}, {operation} on {len(verdicts)} releases: {steps_of(verdicts)}"
    return f"{found} (each verdict from that release on)." if verdicts else ""


def _shows(printed: str, shown: Cell) -> bool:
    """True if a program prints the crash, or logits or tokens that are not the cold ones."""
    far = OFF.search(printed)
    if shown.verdict == "crash":
        return bool(printed) and far is None
    if far is None:
        rows = TOKENS.findall(printed)
        return any(expected != got or error for expected, got, error in rows)
    return float(far[1]) > float(far[2]) / 1000


def _sentence(shown: Cell, script: Script, last: Json) -> str:
    where = f"{shown.family}, {shown.operation} ({text_of(script)})"
    if shown.verdict == "crash":
        return f"{where}: `{last['error']}` in {last['place']}."
    far = f"{where}: off by {last['gap']:.2g} deviations of the cold logits"
    return far + (f"; the first difference is in {last['place']}." if last["place"] else ".")


def _printed(python: Path, program: str) -> str:
    """Output of the program, or the last line of its error."""
    command = [str(python), "-W", "ignore", "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"nothing within {SECONDS} seconds"
    last = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    return f"{done.stdout}{last}".strip()


def _listed(names: Iterator[str]) -> str:
    return ", ".join(sorted(set(names)))
