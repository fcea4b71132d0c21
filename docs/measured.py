"""A page of the docs that is written from numbers kept beside it, and says what they bear out.

What a maker writes stands between two marks of the page; the rest of the page is by hand.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachesim.typed import Json

FOLDER: Final = Path(__file__).parent / "explanation"
END: Final = "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The files of one page, and who writes it."""

    name: str
    maker: str
    written: Callable[[Json], str]
    picture: Callable[[Json], str]

    def numbers(self) -> Json:
        """What was measured last."""
        return json.loads(self._file("json").read_text(encoding="utf-8"))

    def is_current(self) -> bool:
        """Whether page and picture are those of the numbers."""
        told = self.numbers()
        return self._read("md") == self._page(told) and self._read("html") == self.picture(told)

    def write(self, arguments: Sequence[str]) -> None:
        """Write page and picture, and before them the numbers where a file of them is given."""
        if arguments:
            told = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
            self._file("json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        told = self.numbers()
        self._file("md").write_text(self._page(told), encoding="utf-8")
        self._file("html").write_text(self.picture(told), encoding="utf-8")

    def _page(self, told: Json) -> str:
        begin = f"<!-- written by docs/{self.maker} -->"
        before, rest = self._read("md").split(begin)
        return f"{before}{begin}\n\n{self.written(told)}\n\n{END}{rest.split(END)[1]}"

    def _read(self, kind: str) -> str:
        return self._file(kind).read_text(encoding="utf-8")

    def _file(self, kind: str) -> Path:
        return FOLDER / f"{self.name}.{kind}"


def hold(*, fact: bool, what: str) -> None:
    """A sentence that the numbers do not bear out is an error."""
    if not fact:
        msg = f"the numbers do not bear out that {what}: write another sentence"
        raise ValueError(msg)
