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
from cachesim.scenario.result import Run

LIMIT: Final = 500_000
"""Bytes of a whole page."""

SCRIPTS: Final = (
    "data.js",
    "words.js",
    "tokens.js",
    "memory.js",
    "panels.js",
    "align.js",
    "cursor.js",
    "start.js",
)


def page(runs: Sequence[Run], *, limit: int = LIMIT) -> str:
    """One page of all runs; what is too much for the limit is told less often."""
    plain = "\n".join(fragment(run, styled=False) for run in runs)
    for each in thinner([run.to_json() for run in runs]):
        text = _filled(each, plain)
        if len(text.encode()) <= limit:
            return text
    msg = f"the report would be larger than {limit // 1000} kB: name fewer scenarios or profiles"
    raise InputError(msg)


def _filled(runs: Sequence[Mapping[str, Any]], plain: str) -> str:
    """The template with its holes filled; the data comes last, for it may look like a hole."""
    scripts = "\n".join(_asset(name) for name in SCRIPTS)
    text = _asset("page.html").replace("/*style*/", _asset("style.css"), 1)
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
