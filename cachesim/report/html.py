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
from functools import cache
from importlib import resources
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.report.html_data import packed, thinner
from cachesim.report.html_fragment import fragment
from cachesim.report.html_picture import drawn
from cachesim.report.svg import STYLE, patterns
from cachesim.scenario.result import Run

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


def page_of_most(runs: Sequence[Run], *, limit: int = LIMIT) -> tuple[str, int]:
    """One page of as many runs as fit into the limit, and how many were left out.

    Runs that were not as expected come first, then those that show a wrong answer.
    """
    kept = list(range(len(runs)))
    urgent = sorted(kept, key=lambda i: (runs[i].as_expected, not is_wrong(runs[i]), i))
    while True:
        try:
            return page([runs[i] for i in kept], limit=limit), len(runs) - len(kept)
        except TooLargeError as error:
            if len(kept) == 1:
                raise
            fits = int(0.9 * len(kept) * limit / error.size)
            kept = sorted(urgent[: min(max(1, fits), len(kept) - 1)])


def is_wrong(run: Run) -> bool:
    """Whether any step shows a wrong answer."""
    return any(step.answer == "diverged" for step in run.steps)


def page(runs: Sequence[Run], *, limit: int = LIMIT) -> str:
    """One page of all runs; what is too much for the limit is told less often."""
    plain = "\n".join(fragment(run, styled=False) for run in runs)
    for each in thinner([run.to_json() | {"picture": drawn(run)} for run in runs]):
        text = _filled(each, plain)
        size = len(text.encode())
        if size <= limit:
            return text
    raise TooLargeError(size, limit)


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
