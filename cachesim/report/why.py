"""A report of a server's log: totals, causes, the worst requests, the replay on other servers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from cachesim.engines.words import MIB, counted, mib, numbered
from cachesim.report.charts import scatter
from cachesim.report.document import SENTENCES, FittingTable, Heading, PageOnly, Picture, facts
from cachesim.report.requests import answer, request_lines

KINDS: Final = {
    "design": "by design",
    "client": "the client",
    "flag": "a flag",
    "defect": "upstream",
    "unknown": "unknown",
}


def _starts(count: int, *, swaps: bool) -> str:
    if not swaps:
        return f"The server was started {count} times."
    return (
        f"A router started {count} servers, and ended some to load other models (--models-max): "
        "each begins with empty slots and an empty prompt cache."
    )


def why_report(
    found: Mapping[str, Any], *, worst: Sequence[Mapping[str, Any]]
) -> list[RenderableType]:
    """The report; a page has every request, a terminal the worst."""
    log, agreement = found["log"], found["agreement"]
    parts: list[RenderableType] = [
        *_wrong_answers(found),
        *answer(found),
        Text(),
        Heading(
            f"{', '.join(log['sources'])}: {counted(found['totals']['requests'], 'request')} in "
            f"{log['lines']:,} lines"
        ),
    ]
    if log["broken"]:
        parts.append(Text(log["broken"], style="wrong"))
    if len(found["servers"]) > 1:
        parts.append(Text(_starts(len(found["servers"]), swaps=log.get("swaps", False))))
    parts += map(Text, [*dict.fromkeys(map(_server, found["servers"]))][:4])
    parts.append(Text(" ".join([_sum_in_words(found["totals"]), *_left_out(found["totals"])])))
    parts += _agreement(found)
    for place in found["places"]:
        parts += [Text(), Text(f"{place['sentence']} {place['advice']}")]
    if found["causes"]:
        parts += [Text(), causes(found["causes"], found["tuned"])]
    if advice := advice_of(found["tuned"]):
        parts += [Text(), Text(advice)]
    parts += [Text(), *request_lines(found["requests"])]
    for entry in worst:
        parts += [Text(), request(entry)]
    if found["what_if"] and found["totals"]["processed"]:
        same = found["what_if"][0]["processed"] == found["totals"]["processed"]
        exact = same and not agreement["differing"]
        parts += [Text(), what_if(found["what_if"], exact=exact)]
        if found["left_out_says"]:
            parts.append(Text(found["left_out_says"], style="quiet"))
        if found["bytes_say"]:
            parts.append(Text(found["bytes_say"], style="quiet"))
        if wrong := wrong_in_words(found["what_if"]):
            parts.append(Text(wrong, style="wrong"))
    notes = [log["long"], *(note for server in found["servers"] for note in server["missing"])]
    for note in filter(None, dict.fromkeys(notes)):
        parts += [Text(), Text(note, style="quiet")]
    return [
        *parts,
        PageOnly((Heading("Requests", level=2), *request_lines(found["requests"], None))),
    ]


def _server(server: Mapping[str, Any]) -> str:
    model = server["model"]
    flags = ", ".join(
        f"{option['flag']}{_how_known(option['how'])}" for option in server["options"].values()
    )
    known = f", {model['preset']} model{_how_known(model['how'])}" if server["played"] else ""
    build = f" (build {server['build']})" if server["build"] else ""
    return (
        f"{server['profile']}{build}{_how_known(server['profile_known'])}{known}"
        f"{'; ' if flags else ''}{flags}"
    )


def _how_known(how: str) -> str:
    return {"assumed": " (assumed)", "bounded": " (inferred)"}.get(how, "")


def _agreement(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    agreement = found["agreement"]
    for number in agreement["differing"][:2]:
        each = next(r for r in found["requests"] if r["number"] == number)
        yield Text(
            f"  request {number} (line {each['line']}): cached {shown(each['cached'])} in the "
            f"log, {shown(each['replayed']['cached'])} in the replay"
        )
    if declining := agreement.get("declining"):
        yield Text(
            f"The replay assumes `cache_prompt: false` of {numbered('request', declining)}, as the "
            "log does not print it."
        )


def _wrong_answers(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    for wrong in found["wrong"]:
        shown_by = f" Scenario: {wrong['scenario']}." if wrong["scenario"] else ""
        what = "THE SERVER LOOPS" if wrong["kind"] == "loop" else "WRONG ANSWERS ARE POSSIBLE"
        yield Text(
            f"{what}, {numbered('request', wrong['requests'])}: "
            f"{wrong['says']}.{shown_by} Evidence: {wrong['evidence']}.",
            style="wrong",
        )


def _sum_in_words(totals: Mapping[str, Any]) -> str:
    if not totals["prompt_tokens"]:
        return "No line says how many tokens a prompt had, or how many were prefilled."
    if totals["untold"] == totals["requests"] - totals["refused"]:
        if totals["processed"] is None:
            return "The log does not say how many tokens were prefilled or cached."
        return (
            f"{totals['processed']:,} tokens were prefilled; how many were cached, the log does "
            "not say."
        )
    unknown = f", {totals['unknown']:,} unknown" if totals["unknown"] else ""
    if totals["unknown"] < 0:  # a slot that was loaded with another conversation is read again
        unknown = f", {-totals['unknown']:,} more than the prompts have"
    return (
        f"{totals['prompt_tokens']:,} prompt tokens: {totals['cached']:,} cached, "
        f"{shown(totals['processed'])} prefilled{unknown}."
    )


def _left_out(totals: Mapping[str, int]) -> Iterator[str]:
    if unsure := totals["without_length"]:
        yield (
            f"The log does not have the length of {counted(unsure, 'prompt')}: only what is known "
            f"of {'it' if unsure == 1 else 'them'} is counted."
        )
    if refused := totals["refused"]:
        verb = "was" if refused == 1 else "were"
        yield (
            f"{counted(refused, 'request')} of {totals['refused_tokens']:,} tokens {verb} refused, "
            f"and {'is' if refused == 1 else 'are'} not counted."
        )


def advice_of(tuned: Mapping[str, Any] | None) -> str:
    """The recommendation of `cachesim why --tune`; empty without a choice of settings."""
    if tuned is None:
        return ""
    if tuned["withheld"] or len(tuned["tried"]) < 2 or not tuned["own"]["processed"]:
        return str(tuned["withheld"])
    words = verdict(tuned["own"], tuned["recommended"], tuned["tried"])
    return words + "".join(f" Assumed: {assumption}." for assumption in tuned["assumed"])


def causes(groups: Sequence[Mapping[str, Any]], tuned: Mapping[str, Any] | None) -> RenderableType:
    """Causes, largest first."""
    table = FittingTable()
    table.add_column("tokens", justify="right")
    table.add_column("requests", justify="right")
    table.add_column(
        "why they were prefilled again, and what helps", overflow="fold", min_width=SENTENCES
    )
    for group in groups:
        words = Text(group["cause"], style="name")
        words.append(f"  ({kind_of(group, tuned)})", style="quiet")
        upstream = f"See {group['upstream']}." if group["upstream"] else ""
        sentences = filter(None, (group["tried_says"], group["cure"], upstream))
        words.append(f"\n{' '.join([group['example'] + '.', *sentences])}", style="")
        table.add_row(f"{group['tokens']:,}", str(len(group["requests"])), words)
    return table


def kind_of(cause: Mapping[str, Any], tuned: Mapping[str, Any] | None) -> str:
    """Kind of a cause's remedy; a flag only where one helps or none was tried."""
    if cause["kind"] != "flag" or tuned is None or not cause["tried"]:
        return KINDS[cause["kind"]]
    if _any_helps(cause["tried"], 0):
        best = max(cause["tried"], key=lambda trial: (trial["failed"] <= 0, trial["fewer"]))
        return f"{KINDS['flag']}: {best['flag'].partition(' ')[0]}"
    own = tuned["own"]
    fewer = (trial | {"fewer": own["processed"] - trial["processed"]} for trial in tuned["tried"])
    return "these flags do not help" if _any_helps(fewer, own["failed"]) else "no flag tried helps"


