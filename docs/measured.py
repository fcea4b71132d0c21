"""A part of the page of measurements, written from the numbers in `docs/measurements`.

The text of a maker is between two marks of the page; the rest of the page is by hand.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from cachesim.report.charts import BAR_AT, BAR_HIGH, COLOURS, ROW, WIDTH, svg_of
from cachesim.typed import Json

FOLDER: Final = Path(__file__).parent / "measurements"
PAGE: Final = FOLDER.with_suffix(".md")
"""The page that has all measurements."""
END: Final = "<!-- end -->"
COMMITS: Final = FOLDER / "commits.json"
"""The commit at which each measurement was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The files of one measurement, and its maker."""

    name: str
    maker: str
    written: Callable[[Json], str]
    picture: Callable[[Json], str] | None = None

    def numbers(self) -> Json:
        """The last measurement."""
        return json.loads(self._file("json").read_text(encoding="utf-8"))

    def is_current(self) -> bool:
        """True if page and picture are those of the numbers."""
        told = self.numbers()
        drawn = self.picture is None or self._read("html") == self.picture(told)
        return drawn and PAGE.read_text(encoding="utf-8") == self._page(told)

    def write(self, arguments: Sequence[str]) -> None:
        """Write page and picture, and before them the numbers where a file of them is given."""
        if arguments:
            self.keep(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        else:
            self.draw()

    def keep(self, told: Json) -> None:
        """Write the numbers, the page and the picture."""
        self._file("json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        at = ["git", "-C", str(FOLDER), "rev-parse", "--short=8", "HEAD"]
        head = subprocess.run(at, capture_output=True, text=True, check=True).stdout.strip()
        known = commits() | {self.name: head}
        COMMITS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        self.draw()

    def draw(self) -> None:
        """Write the page and the picture from the numbers."""
        told = self.numbers()
        PAGE.write_text(self._page(told), encoding="utf-8")
        if self.picture is not None:
            self._file("html").write_text(self.picture(told), encoding="utf-8")

    def _page(self, told: Json) -> str:
        begin = f"<!-- written by docs/{self.maker} -->"
        before, rest = PAGE.read_text(encoding="utf-8").split(begin)
        made = f"Measured at `{commits()[self.name]}`."
        return f"{before}{begin}\n\n{made}\n\n{self.written(told)}\n\n{END}{rest.split(END, 1)[1]}"

    def _read(self, kind: str) -> str:
        return self._file(kind).read_text(encoding="utf-8")

    def _file(self, kind: str) -> Path:
        return FOLDER / f"{self.name}.{kind}"


def commits() -> dict[str, str]:
    """The commit of each measurement, by its name."""
    known: dict[str, str] = json.loads(COMMITS.read_text(encoding="utf-8"))
    return known


def hold(*, fact: bool, what: str) -> None:
    """A sentence that the numbers do not bear out is an error."""
    if not fact:
        raise ValueError(f"the numbers do not bear out that {what}: write another sentence")


class Bar(NamedTuple):
    """A bar: its name, the median, least and most of the turns."""

    name: str
    value: float
    low: float
    high: float
    shown: str


def bars(title: str, rows: Sequence[Bar], line: float | None = None) -> str:
    """A bar for each row, a whisker from the least turn to the most, a dashed line at one value."""
    most = max(line or 0.0, *(row.high for row in rows))
    parts = [f"<title>{escape(title)}</title>"]

    def place(value: float) -> float:
        return value / most * (WIDTH - 80)

    for index, row in enumerate(rows):
        up = index * ROW
        reach = f"{place(row.low):.1f} {up + BAR_AT + BAR_HIGH / 2}H{place(row.high):.1f}"
        wide = f'width="{place(row.value):.1f}" height="{BAR_HIGH}"'
        parts += [
            f'<text x="0" y="{up + 18}">{escape(row.name)}</text>',
            f'<rect x="0" y="{up + BAR_AT}" {wide} fill="{COLOURS[0]}"/>',
            f'<path d="M{reach}" stroke="currentColor"/>',
            f'<text x="{place(row.high) + 6:.1f}" y="{up + BAR_AT + 11}">{row.shown}</text>',
        ]
    height = ROW * len(rows)
    if line is not None:
        at = f"M{place(line):.1f} 0V{height}"
        parts.append(f'<path d="{at}" stroke="currentColor" stroke-dasharray="4 4"/>')
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg_of(parts, height)}</figure>"
