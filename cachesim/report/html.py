"""Runs as one HTML page: a template, a style, scripts and the runs' own JSON, nothing else.

    page/page.html      the frame, with holes for the three below
    page/style.css      light, dark, wide, narrow, printed
    page/*.js           plain scripts, put one after the other
    the data            what `--format json --detail` prints, equal parts written once (`packed`)

Nothing is loaded from anywhere, and the page's own policy forbids it. The scripts put every text
of a scenario into the page as text, never as markup.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final, TypeAlias

from cachesim.errors import InputError
from cachesim.report.chain import chain
from cachesim.report.html_data import packed, thinner
from cachesim.report.html_fragment import fragment
from cachesim.report.picture import positions_of
from cachesim.report.picture_bars import Texts
from cachesim.report.picture_rows import held, request
from cachesim.report.svg import AXIS, STYLE, axis_svg, patterns, row_svg
from cachesim.report.svg_tree import LINE
from cachesim.scenario.result import Run

Part: TypeAlias = Any
"""A part of a state: a dataclass, a mapping, a list, or a plain value."""

LIMIT: Final = 300_000
"""Bytes of a whole page."""

SCRIPTS: Final = (
    "data.js",
    "words.js",
    "tokens.js",
    "picture.js",
    "memory.js",
    "panels.js",
    "align.js",
    "cursor.js",
    "start.js",
)


class TooLargeError(InputError):
    """A page that would pass its limit even without any state; `size` is what it would have."""

    def __init__(self, size: int, limit: int) -> None:
        kilo = limit // 1000
        super().__init__(
            f"the report would be larger than {kilo} kB: name fewer scenarios or profiles"
        )
        self.size = size
        self._limit = limit

    def __reduce__(self) -> tuple[type["TooLargeError"], tuple[int, int]]:
        """A worker hands it to its parent process: made from the numbers, not from the message."""
        return type(self), (self.size, self._limit)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A page, and what had no place on it."""

    text: str
    runs: int  # so many runs are left out
    told: str  # which steps of a run are there, where not all of them are


def page_of_most(runs: Sequence[Run], *, limit: int = LIMIT) -> Fitted:
    """One page of as many runs as fit into the limit; of a single long one its first steps.

    Runs that were not as expected come first, then those that show a wrong answer.
    """
    kept = list(range(len(runs)))
    urgent = sorted(kept, key=lambda i: (runs[i].as_expected, not _is_wrong(runs[i]), i))
    while True:
        try:
            return Fitted(page([runs[i] for i in kept], limit=limit), len(runs) - len(kept), "")
        except TooLargeError as error:
            if len(kept) == 1:
                return _beginning(runs[kept[0]], error, len(runs) - 1, limit)
            fits = int(0.9 * len(kept) * limit / error.size)
            kept = sorted(urgent[: min(max(1, fits), len(kept) - 1)])


def _beginning(run: Run, error: TooLargeError, left_out: int, limit: int) -> Fitted:
    """A page of the first steps of a run, as many as fit."""
    steps = len(run.steps)
    while steps > 1:
        steps = min(steps - 1, max(1, int(0.9 * steps * limit / error.size)))
        try:
            return Fitted(page([run], limit=limit, steps=steps), left_out, _cut_told(run, steps))
        except TooLargeError as again:
            error = again
    raise error


def _cut_told(run: Run, steps: int) -> str:
    others = run.steps[steps:]
    wrong = sum(step.answer == "diverged" for step in others)
    lost = sum(step.reuse == "lost" for step in others)
    told = f"the first {steps} of {len(run.steps)} steps are on this page"
    if all(step.answer is None for step in others):
        return told
    return (
        f"{told}; of the others {wrong or 'none'} with a wrong answer, {lost or 'none'} that lost"
        " tokens"
    )


def _is_wrong(run: Run) -> bool:
    return any(step.answer == "diverged" for step in run.steps)


def page(runs: Sequence[Run], *, limit: int = LIMIT, steps: int | None = None) -> str:
    """One page of all runs; what is too much for the limit is told less often.

    With `steps` only so many of each run are on it, and the page says so.
    """
    plain = "\n".join(fragment(run, styled=False, steps=steps) for run in runs)
    for each in thinner([_entry(run, steps) for run in runs]):
        text = _filled(each, plain)
        size = len(text.encode())
        if size <= limit:
            return text
    raise TooLargeError(size, limit)


def _entry(run: Run, steps: int | None) -> dict[str, Any]:
    shown = run if steps is None else beginning(run, steps)
    entry = shown.to_json() | {"picture": drawn(shown)}
    if steps is not None and steps < len(run.steps):
        entry["cut"] = _cut_told(run, steps)
    return entry


def beginning(run: Run, steps: int) -> Run:
    """The first steps of a run, with the states that they went through."""
    kept = run.steps[:steps]
    if run.detail is None:
        return replace(run, steps=kept)
    known = [step.detail for step in kept if step.detail is not None]
    last = max((n for each in known for n in (each.before, *each.at)), default=-1)
    texts = Texts(run)
    states = tuple(_spelled_out(each, texts, steps) for each in run.detail.states[: last + 1])
    return replace(run, steps=kept, detail=replace(run.detail, states=states))


def drawn(run: Run) -> dict[str, Any]:
    """The rows of every request and of every state, and the walk to what went wrong.

    A row is a list of one text: so equal rows are written once.
    """
    wide = positions_of(run)
    states = () if run.detail is None else run.detail.states
    return {
        "line": LINE,
        "foot": AXIS,
        "axis": axis_svg(wide),
        "requests": [
            [[row_svg(row, wide, "")] for row in request(run, index)]
            for index in range(len(run.steps))
        ],
        "states": [[[row_svg(row, wide, "")] for row in held(run, state)] for state in states],
        "chains": [[asdict(link) for link in chain(run, index)] for index in range(len(run.steps))],
    }


def _spelled_out(value: Part, texts: Texts, steps: int) -> Part:
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(
            value, **{name: _spelled_out(each, texts, steps) for name, each in parts.items()}
        )
    if isinstance(value, dict):
        if "count" in value and value["step"] >= steps:
            return {"tokens": list(texts.tokens(value))}
        return {key: _spelled_out(each, texts, steps) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_spelled_out(each, texts, steps) for each in value)
    return value


def _filled(runs: Sequence[Mapping[str, Any]], plain: str) -> str:
    """The template with its holes filled; the data comes last, for it may look like a hole."""
    scripts = "\n".join(_asset(name) for name in SCRIPTS)
    text = _asset("page.html").replace("/*style*/", STYLE + _asset("style.css"), 1)
    text = text.replace("<!--patterns-->", patterns(""), 1)
    head, tail = text.replace("/*script*/", scripts, 1).split("<!--plain-->", 1)
    before, after = tail.split("/*data*/", 1)
    return f"{head}{plain}{before}{island({'format': 1, 'runs': list(runs)})}{after}"


@cache
def _asset(name: str) -> str:
    return resources.files("cachesim.report").joinpath("page", name).read_text(encoding="utf-8")


def island(document: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element: no character of it can end the element."""
    text = json.dumps(packed(document), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