def _any_helps(tried: Iterable[Mapping[str, Any]], failed: int) -> bool:
    return any(trial["fewer"] > 0 and trial["failed"] <= failed for trial in tried)


def request(each: Mapping[str, Any]) -> RenderableType:
    """A request in full."""
    known = each["known"]
    head = Text(f"request {each['number']}", style="name")
    head.append(f"  line {each['line']}")
    if each["slot"] is not None:
        head.append(f", slot {each['slot']}")
    if each["cancelled"]:
        head.append(", cancelled")
    elif each["generated"] is None and not each["refused"]:
        head.append(", no reply in the log")
    table = facts(gap=2)
    words = {"prompt_tokens": "prompt", "cached": "cached", "processed": "prefilled"}
    for name, word in words.items():
        value = each[name]
        how = f"{known[name]}{_bounds(each, name)}"
        if value is not None:
            table.add_row(word, f"{counted(value, 'token')} ({how})")
    if each["common"] is not None:
        table.add_row("match", _equal(each))
    for loss in each["why"]:
        table.add_row("why", f"{loss['from']:,} to {loss['to']:,}: {loss['sentence']}")
    if each["stale"]:
        table.add_row("risk", Text(f"stale state: {each['stale']}", style="wrong"))
    if each["agrees"] is False:
        cached = shown(each["replayed"]["cached"])
        table.add_row("replay", f"cached {cached}: it differs, so the cause is the log's")
    for sentence in each["log_says"]:
        table.add_row("log", sentence)
    return Group(head, Padding(table, (0, 0, 0, 2)))


