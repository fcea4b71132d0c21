"""What the real servers said of the scenarios, from the table of the last night that asked them."""

from collections import Counter

from pages.collected import wheels
from pages.scenarios import linked
from pages.tables import code, plain, table

INTRODUCTION = """\
# The scenarios on the real servers

Every scenario that a real server can be handed was played on the wheels of the releases it names,
and each step's counts, slot and error were compared with the simulator's. `make wheels` plays what
is new or changed since then; `cachesim real ENGINE --scenario NAME` plays one. Profiles with
patches have no wheel, nor has ik_llama.cpp.

Where the simulator gives a wrong answer, or its server ends, the real answer is compared with a
cold one
of the real engine. `confirmed` lists the steps in which the real engine, too, answers wrongly or
ends. Every report has its evidence label from this table: a wrong answer of a release is *confirmed
on the real engine*, *derived from its runner's metadata* or *source only, not run*. The real
schedulers of vLLM and SGLang run without kernels: they confirm decisions and crashes, no answers.
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
        (
            linked(each["scenario"]),
            code(each["release"]),
            each["result"],
            plain(each["why"]),
            plain(each["confirmed"]),
        )
        for each in rows
    ]
    table_of_all = table(("scenario", "release", "result", "why", "confirmed"), lines)
    return f"{INTRODUCTION}\n\n{counted}\n\n{table_of_all}\n"
