"""Writes how much longer four times as many requests take: traces by server, and files of `why`.

    python -m benchmarks.growth traces traces.json
    python docs/make_replays.py traces.json

Without a file it writes the table again from the numbers that are kept beside the page.
"""

import sys
from typing import Final

from measured import Measured, hold

from cachesim.typed import Json


def written(told: Json) -> str:
    """The table; a server that takes longer than the bound is an error."""
    few, many = told["requests"]
    lines = [
        f"| replay | {few:,} requests, s | {many:,} requests, s | times |",
        "|---|--:|--:|--:|",
    ]
    for server, (short, long) in told["seconds"].items():
        hold(fact=long / short <= told["most"], what=f"{server} takes {told['most']:g} times")
        lines.append(f"| {server} | {short:.1f} | {long:.1f} | {long / short:.1f} |")
    return "\n".join((*lines, "", f"Beside a load of {told['load']:g}."))


PAGE: Final = Measured(name="replays", maker="make_replays.py", written=written)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
