"""The reported defects that are shipped as scenarios, from their files."""

from collections.abc import Iterator

from cachesim.engines import FAMILIES
from cachesim.scenario import Scenario, load
from cachesim.scenario.format import Seen
from cachesim.scenario.shipped import shipped_files
from pages.tables import code, plain, table

INTRODUCTION = """\
# Reported defects

Each of these is a report as a file that runs: `cachesim run NAME`. What its users saw is held
against the run, before and, where some profile cures it, after. A name leads to the whole report.
[Other reports](../out-of-reach.md) have no scenario.
"""

KINDS = {
    "stale-state": "Wrong states",
    "lost-reuse": "Lost reuse",
    "limits": "Limits",
    "accounting": "Accounting",
    "crash": "Crashes",
}


def page() -> str:
    """Every scenario, kind by kind."""
    return "\n\n".join([INTRODUCTION, *_kinds()]) + "\n"


def _kinds() -> Iterator[str]:
    loaded = [load(path) for path in shipped_files()]
    for kind, title in KINDS.items():
        rows = [_row(each) for each in loaded if each.kind == kind]
        if rows:
            yield f"## {title}"
            yield table(("scenario", "reported", "what users see", "before", "after"), rows)


def _row(scenario: Scenario) -> tuple[str, ...]:
    source, shows = scenario.source, scenario.shows
    issues = [linked_issue(each) for each in (source.issue, *source.also) if each]
    reported = " ".join(filter(None, (source.date, ", ".join(issues)))) or "-"
    seen = (_seen(shows.before), _seen(shows.after))
    return linked(scenario.name), reported, plain(shows.symptom), *seen


def linked(name: str) -> str:
    """A scenario's name, which leads to its report in the gallery."""
    return f'<a href="../reports/{name}.html"><code>{name}</code></a>'


def linked_issue(issue: str) -> str:
    """`owner/repository#1` as a link; other sources as they are."""
    repository, _, number = issue.partition("#")
    if repository in {each.repository for each in FAMILIES.values()} and number.isdigit():
        return f"[#{number}](https://github.com/{repository}/issues/{number})"
    return plain(issue)


def _seen(seen: Seen) -> str:
    """One side of what a report shows."""
    if not seen.profile:
        return "-"
    words = [] if seen.cached is None else [f"{seen.cached:,} of {seen.of:,} cached"]
    words += [f"**{seen.answer}**"] if seen.answer not in {None, "same"} else []
    words += [f"`{seen.error}`"] if seen.error else []
    words += [f"checkpoints: {seen.checkpoints}"] if seen.checkpoints is not None else []
    words += [f"parked: {seen.parked}"] if seen.parked is not None else []
    return f"{code(seen.profile)}, {plain(seen.step)}: {', '.join(words)}"
