"""Writes how much longer four times as many requests take: traces by server, and files of `why`.

    python -m benchmarks.growth traces traces.json
    python docs/make_replays.py traces.json

Without a file it writes the table again from the numbers that are kept beside the page.
"""

import sys
from typing import Final

from measured import Measured

from cachesim.typed import Json


def written(told: Json) -> str:
    """The table, and which replays take longer than the bound."""
    few, many = told["requests"]
    lines = [
        f"| replay | {few:,} requests, s | {many:,} requests, s | times |",
        "|---|--:|--:|--:|",
    ]
    for server, (short, long) in told["seconds"].items():
        lines.append(f"| {server} | {short:.1f} | {long:.1f} | {long / short:.1f} |")
    over = [name for name, (short, long) in told["seconds"].items() if long / short > told["most"]]
    verdict = f"Above {told['most']:g} times: {', '.join(over)}." if over else ""
    return "\n".join((*lines, "", f"Beside a load of {told['load']:g}. {verdict}".rstrip()))


PAGE: Final = Measured(name="replays", maker="make_replays.py", written=written)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