def _equal(each: Mapping[str, Any]) -> str:
    common = each["common"]
    words = f"{counted(common, 'token')} with {each['common_with']} ({each['known']['common']}"
    return f"{words}{_bounds(each, 'common')})"


def _bounds(each: Mapping[str, Any], name: str) -> str:
    bounds = each["bounds"].get(name)
    if not bounds:
        return ""
    low, high = bounds
    return f": at least {low:,}" if high is None else f": {low:,} to {high:,}"


def what_if(rows: Sequence[Mapping[str, Any]], *, exact: bool) -> RenderableType:
    """The same requests on other servers."""
    table = FittingTable()
    table.add_column("what if")
    for head in ("prefill tokens", "change", "hits", "wrong", "memory (MiB)"):
        table.add_column(head, justify="right")
    for row in what_if_rows(rows, exact=exact):
        table.add_row(*row)
    return table


def what_if_rows(rows: Sequence[Mapping[str, Any]], *, exact: bool) -> Iterator[tuple[str, ...]]:
    """A row for each server; the first is that of the log, or its replay where they differ.

    Consecutive releases with equal results share one, unless the user named them.
    """
    cells = [(row["name"], *_cells(row, rows[0])) for row in rows]
    yield (f"{cells[0][0]} ({'the log' if exact else 'replayed'})", *cells[0][1:])
    if any(row["asked"] for row in rows):
        yield from cells[1:]
        return
    for alike in _neighbours(cells[1:]):
        name = alike[0][0] if len(alike) == 1 else f"{alike[0][0]} to {alike[-1][0]}"
        yield (name, *alike[0][1:])


