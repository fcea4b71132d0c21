"""The gallery: a card for each shipped scenario, drawn from a run in ring arithmetic."""

import re
from collections.abc import Sequence
from html import escape
from typing import Final
from urllib.parse import urlencode

from cachesim.engines import FAMILIES
from cachesim.play import run
from cachesim.play.result import Step
from cachesim.report.html_document import with_flags
from cachesim.scenario import Scenario, full_profile, load
from cachesim.scenario.format import Expect, Seen
from cachesim.scenario.former import FORMER
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE, Evidence, label_of, weakest
from cachesim.scenario.shipped import shipped_files
from pages.collected import wheels

KINDS: Final = {
    "stale-state": "Wrong answers and stale states",
    "lost-reuse": "Lost reuse",
    "limits": "Limits",
    "accounting": "Accounting",
    "crash": "Crashes",
}
SHORT: Final[dict[Evidence, str]] = {
    CONFIRMED: "confirmed",
    DERIVED: "from metadata",
    SOURCE: "source only",
}
"""Evidence labels as the page's head explains them."""

ROWS: Final = 6
"""Requests of a card's picture."""
WIDTH: Final = 260
"""Pixels of the longest prompt."""


def page() -> str:
    """Cards, kind by kind."""
    loaded = sorted((load(path) for path in shipped_files()), key=_place)
    played = wheels()
    blocks = []
    for kind, title in KINDS.items():
        cards = [
            card(scenario, played.get(scenario.name, []))
            for scenario in loaded
            if scenario.kind == kind
        ]
        if cards:
            blocks += [f"## {title}", '<div class="cards">\n' + "\n".join(cards) + "\n</div>"]
    return "\n\n".join(blocks) + "\n"


def _place(scenario: Scenario) -> tuple[bool, int, str]:
    """Wrong answers that a released engine confirms first, then engine by engine."""
    released = [profile for profile in scenario.engine.profiles if "+" not in profile]
    profiles = [full_profile(scenario.engine.name, each) for each in released]
    labels = {
        label_of(scenario, profile, step) for profile in profiles for step in scenario.step_names
    }
    return CONFIRMED not in labels, list(FAMILIES).index(scenario.engine.name), scenario.name


def card(scenario: Scenario, played: Sequence[dict[str, str]]) -> str:
    """A picture, the symptom, engine and releases, the evidence label, and links."""
    name, shows = scenario.name, scenario.shows
    bad, good = first_bad_and_good(scenario)
    done = run(scenario, full_profile(scenario.engine.name, bad), arithmetic="ring")
    shown = next((step for step in done.steps if step.name == shows.before.step), done.steps[-1])
    words = [code(bad), *([f"not {code(good)}"] if good else [])]
    label = weakest(step.evidence for step in done.steps)
    facts = [", ".join(words), _outcome(shown), *([SHORT[label]] if label else [])]
    if not label and not any(each["result"] == "agrees" for each in played):
        facts.append("simulated only")
    address = escape(playground_link(scenario))
    links = [f'<a class="try" href="{address}" aria-label="{name} in the playground"></a>']
    links += [thread(each) for each in (scenario.source.issue, *scenario.source.also) if each]
    return (
        f'<div class="card" id="{name}">{_anchor(name)}<a href="reports/{name}.html" tabindex="-1"'
        f' aria-hidden="true">{bars(done.steps, shown)}</a>'
        f"<p><strong>{with_flags(escape(plain_text(shows.symptom or scenario.about)))}</strong></p>"
        f"<p>{'<br>'.join(facts)}</p>"
        f'<p><a href="reports/{name}.html"><code>{escape(scenario.name)}</code></a></p>'
        f"<p>{' '.join(links)}</p></div>"
    )


def _anchor(name: str) -> str:
    """Places of a card by former names of its scenario: old links still lead to it."""
    return "".join(f'<a id="{was}"></a>' for was, now in FORMER.items() if now == name)


