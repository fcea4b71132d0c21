"""`cachesim check --prove`: a release's wrong answers, played on the real engine."""

from collections.abc import Sequence
from pathlib import Path

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.check import Budget, bar, check_folder
from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.lab.real.hunt.loop import Findings, ProvenFinding
from cachesim.lab.real.hunt.loop import hunt as search
from cachesim.lab.real.hunt.proof import prover_of
from cachesim.lab.real.hunt.report import write
from cachesim.lab.real.playing import comparing
from cachesim.report.consoles import results, show
from cachesim.report.document import FittingTable


@comparing
def hunt(wanted: Profile, *, minutes: float, seed: int, models: Sequence[str], emit: Path) -> int:
    """Search a release for wrong answers, prove them on the real engine, and write reports."""
    if wanted.patches:
        msg = f"{wanted} has patches: --prove is for a release as it is, as {wanted.engine}@..."
        raise InputError(msg)
    check_folder(emit)
    where, budget = prover_of(wanted, ()).where, Budget(minutes)
    reports: list[tuple[ProvenFinding, Path]] = []
    with bar(f"{wanted}") as advance:

        def going(bag: Findings) -> bool:
            advance(bag.workloads, bag.requests)
            return budget.left()

        def told(trophy: ProvenFinding) -> None:
            if trophy.word.confirmed:
                number = len(reports) + 1
                reports.append((trophy, write(trophy, wanted, emit, number, where)))

        bag = search(wanted, seed=seed, models=models, going=going, told=told)
    count = f"{counted(bag.workloads, 'workload')}, {counted(bag.requests, 'request')}"
    title = f"{wanted}: {count}, {counted(round(budget.seconds), 'second')}"
    return _told(title, bag, reports, where)


def _told(
    title: str, bag: Findings, reports: Sequence[tuple[ProvenFinding, Path]], where: str
) -> int:
    table = FittingTable(title_style="", box=None)
    for head in ("cause", "workloads", f"seen on {where}", "evidence", "known as"):
        table.add_column(head, justify="right" if head == "workloads" else "left")
    for trophy, _ in reports:
        word = trophy.word
        count = str(bag.counts[trophy.cause])
        table.add_row(str(trophy.cause), count, word.seen, word.evidence, trophy.known or "-")
    lines = [f"{len(reports)} distinct causes" if len(reports) != 1 else "one cause"]
    lines += [f"  {path}" for _, path in reports]
    lines += [f"  not confirmed: {each.cause}: {each.word.seen}" for each in bag.missed.values()]
    show(results(), title, *([table] if reports else []), *lines)
    return NOT_AS_EXPECTED if reports else AS_EXPECTED
