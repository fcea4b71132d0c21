"""The words of the site, counted from its sources: the built site is a matter of minutes.

Pages are rendered by Markdown-it without Sphinx. Of a gallery's card the run is left out: what it
adds to the card are numbers, which a scenario's expectations stand for.
"""

import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import generate
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pages import gallery
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from cachesim.engines.family import Profile
from cachesim.scenario import Scenario
from cachesim.scenario.labels import label_of

DOCS: Final = Path(generate.__file__).parent
LIMIT: Final = 80_000
LANGUAGES: Final = ("python", "py", "toml", "yaml", "sh", "console")
BUILT_LATER: Final = ("playground/", "reports/")
"""Folders that `make docs` fills after the site; their pages have checks of their own."""


class Words(HTMLParser):
    """Count of the words in the text of a page; pictures and scripts have none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.count = 0
        self.feed(text)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag in {"article", "script", "style", "svg"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[-1]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and {"article"} == set(self._open):
            self.count += len(data.split())


def words_of_site(site: Path) -> int:
    names = [(path, path.relative_to(site).as_posix()) for path in site.rglob("*.html")]
    pages = [path for path, name in names if not name.startswith(BUILT_LATER)]
    return sum(Words(path.read_text(encoding="utf-8")).count for path in pages)


def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Every source of a page by its name; generated ones are written now."""
    monkeypatch.setattr(gallery, "run", expected)
    written = {name: write() for name, write in {**generate.PAGES, **generate.PARTS}.items()}
    left_out = re.findall(r'"([^"\n]+\.md)"', (DOCS / "conf.py").read_text("utf-8"))
    known = {f"_generated/{name}": text for name, text in written.items()}
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS).as_posix()
        if name not in left_out and not name.startswith(("_generated/", "_build/")):
            known[name] = path.read_text("utf-8").partition("## Former names")[0]
    return known


def expected(scenario: Scenario, profile: Profile, **_: Any) -> Any:
    """A run without numbers, in the form that a card reads."""
    seen = scenario.shows.before
    bad = seen.answer == "diverged" or bool(seen.error)
    label = label_of(scenario, profile, seen.step)
    step = SimpleNamespace(
        name=seen.step,
        prompt_tokens=1,
        cached=1,
        lost=0,
        answer=seen.answer,
        error=seen.error,
        evidence=label if bad else None,
    )
    return SimpleNamespace(steps=[step])


def rendered(name: str, known: dict[str, str]) -> str:
    """A page as HTML, with what Sphinx adds to it: a sign to link to, after each heading."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.add_render_rule("fence", lambda _, tokens, at, *__: "".join(_fence(tokens[at])))

    def _fence(token: Token) -> Iterator[str]:
        kind, _, argument = token.info.partition(" ")
        if kind == "{include}":
            yield known[argument]
        elif kind == "{raw}":
            file = re.match(r":file: (.+)", token.content)
            yield ((DOCS / name).parent / file[1]).read_text("utf-8") if file else token.content
        elif kind == "{toctree}" and ":hidden:" not in token.content:
            for each in re.findall(r"^\w[\w/.-]*$", token.content, re.MULTILINE):
                yield f"<li>{escape(known[f'{_beside(name, each)}.md'].splitlines()[0][2:])}</li>"
        elif kind in LANGUAGES:  # each coloured word counts
            yield highlight(token.content, get_lexer_by_name(kind), HtmlFormatter())
        elif not kind.startswith("{"):
            yield f"<pre>{escape(token.content)}</pre>"

    html = markdown.render(known[name])
    return f"<article>{re.sub(r'</h[1-6]>', ' ¶', html)}</article>"


def _beside(name: str, other: str) -> str:
    return (Path(name).parent / other).as_posix()


def words_of_sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    known = sources(monkeypatch)
    return {name: Words(rendered(name, known)).count for name in known if name.endswith(".md")}


def test_the_sources_have_at_most_eighty_thousand_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(words_of_sources(monkeypatch).values()) <= LIMIT


def test_the_built_site_has_at_most_eighty_thousand_words(site: Path) -> None:
    assert words_of_site(site) <= LIMIT


def test_the_words_of_the_sources_are_those_of_the_built_site(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = words_of_site(site)

    assert abs(built - sum(words_of_sources(monkeypatch).values())) <= built / 500
