"""Checks that are too long for the tests: `python -m tests.engines.vllm [defects | answers
[REQUESTS]]`.

`defects` prints how the search finds each known wrong answer, and that it finds nothing without it;
`answers` plays random requests with every fix, exact words and floats in turn, and holds each
answer against the cold one.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from cachesim.model.arithmetic import ArithmeticName
from tests.engines.conversations import judged
from tests.engines.vllm.defects import DEFECTS, FIXED, MOST_REQUESTS
from tests.engines.vllm.workloads import PRESETS, Workload

PROFILE: Final = f"vllm@0.33.0{FIXED}"
REQUESTS: Final = 100_000
FLOAT_SHARE: Final = 10
"""Every tenth workload is played in floats, which are slower."""


def defects(out: Console) -> int:
    """The table of defects; 1 if one got away, or was found where it is not."""
    table = Table(title="known wrong answers of vLLM, searched for", title_style="")
    for head in ("defect", "profile", "model", "workload", "requests", "without it"):
        table.add_column(head)
    missed = 0
    for defect in DEFECTS:
        report, control = defect.hunt(), defect.hunt(defect.cured, examples=100)
        found = report.counterexample
        small = "" if found is None else str(sum(s.do == "complete" for s in found.scenario.step))
        wrong = found is None or found.finding.kind != "wrong answer" or int(small) > MOST_REQUESTS
        missed += wrong or control.counterexample is not None
        table.add_row(
            defect.about,
            defect.profile,
            defect.model,
            "GOT AWAY" if found is None else str(found.number),
            small,
            "nothing" if control.counterexample is None else "FOUND TOO",
        )
    out.print(table)
    return 1 if missed else 0


def answers(out: Console, wanted: int) -> int:
    """Print the number of cold answers; 1 if any was not."""
    counted: Counter[tuple[str, ArithmeticName]] = Counter()
    cached: Counter[tuple[str, ArithmeticName]] = Counter()
    wrong: list[int] = []
    seed = 0
    while counted.total() < wanted:
        arithmetic: ArithmeticName = "float" if seed % FLOAT_SHARE == 0 else "ring"
        workload = Workload(seed, PROFILE, arithmetic=arithmetic)
        for reply, same in judged(workload):
            counted[workload.preset, arithmetic] += 1
            cached[workload.preset, arithmetic] += reply.cached or 0
            if not same:
                wrong.append(seed)
        seed += 1
    table = Table(title=f"{PROFILE}: answers that are the cold ones", title_style="")
    for head in ("model", "ring", "cached", "float", "cached"):
        table.add_column(head, justify="left" if head == "model" else "right")
    kinds: tuple[ArithmeticName, ...] = ("ring", "float")
    for preset in PRESETS:
        row = [f"{part[preset, kind]:,}" for kind in kinds for part in (counted, cached)]
        table.add_row(preset, *row)
    out.print(table)
    said = f"wrong in the workloads {wrong[:20]}" if wrong else "all as cold"
    out.print(f"{counted.total():,} requests in {seed:,} workloads: {said}")
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    out = Console(highlight=False, width=130)
    if arguments[:1] == ["answers"]:
        return answers(out, int(arguments[1]) if arguments[1:] else REQUESTS)
    return defects(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
