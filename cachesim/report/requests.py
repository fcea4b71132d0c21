"""The head of a report of `cachesim why`, and its requests with a line for each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from cachesim.report.document import SENTENCES, FittingTable, Heading

MOST_LINES: Final = 40
"""Most requests with a line on a terminal; a page has all."""

YES: Final = {True: "yes", False: "no"}

OF_A_LOG: Final = (
    "Tokens of each request. shared: with the slot or entry that the log compares; again: shared "
    "but prefilled; changed: at most, after a change. A recording compares with all requests."
)
OF_A_RECORDING: Final = (
    "Tokens of each request. shared: with an earlier request; again: shared but prefilled; "
    "changed: prefilled after a change."
)


def answer(found: Mapping[str, Any]) -> list[RenderableType]:
    """The three sentences that come first."""
    first, *others = found["answer"]["says"]
    return [Text(first, style="name"), *map(Text, others)]


def request_lines(
    requests: Sequence[Mapping[str, Any]], most: int | None = MOST_LINES
) -> list[RenderableType]:
    """A line for each request; of a long log, those with the most tokens prefilled again."""
    shown = requests
    if most is not None and len(requests) > most:
        worst = sorted(
            requests, key=lambda request: (request["agrees"] is not False, -_lost(request))
        )
        numbers = {request["number"] for request in worst[:most]}
        shown = [request for request in requests if request["number"] in numbers]
    if not shown:
        return []
    columns = {name: list(map(cell, shown)) for name, cell in CELLS.items()}
    words = {name: list(map(cell, shown)) for name, cell in WORDS.items()}
    table = FittingTable(below=True)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    words = {name: cells for name, cells in words.items() if any(cells)}
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    for name in words:
        table.add_column(name, overflow="fold")
    for row, request in zip(
        zip(*columns.values(), *words.values(), strict=True), shown, strict=True
    ):
        table.add_row(*row, style="differs" if request["agrees"] is False else "")
    units = OF_A_RECORDING if "parting" in shown[0] else OF_A_LOG
    parts: list[RenderableType] = [Text(units, style="quiet"), table]
    if left := len(requests) - len(shown):
        parts.append(
            Text(f"{left:,} more requests are on the page (--report) and in --format json.")
        )
    return parts


def doctor_report(found: Mapping[str, Any]) -> list[RenderableType]:
    """What an input lacks for a full answer, and the lines that change it."""
    parts: list[RenderableType] = []
    if found["sources"]:
        parts = [Heading(" ".join([f"{', '.join(found['sources'])}:", found["says"]])), Text()]
    if found["findings"]:
        table = FittingTable()
        table.add_column("a full answer needs")
        table.add_column("in it", justify="right")
        table.add_column("what to change", overflow="fold", min_width=SENTENCES)
        for finding in found["findings"]:
            lacking = finding["known"] < finding["of"]
            part = (
                f"{finding['known']:,} of {finding['of']:,}"
                if finding["of"] > 1
                else YES[not lacking]
            )
            table.add_row(finding["what"], part, finding["change"] if lacking else "")
        parts += [table, Text()]
    if found["commands"]:
        parts.append(Text("The lines to change; other flags stay:"))
    whole = [Text(line, "bold", no_wrap=True, overflow="ignore") for line in found["commands"]]
    return [*parts, Group(*whole)]  # else lines are joined, and wrapped


def _lost(request: Mapping[str, Any]) -> int:
    return int(_again(request) or 0) + int(request["again_changed"] or 0)


def _shared(request: Mapping[str, Any]) -> int | None:
    equal, whole = request["equal"], request["prompt_tokens"]
    return None if equal is None or whole is None else min(equal, whole)


def _again(request: Mapping[str, Any]) -> int | None:
    """Shared tokens that were prefilled; a recording's number has those after a change too."""
    again: int | None = request["again"]
    if again is None or "parting" not in request:
        return again
    return again - int(request["again_changed"])


def _new(request: Mapping[str, Any]) -> int | None:
    shared = _shared(request)
    return None if shared is None else int(request["prompt_tokens"]) - shared


def _seconds(request: Mapping[str, Any]) -> str:
    seconds = request["seconds"]
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _replay(request: Mapping[str, Any]) -> str:
    cached = request["replayed"]["cached"]
    if request["agrees"] is None or cached is None:
        return ""
    return "exact" if request["agrees"] else f"cached {cached:,}"


def _sections(request: Mapping[str, Any]) -> str:
    sizes = request.get("sections") or {}
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


LEFT: Final = frozenset(("turn", "replay"))
CELLS: Final = {
    "#": lambda request: str(request["number"]),
    "turn": lambda request: request["turn"],
    "shared": lambda request: _count(_shared(request)),
    "new": lambda request: _count(_new(request)),
    "cached": lambda request: _count(request["cached"]),
    "prefilled": lambda request: _count(request["processed"]),
    "again": lambda request: _count(_again(request)),
    "changed": lambda request: f"{request['again_changed']:,}" if request["again_changed"] else "",
    "time": _seconds,
    "slot": lambda request: "" if request["slot"] is None else str(request["slot"]),
    "replay": _replay,
}
"""Columns of numbers; one without any is left out."""
WORDS: Final = {
    "because": lambda request: request["because"] or "",
    "about": _sections,
}
