"""What the real servers said of the scenarios, from the table of the last night that asked them."""

from collections import Counter

from pages.collected import wheels
from pages.scenarios import linked
from pages.tables import code, plain, table

INTRODUCTION = """\
# The scenarios on the real servers

Every scenario that a real server can be handed was played on the wheels of the releases it names,
and each step's counts, slot and error were compared with the simulator's. `make wheels` plays what
is new or changed since then; `cachesim real ENGINE --scenario NAME` plays one, with answers proven
against cold ones. Profiles with patches have no wheel, nor has ik_llama.cpp.
"""


def page() -> str:
    """Counts, then every line."""
    rows = [each for found in wheels().values() for each in found]
    totals = Counter(each["result"] for each in rows)
    counted = table(
        ("agrees", "differs", "cannot be played"),
        [tuple(str(totals[each]) for each in ("agrees", "differs", "cannot"))],
    )
    lines = [
        (linked(each["scenario"]), code(each["release"]), each["result"], plain(each["why"]))
        for each in rows
    ]
    table_of_all = table(("scenario", "release", "result", "why"), lines)
    return f"{INTRODUCTION}\n\n{counted}\n\n{table_of_all}\n"
