"""The reported defects that are shipped as scenarios, from their files."""

from collections.abc import Iterator, Sequence
from typing import Final

from cachesim.engines import FAMILIES
from cachesim.play.session import ABORTED, ENDLESS
from cachesim.scenario import Scenario, full_profile, load
from cachesim.scenario.format import Expect, Seen
from cachesim.scenario.labels import CONFIRMED, label_of
from cachesim.scenario.shipped import shipped_files
from pages.collected import COLLECTIONS, READINGS, Collected, counts, readings, wheels
from pages.tables import code, plain, table

INTRODUCTION = """\
# Reported defects

Each of these is a user's report as a file that runs: `cachesim run NAME`. What its users saw is
compared with the run, before the fix and, where some profile fixes it, after. A name leads to the
whole report, with its picture. [Other reports](../out-of-reach.md) have no scenario. The same
requests were also played on [the real servers](wheels.md). `cachesim list scenarios --symptom
"..."` searches by what you see.

```{raw} html
<p><label>Only with these words: <input class="filter" type="search"
placeholder="reprocessed from the start" size="40"></label> <output class="filtered"></output></p>
```
"""

KINDS = {
    "stale-state": "Wrong states",
    "lost-reuse": "Lost reuse",
    "limits": "Limits",
    "accounting": "Accounting",
    "crash": "Crashes",
}

TITLES: Final = (
    "scenario", "reported", "what users see", "root cause", "first bad", "first good", "before",
    "after", "real server", "second reader",
)  # fmt: skip


def page() -> str:
    """Every scenario, kind by kind."""
    return "\n\n".join([INTRODUCTION, counted(), *_kinds()]) + "\n"


def counted() -> str:
    """How many of the collected reports are shown, and what a second reader found."""
    rows = []
    for name, found in counts().items():
        shown = found.total() - found["none"]
        rows.append(
            (
                COLLECTIONS[name],
                str(found.total()),
                str(shown),
                *(str(found[each]) for each in READINGS),
                str(found["none"]),
            )
        )
    return table(("collected reports", "all", "shown", *READINGS.values(), "without"), rows)


def _kinds() -> Iterator[str]:
    loaded = [load(path) for path in shipped_files()]
    read, played = readings(), wheels()
    for kind, title in KINDS.items():
        rows = [
            _row(each, read.get(each.name, []), played.get(each.name, []))
            for each in loaded
            if each.kind == kind
        ]
        if rows:
            yield f"## {title}"
            yield table(TITLES, rows)


def _row(
    scenario: Scenario, read: Sequence[Collected], played: Sequence[dict[str, str]]
) -> tuple[str, ...]:
    source, shows = scenario.source, scenario.shows
    issues = [linked_issue(each) for each in (source.issue, *source.also) if each]
    reported = " ".join(filter(None, (source.date, ", ".join(issues)))) or "-"
    bad, good = first_bad_and_good(scenario)
    return (
        linked(scenario.name),
        reported,
        plain(shows.symptom),
        plain(scenario.story),
        code(bad),
        code(good) or "-",
        _seen(scenario, shows.before),
        _seen(scenario, shows.after),
        said(played),
        "; ".join(f"{READINGS[each.agrees]}: {plain(each.note)}" for each in read) or "-",
    )


def said(played: Sequence[dict[str, str]]) -> str:
    """What real servers said of a scenario, in a few words."""
    found = []
    for result in ("agrees", "differs"):
        releases = [code(each["release"]) for each in played if each["result"] == result]
        found += [f"{result}: {', '.join(releases)}"] if releases else []
    confirmed = [code(each["release"]) for each in played if each["confirmed"]]
    found += [f"wrong answer {CONFIRMED}: {', '.join(confirmed)}"] if confirmed else []
    return "; ".join(found) or "not played"


def first_bad_and_good(scenario: Scenario) -> tuple[str, str]:
    """The first profile of the file that shows the report, and the one that does not any more.

    A profile with the same expectation of the step shows it too; profiles stand oldest first.
    """
    before, after = scenario.shows.before, scenario.shows.after
    step = scenario.step_names.index(before.step)
    bad = [each for each in scenario.engine.profiles if _shows(scenario, each, step)]
    first = bad[0] if bad else before.profile
    if after.profile and after.step == before.step:
        return first, after.profile
    return first, ""


def _shows(scenario: Scenario, profile: str, step: int) -> bool:
    wanted = full_profile(scenario.engine.name, profile)
    before = scenario.shows.before
    if wanted == full_profile(scenario.engine.name, before.profile):
        return True
    mine = [
        each
        for each in scenario.expect
        if each.profile is None or full_profile(scenario.engine.name, each.profile) == wanted
    ]
    asked = [each for each in ("cached", "answer", "error") if getattr(before, each) is not None]
    return bool(mine) and bool(asked) and all(_is(mine, each, before, step) for each in asked)


def _is(mine: Sequence[Expect], key: str, before: Seen, step: int) -> bool:
    for each in mine:
        said_of_all = getattr(each, key)
        if said_of_all is not None:
            one = said_of_all if isinstance(said_of_all, str) else said_of_all[step]
            return bool(one == getattr(before, key))
    return False


def linked(name: str) -> str:
    """A scenario's name, which leads to its report in the gallery."""
    return f'<a href="../reports/{name}.html"><code>{name}</code></a>'


def linked_issue(issue: str) -> str:
    """`owner/repository#1` as a link; other sources as they are."""
    repository, _, number = issue.partition("#")
    if repository in {each.repository for each in FAMILIES.values()} and number.isdigit():
        return f"[#{number}](https://github.com/{repository}/issues/{number})"
    return plain(issue)


def _seen(scenario: Scenario, seen: Seen) -> str:
    """One side of what a report shows, with the evidence label of a release's wrong answer."""
    if not seen.profile:
        return "-"
    words = [] if seen.cached is None else [f"{seen.cached:,} of {seen.of:,} cached"]
    words += [f"**{seen.answer}**"] if seen.answer not in {None, "same"} else []
    words += [f"`{seen.error}`"] if seen.error else []
    if seen.answer == "diverged" or seen.error in {ABORTED, ENDLESS}:
        profile = full_profile(scenario.engine.name, seen.profile)
        words += filter(None, [label_of(scenario, profile, seen.step)])
    for key in ("processed", "checkpoints", "parked", "drafted", "accepted", "companion"):
        value = getattr(seen, key)
        words += [f"{key}: {value:,}"] if value is not None else []
    for key, what in (("checkpoint_mib", "of checkpoints"), ("parked_mib", "parked")):
        value = getattr(seen, key)
        words += [f"{value:,} MiB {what}"] if value is not None else []
    return f"{code(seen.profile)}, {plain(seen.step)}: {', '.join(words)}"