def wrong_in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Wrong answers of the replayed log, missing answers, and the evidence labels of wrong
    releases.
    """
    own, *others = rows
    labels = dict.fromkeys(row["evidence"] for row in rows if row["evidence"])
    evidence = f"Evidence of wrong answers: {', '.join(labels)}." if labels else ""
    if not own["wrong_answers"]:
        return evidence
    wrong = counted(own["wrong_answers"], "answer")
    differs = "differs" if own["wrong_answers"] == 1 else "differ"
    sound = [other for other in others if other["wrong_answers"] == 0 and not other["failed"]]
    named = f" With {sound[0]['name']} none does." if sound else ""
    return (
        f"In the replay {wrong} {differs} from an uncached run's: the server may have answered"
        f" wrongly too.{named} {evidence}"
    ).rstrip()


def _cells(each: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[str, ...]:
    failed = f", {each['failed']} failed" if each["failed"] else ""
    difference = "" if each is first else f"{each['processed'] - first['processed']:+,}"
    wrong = each["wrong_answers"]
    judged = "not judged" if wrong is None else str(wrong)
    low, high = each["processed_bounds"]
    bounds = "" if low == high else f" ({low:,} to {high:,})"
    return (
        f"{each['processed']:,}{bounds}{failed}",
        difference,
        str(each["hits"]),
        judged,
        mib(held(each)),
    )


def _neighbours(cells: Sequence[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    group: list[tuple[str, ...]] = []
    for cell in cells:
        if group and (cell[1:] != group[-1][1:] or "+" in cell[0]):
            yield group
            group = []
        group.append(cell)
    if group:
        yield group


def shown(value: int | None) -> str:
    """A number, or `unknown`."""
    return "unknown" if value is None else f"{value:,}"


# -- the table of settings -------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 60, 12, 14
"""Columns and lines of the plot, and columns to its left."""

NOW, BEST, BOTH, TRIED = "o", "*", "@", "."
SIGNS: Final = {NOW: "now", BEST: "recommended", BOTH: "now, and recommended", TRIED: "tried"}
"""Series of the plot."""


def tune_report(found: Mapping[str, Any]) -> list[RenderableType]:
    """The recommended settings and their cost, the Pareto front, the plot."""
    own, best = found["own"], found["recommended"]
    title = f"{found['requests']:,} requests replayed with {len(found['tried'])} settings"
    front = found["front"]
    table = FittingTable()
    table.add_column("flags", overflow="fold")
    for head in ("prefill tokens", "change", "memory (MiB)", "change"):
        table.add_column(head, justify="right")
    for trial in [*front, *([] if own in front else [own])]:
        tokens, size = trial["processed"] - own["processed"], held(trial) - held(own)
        table.add_row(
            words_of(trial) + ("  *" if trial == best else ""),
            f"{trial['processed']:,}",
            "" if trial == own else f"{tokens:+,}",
            mib(held(trial)),
            "" if trial == own else _change(size),
        )
    parts: list[RenderableType] = [Heading(f"{found['source']}: {title}"), Text()]
    if found.get("withheld"):
        return [*parts, Text(found["withheld"]), Text(), Text(found["left_out_says"], "quiet")]
    parts += [Text(verdict(own, best, found["tried"])), Text(), Text(found["command"], "bold")]
    parts += [Text(), table]
    if len({trial["processed"] for trial in found["tried"]}) > 1:  # else one line of signs
        parts += [Text(), Picture(_Plot(found["tried"], own, best), _scatter(found))]
    for words in filter(None, (found.get("left_out_says"), found["bytes_say"])):
        parts += [Text(), Text(words, style="quiet")]
    if found["assumed"]:
        parts += [Text(), Text(f"assumed: {', '.join(found['assumed'])}", style="quiet")]
    return parts


def _change(size: int) -> str:
    """Bytes more or less, in MiB; digits enough that a difference is not 0."""
    digits = next((digits for digits in (1, 2, 3) if round(abs(size) / MIB, digits)), 4)
    return f"{size / MIB:+,.{digits}f}" if size else "+0"


def _scatter(found: Mapping[str, Any]) -> str:
    """The plot of a page."""
    own, best = found["own"], found["recommended"]
    groups: dict[str, list[Mapping[str, Any]]] = {
        "tried": [trial for trial in found["tried"] if trial not in (own, best)],
        "recommended": [best] if best != own else [],
        "now" if best != own else "now, and recommended": [own],
    }
    return scatter(
        {
            name: [(round(held(member) / MIB, 1), member["processed"]) for member in members]
            for name, members in groups.items()
            if members
        },
        names={"recommended": words_of(best)},
    )


def words_of(tried: Mapping[str, Any]) -> str:
    """The differences from the user's settings, as flags."""
    return " ".join(tried["flags"]) or "unchanged"


