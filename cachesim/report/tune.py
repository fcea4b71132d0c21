"""A sweep of settings: what they prefill and hold, the best of them, and a plot."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MIB: Final = 1 << 20
WIDTH, HEIGHT = 60, 12
"""Columns and lines of the plot."""


SMALL_NETWORK: Final = (
    "The MiB are those of a small network with layers of the same kinds; `--gguf FILE` takes "
    "those of your model."
)


def tune_page(found: Mapping[str, Any]) -> RenderableType:
    """The Pareto front, the plot, what is recommended and what it costs."""
    own, best = found["own"], found["recommended"]
    parts: list[RenderableType] = [
        Text(
            f"{found['source']}: {found['requests']:,} requests played with "
            f"{len(found['tried'])} settings",
            style="name",
        ),
        Text(),
        _table(found["front"], own, best),
        Text(),
        *_drawn(found["tried"], own, best),
        Text(_verdict(own, best, found["tried"])),
        Text(),
        Text(found["command"], style="name"),
    ]
    if found["small_network"]:
        parts += [Text(), Text(SMALL_NETWORK, style="quiet")]
    if found["assumed"]:
        parts += [Text(), Text(f"assumed: {', '.join(found['assumed'])}", style="quiet")]
    return Group(*parts)


def words_of(changes: Mapping[str, Any]) -> str:
    """What differs from the user's settings."""
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or "as it is"


def _table(
    front: Sequence[Mapping[str, Any]], own: Mapping[str, Any], best: Mapping[str, Any]
) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("settings", overflow="fold")
    for head in ("prefilled", "than now", "MiB held", "than now"):
        table.add_column(head, justify="right")
    rows = list(front)
    if own not in rows:
        rows.append(own)
    for each in rows:
        mark = "  *" if each == best else ""
        table.add_row(
            words_of(each["changes"]) + mark,
            f"{each['processed']:,}",
            _more(each["processed"] - own["processed"]),
            f"{held(each) / MIB:,.0f}",
            _more(round((held(each) - held(own)) / MIB)),
        )
    return table


def held(each: Mapping[str, Any]) -> int:
    """Bytes in all."""
    return int(each["peak_bytes"]) + int(each["context_bytes"])


def _more(difference: int) -> str:
    return f"{difference:+,}" if difference else ""


def _drawn(
    tried: Sequence[Mapping[str, Any]], own: Mapping[str, Any], best: Mapping[str, Any]
) -> list[Text]:
    """The plot, where settings differ in tokens; one line of signs would show nothing."""
    differ = len({each["processed"] for each in tried}) > 1
    return [Text(_plot(tried, own, best)), Text()] if differ else []


def _plot(
    tried: Sequence[Mapping[str, Any]], own: Mapping[str, Any], best: Mapping[str, Any]
) -> str:
    """Tokens upwards, bytes to the right: `.` a setting, `o` the user's own, `*` the best."""
    reads = [each["processed"] for each in tried]
    bytes_held = [held(each) for each in tried]
    low, high = min(reads), max(reads)
    left, right = min(bytes_held), max(bytes_held)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(each: Mapping[str, Any], sign: str) -> None:
        x = (held(each) - left) * (WIDTH - 1) // max(1, right - left)
        y = (each["processed"] - low) * (HEIGHT - 1) // max(1, high - low)
        grid[HEIGHT - 1 - y][x] = sign

    for each in tried:
        put(each, ".")
    put(own, "o")
    put(best, "*")
    lines = [f"{high:>12,} |{''.join(grid[0])}"]
    lines += [f"{'':>12} |{''.join(row)}" for row in grid[1:-1]]
    lines.append(f"{low:>12,} |{''.join(grid[-1])}")
    lines.append(f"{'prefilled':>12} +{'-' * WIDTH}")
    ends = f"{left / MIB:,.0f} MiB held"
    lines.append(f"{'':>14}{ends}{f'{right / MIB:,.0f}':>{WIDTH - len(ends)}}")
    lines.append(f"{'':>14}o now   * recommended")
    return "\n".join(lines)


def _verdict(
    own: Mapping[str, Any], best: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
) -> str:
    saved = own["processed"] - best["processed"]
    cost = (held(best) - held(own)) / MIB
    if not best["changes"]:
        return "The settings as they are: none of the settings tried prefills clearly fewer tokens."
    if saved <= 0:
        fewest = min(each["processed"] for each in tried if each["failed"] <= own["failed"])
        clearly = "clearly " if fewest < own["processed"] else ""
        tokens = "The same number of tokens is" if saved == 0 else f"{-saved:,} more tokens are"
        return (
            f"None of the settings tried prefills {clearly}fewer tokens. {tokens} prefilled with "
            f"{-cost:,.0f} MiB less: {words_of(best['changes'])}."
        )
    part = 100 * saved / max(1, own["processed"])
    more = f"{cost:,.0f} MiB more" if cost >= 0 else f"{-cost:,.0f} MiB less"
    return (
        f"{saved:,} fewer tokens are prefilled ({part:.0f} %) for {more}: "
        f"{words_of(best['changes'])}."
    )