def _outcome(step: Step) -> str:
    """The numbers of the step that shows the report."""
    if step.error:
        return f"ends: {code(step.error)}"
    if step.answer == "diverged":
        return "<b>wrong answer</b>"
    return f"{step.cached or 0:,}/{step.prompt_tokens:,} cached"


SEEN: Final = 2
"""Pixels of the smallest loss: one token of thousands is drawn too."""


def bars(steps: Sequence[Step], shown: Step) -> str:
    """A bar for each of the last requests up to the one that shows the report."""
    asked = [step for step in steps[: steps.index(shown) + 1] if step.prompt_tokens][-ROWS:]
    longest = max((step.prompt_tokens for step in asked), default=1)
    rows = []
    for row, step in enumerate(asked):
        top, whole = 18 * row, _wide(step.prompt_tokens, longest)
        kept, gone = _wide(step.cached or 0, longest), _wide(step.missed, longest)
        gone = max(gone, SEEN) if step.missed else 0
        at = min(kept, whole - gone)
        for look, x, width in (("new", 0, whole), ("kept", 0, kept), ("again", at, gone)):
            if width:
                rows.append(f'<rect class="{look}" x="{x}" y="{top}" width="{width}" height="14"/>')
        if step.answer == "diverged" or step.error:
            rows.append(
                f'<rect class="bad" x="1" y="{top + 1}" width="{max(whole, 4) - 2}" height="12"/>'
            )
    high = 18 * max(len(asked), 1)
    size = f'viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}"'
    return f'<svg class="bar" {size}>{"".join(rows)}</svg>'


def _wide(part: int, whole: int) -> int:
    return min(WIDTH, round(WIDTH * part / whole))


def code(text: str) -> str:
    """A name in a card."""
    return f"<code>{escape(text)}</code>" if text else ""


def plain_text(text: str) -> str:
    """One line without Markdown."""
    return " ".join(text.replace("`", "").split())


def thread(issue: str) -> str:
    """`owner/repository#1` as a link to the thread; other sources as they are."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", issue)
    if found is None:
        return escape(issue)
    return (
        f'<a href="https://github.com/{found[1]}/issues/{found[2]}">{issue.partition("/")[2]}</a>'
    )


def playground_link(scenario: Scenario) -> str:
    """Address of the playground with a shipped scenario, on the release that shows its report."""
    bad, _ = first_bad_and_good(scenario)
    return f"playground/index.html#{urlencode({'scenario': scenario.name, 'profile': bad})}"


def from_report(scenario: Scenario) -> str:
    """The line of links at the head of a report."""
    links = [f'<a href="../gallery.html#{scenario.name}">gallery</a>']
    links += [f'<a href="../{escape(playground_link(scenario))}">playground</a>']
    links += [thread(each) for each in (scenario.source.issue, *scenario.source.also) if each]
    return f'<p class="from">{" · ".join(links)}</p>'


def first_bad_and_good(scenario: Scenario) -> tuple[str, str]:
    """The first profile of the file with the defect, and the first one without.

    A profile with the same expectation of the step shows it too; profiles are listed oldest first.
    """
    before, after = scenario.shows.before, scenario.shows.after
    step = scenario.step_names.index(before.step)
    bad = [profile for profile in scenario.engine.profiles if _shows(scenario, profile, step)]
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
        expect
        for expect in scenario.expect
        if expect.profile is None or full_profile(scenario.engine.name, expect.profile) == wanted
    ]
    asked = [each for each in ("cached", "answer", "error") if getattr(before, each) is not None]
    return bool(mine) and bool(asked) and all(_is(mine, each, before, step) for each in asked)


def _is(mine: Sequence[Expect], key: str, before: Seen, step: int) -> bool:
    for expect in mine:
        said_of_all = getattr(expect, key)
        if said_of_all is not None:
            one = said_of_all if isinstance(said_of_all, str) else said_of_all[step]
            return bool(one == getattr(before, key))
    return False
