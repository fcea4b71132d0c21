"""A report for each cause of wrong answers in Transformers, and of crashes: ready to post."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from cachesim.lab.real.transformers.program import has_program, program_of
from cachesim.lab.real.transformers.results import Cell, Found, normal
from cachesim.lab.real.transformers.script_worker import SHORTER, SINGLY
from cachesim.lab.real.transformers.scripts import Script, shrunk, text_of
from cachesim.lab.real.transformers.worker import Worker
from cachesim.lab.real.worker_process import WorkerError
from cachesim.typed import Json

OFF: Final = re.compile(r"off by (\S+); deviation of the cold logits: (\S+)")
KNOWN: Final = {
    SHORTER: "huggingface/transformers#40906 leaves this case as a TODO.",
    SINGLY: "Known of Mamba-1: huggingface/transformers#47087.",
}
"""What upstream's threads say of a cause."""

SECONDS: Final = 120
"""Time of a program."""


def write_reports(
    folder: Path, worker: Worker, python: Path, found: Found, attention: str
) -> Iterator[Path]:
    """Write a report for each cause, those of most scripts first; its path after each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (title, cells) in enumerate(_causes(found), 1):
        path = folder / f"{number:02}-{cells[0].operation}-{cells[0].family}.md"
        text = _report(title, cells, worker, python, attention)
        path.write_text(text, encoding="utf-8")
        yield path


def _causes(found: Found) -> Iterator[tuple[str, list[Cell]]]:
    """A title and the results of each cause; what is not explained is one by family."""
    by_cause: dict[str, list[Cell]] = defaultdict(list)
    for cell in found.cells:
        if cell.verdict == "wrong":
            by_cause[f"right with {cell.cause}" if cell.cause else cell.family].append(cell)
        elif cell.verdict == "crash":
            by_cause[normal(cell.error)].append(cell)
    for title, cells in sorted(by_cause.items(), key=lambda each: -len(each[1])):
        kind = "Wrong logits" if cells[0].verdict == "wrong" else "Crash"
        yield f"{kind}: {title}", sorted(cells, key=lambda each: not has_program(each.script))


def _report(title: str, cells: Sequence[Cell], worker: Worker, python: Path, attention: str) -> str:
    shown = cells[0]

    def answer(script: Script) -> Json:
        order = {"family": shown.family, "attention": attention, "scripts": [script]}
        try:
            return worker.order(order)
        except WorkerError:
            return {"results": [{"verdict": "ended"}]}

    def is_same(script: Script) -> bool:
        [result] = answer(script)["results"]
        same = (result["verdict"], result.get("cause", "")) == (shown.verdict, shown.cause)
        return same and normal(result.get("error", "")) == normal(shown.error)

    for script in (shrunk(shown.script, is_same, 30), shown.script):
        found = answer(script)
        [last] = found["results"]
        between = "models of their own" in shown.cause
        program = program_of(shown.family, found["fields"], found["key"], script, between=between)
        printed = _printed(python, program) if program else ""
        if _shows(printed, shown):
            break
    else:
        program = ""  # its weights are not those of the script's model
    setting = (
        f"transformers {shown.release}, {attention} attention, float64 on the CPU, random weights. "
        "Compared with `use_cache=False` over the same tokens."
    )
    parts = [
        f"# {title}",
        setting,
        _sentence(shown, script, last),
        f"```python\n{program}\n```\n\nprints\n\n```text\n{printed}\n```" if program else "",
        KNOWN.get(shown.cause, ""),
        fill("Operations: " + _listed(each.operation for each in cells), 100),
        fill("Families: " + _listed(each.family for each in cells), 100),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _shows(printed: str, shown: Cell) -> bool:
    """True if a program prints the crash, or logits or tokens that are not the cold ones."""
    far = OFF.match(printed)
    if shown.verdict == "crash" or far is None:
        return bool(printed) and far is None
    return float(far[1]) > float(far[2]) / 1000


def _sentence(shown: Cell, script: Script, last: Json) -> str:
    where = f"{shown.family}, {shown.operation} ({text_of(script)})"
    if shown.verdict == "crash":
        return f"{where}: `{last['error']}` in {last['place']}."
    far = f"{where}: off by {last['gap']:.2g} deviations of the cold logits"
    return far + (f"; the first difference is in {last['place']}." if last["place"] else ".")


def _printed(python: Path, program: str) -> str:
    """What the program prints, or the last line of its error."""
    command = [str(python), "-W", "ignore", "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"nothing within {SECONDS} seconds"
    return (done.stdout or done.stderr.strip().rpartition("\n")[2]).strip()


def _listed(names: Iterator[str]) -> str:
    return ", ".join(sorted(set(names)))