def held(each: Mapping[str, Any]) -> int:
    """Bytes of the server's contexts and, at the peak, of its prompt cache and checkpoints."""
    return int(each["peak_bytes"]) + int(each["context_bytes"])


@dataclass(frozen=True, slots=True)
class _Plot:
    """Tokens upwards, bytes to the right, one sign for each setting."""

    tried: Sequence[Mapping[str, Any]]
    own: Mapping[str, Any]
    best: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, min(WIDTH, options.max_width - MARGIN))
        yield Text("\n".join(self._lines(width)), no_wrap=True)

    def _lines(self, width: int) -> Iterator[str]:
        reads = [trial["processed"] for trial in self.tried]
        low, high = min(reads), max(reads)
        grid, signs = self._grid(width)
        for number, row in enumerate(grid):
            label = {0: f"{high:,}", HEIGHT - 1: f"{low:,}"}.get(number, "")
            yield f"{label:>{MARGIN - 2}} |{''.join(row)}"
        yield f"{'prefill':>{MARGIN - 2}} +{'-' * width}"
        least, most = map(mib, self._ends())
        ends = f"{least} MiB held"
        yield f"{'':>{MARGIN}}{ends}{most:>{max(len(most) + 1, width - len(ends))}}"
        legend = [f"{sign} {words}" for sign, words in signs.items()]
        whole = "   ".join(legend)
        for line in [whole] if len(whole) <= width else legend:
            yield f"{'':>{MARGIN}}{line}"

    def _ends(self) -> tuple[int, int]:
        bytes_held = [held(trial) for trial in self.tried]
        return min(bytes_held), max(bytes_held)

    def _grid(self, width: int) -> tuple[list[list[str]], Mapping[str, str]]:
        """The signs in the grid, and the legend of those visible."""
        low = min(trial["processed"] for trial in self.tried)
        high = max(trial["processed"] for trial in self.tried)
        left, right = self._ends()

        def place(each: Mapping[str, Any]) -> tuple[int, int]:
            y = (each["processed"] - low) * (HEIGHT - 1) // max(1, high - low)
            return HEIGHT - 1 - y, (held(each) - left) * (width - 1) // max(1, right - left)

        marks = dict.fromkeys(map(place, self.tried), TRIED)
        marks |= {place(self.own): NOW, place(self.best): BEST}
        if place(self.own) == place(self.best):
            marks[place(self.own)] = BOTH
        grid = [[marks.get((y, x), " ") for x in range(width)] for y in range(HEIGHT)]
        return grid, {sign: words for sign, words in SIGNS.items() if sign in marks.values()}


def verdict(
    own: Mapping[str, Any], best: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
) -> str:
    """The tokens saved by the recommended settings, and their memory."""
    saved, cost = own["processed"] - best["processed"], held(best) - held(own)
    count = f"the {counted(len(tried), 'setting')} tried"
    if not best["changes"]:
        return f"The settings as they are: none of {count} is proven to save tokens."
    if best["failed"] < own["failed"]:
        answered = counted(own["failed"] - best["failed"], "request")
        return f"{answered} more would be answered, with {_cost(cost)}: {words_of(best)}."
    part = 100 * saved / max(1, own["processed"])
    return (
        f"Best of {count}: {words_of(best)} prefills {part:.0f} % fewer tokens "
        f"({best['processed']:,} instead of {own['processed']:,}), with {_cost(cost)}."
    )


def _cost(size: int) -> str:
    if not size:
        return "no more memory"
    number = mib(abs(size)) if mib(abs(size)) != mib(0) else f"under {mib(MIB // 10)}"
    return f"{number} MiB {'more' if size > 0 else 'less'}"
