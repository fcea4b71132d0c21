"""A report of recorded requests."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.report.document import SENTENCES, FittingTable, Heading, facts
from cachesim.report.requests import answer, request_lines
from cachesim.report.why import shown


def dump_report(found: Mapping[str, Any], *, worst: int) -> list[RenderableType]:
    """Totals, recurring causes, other servers, and the most expensive requests."""
    totals = found["totals"]
    names = ", ".join(found["dump"]["sources"])
    parts: list[RenderableType] = [
        *answer(found),
        Text(),
        Heading(f"{names}: {counted(totals['requests'], 'recorded request')}"),
        Text(totals_line(totals)),
    ]
    if found["server"] is not None:
        server = found["server"]
        line = (
            f"Replayed on {server['profile']} ({server['profile_known']}) with a {server['model']} "
            f"model ({server['model_known']})."
        )
        parts.append(
            Text(f"{line} It ended early: {server['problem']}" if server["problem"] else line)
        )
        if totals["reported"]["prompt_tokens"] < totals["answered"]:
            parts.append(Text(ESTIMATED))
    if found["causes"]:
        parts += [Text(), _causes(found["causes"])]
    else:
        parts.append(Text("Every request continues an earlier one, or is a new conversation."))
    if found["what_if"]:
        parts += [Text(), _elsewhere(found["what_if"])]
    ranked = sorted(
        (
            request
            for request in found["requests"]
            if request["parting"] is not None or request["again"]
        ),
        key=lambda request: (-(request["again"] or 0), request["number"]),
    )
    if found["requests"]:
        parts += [Text(), *request_lines(found["requests"])]
    for request in ranked[:worst]:
        parts += [Text(), recorded_request(request)]
    return parts


ESTIMATED: Final = (
    "Where an answer reports no prompt tokens, the replay takes a length that is estimated from "
    "the characters."
)


def totals_line(totals: Mapping[str, Any]) -> str:
    """Prompt tokens of all requests by outcome, as far as answers report them."""
    answered, reported = totals["answered"], totals["reported"]
    prompts, cached, processed = (reported[key] for key in ("prompt_tokens", "cached", "processed"))
    if not answered:
        return "No request was answered."
    reused, read = f"{shown(totals['cached'])} cached", f"{shown(totals['processed'])} prefilled"
    again = f"{shown(totals['again'])} of these again."
    whole = f"{shown(totals['prompt_tokens'])} prompt tokens"
    if prompts == cached == processed == answered:
        rest = totals["prompt_tokens"] - totals["cached"] - totals["processed"]
        unknown = f", {rest:,} unknown" if rest > 0 else ""  # of prompts whose client left
        return f"{whole}: {reused}, {read}{unknown}, {again}"
    if not prompts and not cached and not processed:
        return "Prompt, cached and prefilled tokens: unknown, no answer reports them."
    first = f"{whole} in {prompts} of {answered} answered requests."
    if not prompts:
        first = "Prompt tokens: unknown, no answer reports them."
    elif prompts == answered:
        first = f"{whole}."
    if not cached and not processed:
        return f"{first} Cached and prefilled: unknown, no answer reports cached tokens."
    if cached == processed:
        return f"{first} In {cached} of {answered} answered requests: {reused}, {read}, {again}"
    some = f"{reused} in {cached} of {answered} answered requests" if cached else "Cached: unknown"
    return f"{first} {some}; {read} in {processed} of {answered}."


def tokens_of(count: int | None) -> str:
    """A number of tokens, or `unknown`."""
    return "unknown" if count is None else counted(count, "token")


def _causes(groups: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = FittingTable()
    table.add_column("tokens", justify="right")
    table.add_column("requests", justify="right")
    table.add_column("by", no_wrap=True)
    table.add_column("what happened, and what helps", overflow="fold", min_width=SENTENCES)
    for group in groups:
        words = Text(group["kind"], style="name")
        words.append(f"\n{group['example']}. {group['advice']}".rstrip(), style="")
        table.add_row(shown(group["tokens"]), str(len(group["requests"])), group["by"], words)
    return table


def _elsewhere(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = FittingTable()
    table.add_column("the same requests on", no_wrap=True)
    for name in ("prefilled", "cached", "hits"):
        table.add_column(name, justify="right")
    table.add_column("", overflow="fold")
    for row in rows:
        numbers = (row[key] for key in ("processed", "cached", "hits"))
        table.add_row(row["name"], *map(shown, numbers), row["problem"])
    return table


def recorded_request(each: Mapping[str, Any]) -> RenderableType:
    """A recorded request."""
    head = Text(f"request {each['number']}", style="name")
    head.append(f"  line {each['line']}")
    table = facts(gap=2)
    table.add_row("prompt", tokens_of(each["prompt_tokens"]))
    table.add_row("cached", tokens_of(each["cached"]))
    if each["continues"] is not None:
        table.add_row(
            "continues",
            f"request {each['continues']}: {each['equal_characters']:,} of "
            f"{each['characters']:,} characters are equal",
        )
    parting = each["parting"]
    if parting is not None:
        after = each["tokens_after"]
        about = "" if each["known"]["tokens_after"] == "computed" else "about "
        known = "follow it" if each["cached"] is None else "after it are prefilled"
        cost = "" if after is None else f"; {about}{after:,} tokens {known}"
        table.add_row("parts", f"{parting['sentence']}{cost}")
        for line in parting["lines"]:
            table.add_row("", line)
        table.add_row("helps", parting["advice"])
    for loss in each["losses"]:
        table.add_row("rule", f"{loss['sentence']}: {loss['from']:,} to {loss['to']:,} tokens")
    return Group(head, Padding(table, (0, 0, 0, 2)))
