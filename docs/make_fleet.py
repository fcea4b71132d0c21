"""Writes the page of chats and agents on a fleet from what a sweep found.

    cachesim sweep benchmarks/fleet.toml --traces FOLDER --jobs 1 --format json > rows.json
    python docs/make_fleet.py rows.json SECONDS MEBIBYTES

SECONDS of processor time and MEBIBYTES at most, as `/usr/bin/time -v` prints them. Without
arguments it writes the page again from the numbers that are kept beside it.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from measured import Measured, hold

from cachesim.report.charts import STYLE, stacked_bars

Row = Mapping[str, Any]

NAMES: Final = {"conversation": "chats", "made:agents": "agents"}
TOGETHER: Final = {"sticky", "cache-aware", "gateway"}
"""Routers that keep a conversation where it is."""


def kept(row: Row) -> dict[str, Any]:
    """The page's values of a row."""
    fleet = row.get("fleet") or {}
    taken = {each: row[each] for each in ("trace", "profile", "prompt_tokens", "rate")}
    return taken | {each: fleet.get(each) for each in ("router", "elsewhere", "spread")}


def of_trace(told: Row, begins: str, *, router: bool = True) -> list[Row]:
    """The fleets of a trace, or its bound."""
    rows = [row for row in told["rows"] if row["trace"].startswith(begins)]
    return [row for row in rows if bool(row["router"]) == router]


def table(told: Row) -> Iterator[str]:
    """A line for each router, a column for each server and trace."""
    groups = {name: of_trace(told, begins) for begins, name in NAMES.items()}
    servers = list(dict.fromkeys(row["profile"] for row in groups["chats"]))
    heads = [f"{name}, {server}" for name in groups for server in servers]
    yield f"| router | {' | '.join(heads)} |"
    yield f"|---|{'--:|' * len(heads)}"
    for router in dict.fromkeys(row["router"] for row in groups["chats"]):
        cells = [_cell(row) for rows in groups.values() for row in rows if row["router"] == router]
        yield f"| `{router}` | {' | '.join(cells)} |"


def _cell(row: Row) -> str:
    more = "" if row["elsewhere"] is None else f", {row['elsewhere']:,}"
    return f"{100 * row['rate']:.1f} %{more}"


def sentences(told: Row) -> Iterator[str]:
    """The page's conclusions; one that the rows contradict raises."""
    bounds = [of_trace(told, begins, router=False)[0]["rate"] for begins in NAMES]
    yield (
        "Reused share of the prompts, and tokens computed again though another replica held them "
        "(of mlx-lm not known). An infinite cache reuses "
        f"{100 * bounds[0]:.1f} % and {100 * bounds[1]:.1f} %."
    )
    agents = of_trace(told, "made:agents")
    together = [row for row in agents if row["router"] in TOGETHER]
    apart = [row for row in agents if row["router"] not in TOGETHER]
    hold(
        fact=min(row["rate"] for row in together) > max(row["rate"] for row in apart) + 0.1,
        what="conversations that stay together reuse more",
    )
    hold(fact=min(row["spread"] for row in together) > 2, what="the load is uneven")
    yield (
        f"Routers that keep an agent's conversation together reuse {_span(together, 'rate', 100)} "
        f"%, the others {_span(apart, 'rate', 100)} %; their busiest replica computes "
        f"{_span(together, 'spread', 1)} times the mean, that of the others "
        f"{_span(apart, 'spread', 1)}."
    )
    yield (
        f"{len(told['rows'])} cells took {told['seconds'] / 60:.0f} minutes of one processor and "
        f"{told['mebibytes']:.0f} MiB at most."
    )


def _span(rows: Sequence[Row], field: str, times: int) -> str:
    low, high = (pick(row[field] for row in rows) * times for pick in (min, max))
    return f"{low:.1f} to {high:.1f}"


def picture(told: Row) -> str:
    """Percent of the prompts, for each trace."""
    drawn = []
    for begins, name in NAMES.items():
        bars = {}
        for row in of_trace(told, begins):
            bar = f"{name}, {row['profile'].split('@')[0]}, {row['router']}"
            bar += ", held elsewhere: not known" if row["elsewhere"] is None else ""
            bars[bar] = {"reused": 100 * row["rate"]}
            if row["elsewhere"] is not None:
                bars[bar]["held elsewhere"] = 100 * row["elsewhere"] / row["prompt_tokens"]
        title = f"Percent of the {name}' prompts: reused, and held by another replica"
        drawn.append(stacked_bars(bars, title=title))
    return f"<style>{STYLE}</style>\n" + "\n".join(drawn) + "\n"


def written(told: Row) -> str:
    """The part of the page that is written here."""
    first, *others = sentences(told)
    return "\n".join([first, "", *table(told), "", *others])


PAGE: Final = Measured(name="fleet", maker="make_fleet.py", written=written, picture=picture)


def main(words: Sequence[str]) -> None:
    """Keep the numbers of a sweep, if one is given, and draw."""
    if not words:
        PAGE.draw()
        return
    found = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    rows = found if isinstance(found, list) else found["rows"]
    seconds, mebibytes = map(float, words[1:])
    PAGE.keep({"seconds": seconds, "mebibytes": mebibytes, "rows": [*map(kept, rows)]})


if __name__ == "__main__":
    main(sys.argv[1:])
