"""The site builds, every warning an error; `make check` sets up what that needs."""

import importlib.util
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = ("sphinx", "myst_parser", "furo")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the site is NOT built: no {', '.join(MISSING)} here; `make docs`"
)


class Sources(HTMLParser):
    """What a page makes the browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = {"script": "src", "img": "src", "link": "href"}.get(tag)
        self.found += [value for name, value in attrs if name == wanted and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    docs = tmp_path_factory.mktemp("sources") / "docs"  # other workers build it too
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("_generated", "_build"))
    folder = tmp_path_factory.mktemp("site")
    for command in (
        [sys.executable, str(docs / "generate.py")],
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", docs, folder],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        assert 0 == done.returncode, done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert 9 == len(list((site / "_generated" / "lessons").glob("*.html")))


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        sources = Sources()
        sources.feed(path.read_text(encoding="utf-8"))
        assert [each for each in sources.found if re.match(r"https?:|//", each)] == [], path


def test_the_pages_hold_the_numbers_of_the_lessons(site: Path) -> None:
    page = (site / "_generated" / "lessons" / "5-checkpoints.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)

    assert "abcdefxyz          9       1  diverged  1[0..0] 5[4..4]" in text
