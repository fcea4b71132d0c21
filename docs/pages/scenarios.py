"""The reported defects that are shipped as scenarios, from their files."""

from collections.abc import Iterator

from cachesim.engines import FAMILIES
from cachesim.scenario import Scenario, load
from cachesim.scenario.shipped import shipped_files
from pages.tables import code, plain, table

INTRODUCTION = """\
# Reported defects

Each of these is a report as a file that runs: `cachesim run NAME`. Where an answer is named, the
profile gives one that is not a cold run's; elsewhere the defect costs reuse. Cached tokens are
given step by step. The numbers are checked by the tests.
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
            yield table(("scenario", "what happens", "expected"), rows)


def _row(scenario: Scenario) -> tuple[str, str, str]:
    issue = linked_issue(scenario.source.issue)
    name = f"{code(scenario.name)} {issue}".strip()
    return name, plain(scenario.about), "; ".join(_expected(scenario))


def linked_issue(issue: str) -> str:
    """`owner/repository#1` as a link; other sources as they are."""
    repository, _, number = issue.partition("#")
    if repository in {each.repository for each in FAMILIES.values()} and number.isdigit():
        return f"[#{number}](https://github.com/{repository}/issues/{number})"
    return plain(issue)


def _expected(scenario: Scenario) -> Iterator[str]:
    for each in scenario.expect:
        answers = (each.answer,) if isinstance(each.answer, str) else each.answer or ()
        wrong = [word for word in dict.fromkeys(answers) if word not in {None, "none", "same"}]
        words = [] if each.cached is None else [f"cached {', '.join(map(_count, each.cached))}"]
        words += [f"**{word}**" for word in wrong]
        if words:
            yield f"{code(each.profile or 'all')}: {', '.join(words)}"


def _count(cached: object) -> str:
    return str(cached) if isinstance(cached, int) else "-"
