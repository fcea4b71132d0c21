"""Writes a report of every shipped scenario into a built site: `docs/make_gallery.py FOLDER`.

Each is the page of `cachesim run NAME --report` with links to the gallery, the thread and the
playground. What was written of the same package and scenario is kept: only what changed is played.
"""

import hashlib
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

from pages.gallery import from_report

import cachesim
from cachesim.cli.jobs import Job
from cachesim.cli.run import LONG, seconds_of
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play import run
from cachesim.play.statements import side_by_side
from cachesim.report.html import page_of_most
from cachesim.scenario import full_profile, load
from cachesim.scenario.former import FORMER
from cachesim.scenario.labels import table as labels_file
from cachesim.scenario.shipped import shipped_files

Writer: TypeAlias = Callable[[Path, Path, str], None]

MARK: Final = "<!-- cachesim-source {} -->"
HEAD: Final = '<header class="top">'
"""The line of a report below which its links to the gallery and the thread are put."""
MOVED: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{now}</title>'
    '<link rel="canonical" href="{now}.html">'
    '<meta http-equiv="refresh" content="0; url={now}.html">'
    '<p>This report is now at <a href="{now}.html">{now}</a>.</p></html>\n'
)
"""The page at a report's former address, which leads to the one of today."""


def main(site: Path, *, write: Writer | None = None, jobs: int | None = None) -> None:
    """Write the folder `reports` of a site, on all cores; on none but this one if `jobs` is 0."""
    write = write or write_report
    folder = site / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    files = shipped_files()
    names = {file.stem for file in files}
    former = {name: now for name, now in FORMER.items() if now in names}
    for stale in {path.stem for path in folder.glob("*.html")} - names - former.keys():
        (folder / f"{stale}.html").unlink()
    for name, now in former.items():
        (folder / f"{name}.html").write_text(MOVED.format(now=now), encoding="utf-8")
    package = _package()
    marks = [MARK.format(_digest(package, file.read_bytes())) for file in files]
    wanted = [
        (file, folder / f"{file.stem}.html", mark)
        for file, mark in zip(files, marks, strict=True)
        if not _is_written(folder / f"{file.stem}.html", mark)
    ]
    if jobs == 0:
        for each in wanted:
            write(*each)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in [pool.submit(write, *each) for each in wanted]:
            done.result()


def _package() -> bytes:
    """The sources that make every report."""
    root = Path(cachesim.__file__).parent
    parts = sorted(path for path in root.rglob("*") if path.suffix in {".py", ".js", ".css"})
    parts.append(Path(__file__).parent / "pages" / "gallery.py")
    labels = [path.read_bytes() for path in (labels_file(),) if path is not None]
    return _digest(*(part.read_bytes() for part in parts), *labels).encode()


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _is_written(path: Path, mark: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8").endswith(mark)


def write_report(scenario: Path, path: Path, mark: str) -> None:
    """One report; a scenario that is too large for a page is told with fewer states.

    One that would take long in float arithmetic is played in ring: ten minutes are half a minute.
    """
    told = load(scenario)
    profiles = [full_profile(told.engine.name, profile) for profile in told.engine.profiles]
    long = (
        seconds_of([Job(source="", scenario=told, profile=profile) for profile in profiles]) > LONG
    )
    words: ArithmeticName = "ring" if long else "float"
    runs = side_by_side([run(told, profile, arithmetic=words, detail=True) for profile in profiles])
    text = page_of_most(runs).text.replace(HEAD, f"{HEAD}\n{from_report(told)}", 1)
    path.write_text(text + mark, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
