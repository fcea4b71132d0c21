"""The site builds, every warning an error; `make check` sets up what that needs."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SITE = "CACHESIM_SITE"
"""An environment variable: a site that was just built, which need not be built once more."""

NEEDED = ("sphinx", "myst_parser", "furo")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the site is NOT built: no {', '.join(MISSING)} here; `make docs`"
)


BUILT_LATER = ("playground/", "reports/")
"""Folders that `make docs` fills after the site; their pages have checks of their own."""


class Page(HTMLParser):
    """What a page makes the browser fetch, where it leads, and the places in it."""

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
    """Every link within the site that leads to no page, or to no place on its page."""
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    if SITE in os.environ:
        return Path(os.environ[SITE])
    docs = tmp_path_factory.mktemp("sources") / "docs"  # other workers build it too
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("_generated", "_build"))
    shutil.copytree(request.getfixturevalue("pages"), docs / "_generated")
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, *words, str(docs), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert 11 == len(list((site / "_generated" / "lessons").glob("*.html")))


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

    assert "abcdefxyz          9       1  diverged  1[0..0] 5[4..4]" in text
