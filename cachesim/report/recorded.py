"""What recorded requests tell, on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cachesim.report.why import count, shown


def dump_page(found: Mapping[str, Any], *, worst: int) -> RenderableType:
    """Totals, what recurs, and the requests that cost most."""
    totals = found["totals"]
    names = ", ".join(found["dump"]["sources"])
    parts: list[RenderableType] = [
        Text(f"{names}: {count(totals['requests'], 'recorded request')}", style="name"),
        Text(
            f"{totals['prompt_tokens']:,} prompt tokens: {totals['cached']:,} reused, "
            f"{totals['processed']:,} processed."
        ),
    ]
    if found["causes"]:
        parts += [Text(), _causes(found["causes"])]
    else:
        parts += [Text("Every request continues an earlier one, or is a new conversation.")]
    ranked = sorted(
        (each for each in found["requests"] if each["parting"] is not None),
        key=lambda each: (-(each["tokens_after"] or 0), each["number"]),
    )
    for each in ranked[:worst]:
        parts += [Text(), recorded_request(each)]
    return Group(*parts)


def _causes(groups: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("tokens", justify="right")
    table.add_column("requests", justify="right")
    table.add_column("what changed in the prompt, and what helps", overflow="fold")
    for each in groups:
        words = Text(each["kind"], style="name")
        words.append(f"\n{each['example']}. {each['advice']}", style="")
        table.add_row(f"{each['tokens']:,}", str(len(each["requests"])), words)
    return table


def recorded_request(each: Mapping[str, Any]) -> RenderableType:
    """One recorded request."""
    head = Text(f"request {each['number']}", style="name")
    head.append(f"  line {each['line']}")
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="quiet", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("prompt", f"{shown(each['prompt_tokens'])} tokens")
    facts.add_row("cached", f"{shown(each['cached'])} tokens")
    if each["continues"] is not None:
        facts.add_row(
            "continues",
            f"request {each['continues']}: {each['equal_characters']:,} of "
            f"{each['characters']:,} characters are equal",
        )
    parting = each["parting"]
    if parting is not None:
        after = each["tokens_after"]
        cost = "" if after is None else f"; about {after:,} tokens after it are reprocessed"
        facts.add_row("parts", f"{parting['sentence']}{cost}")
        facts.add_row("helps", parting["advice"])
    return Group(head, Padding(facts, (0, 0, 0, 2)))
