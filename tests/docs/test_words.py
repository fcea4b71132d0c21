"""The words of the site, counted where `make check` has built it."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Final

LIMIT: Final = 70_000
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


def test_the_built_site_has_at_most_seventy_thousand_words(site: Path) -> None:
    assert words_of_site(site) <= LIMIT
