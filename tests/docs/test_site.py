"""The site that `make check` builds: its links, and what its pages fetch."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cachesim.learn import lessons
from tests.docs.test_words import BUILT_LATER


class Page(HTMLParser):
    """A page's fetched resources, links and anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        wanted = {"script": "src", "img": "src", "link": "href"}.get(tag, "")
        self.fetched += [given[wanted]] if wanted in given else []
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        self.places |= {given["id"]} if "id" in given else set()


def dead_links(site: Path) -> Iterator[str]:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            within = goal.relative_to(site).as_posix() if goal.is_relative_to(site) else ""
            if parts.scheme or parts.netloc or within.startswith(BUILT_LATER):
                continue
            place = unquote(parts.fragment)
            if not goal.is_file() or (place and goal in pages and place not in pages[goal].places):
                yield f"{path.relative_to(site)}: {link}"


def test_every_lesson_has_a_page(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert len(lessons()) == len(list((site / "_generated" / "lessons").glob("*.html")))


def test_a_link_to_a_page_has_a_preview(site: Path) -> None:
    for path in (site / "index.html", *(site / "_generated" / "lessons").glob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert re.search(r'property="og:title" content="[^"<]+"', text), path
        assert 'name="description"' in text


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        fetched = Page(path).fetched
        assert [each for each in fetched if re.match(r"https?:|//", each)] == [], path


def test_every_link_leads_to_a_page_and_a_place(site: Path) -> None:
    assert [] == list(dead_links(site))


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html">b</a><a href="c.html">c</a><a id="here" href="#there">d</a>'
        '<a href="b.html#there">e</a><a href="https://example.org/x">f</a><a href="#here">g</a>'
    )
    (tmp_path / "b.html").write_text("<p id='there'>text</p>")

    assert ["a.html: c.html", "a.html: #there"] == list(dead_links(tmp_path))


def test_the_pages_hold_the_numbers_of_the_lessons(site: Path) -> None:
    page = (site / "_generated" / "lessons" / "5-checkpoints.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)

    assert "abcdefxyz          9       1  WRONG     1[0..0] 5[4..4]" in text
