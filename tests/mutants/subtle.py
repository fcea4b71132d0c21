"""Subtle bugs of the ports: one comparison, one operand, one line; and the test that finds each.

They stand in `subtle.toml`: what a file says, what it says with the bug, and the test of the
ordinary suite that fails then.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cachesim

ENGINES: Final = Path(cachesim.__file__).parent / "engines"
TESTS: Final = "tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtle:
    """One place of the source, what stands there, and what stands there with the bug."""

    name: str
    file: str  # under cachesim/engines
    right: str
    wrong: str
    test: str  # under tests

    @property
    def path(self) -> Path:
        """The file that is changed."""
        return ENGINES / self.file

    @property
    def module(self) -> str:
        """The module that is changed."""
        return "cachesim.engines." + self.file.removesuffix(".py").replace("/", ".")

    def changed(self) -> str:
        """The source with the bug."""
        source = self.path.read_text()
        count = source.count(self.right)
        if count != 1:
            msg = f"{self.name}: {self.right!r} stands {count} times in {self.file}"
            raise ValueError(msg)
        return source.replace(self.right, self.wrong)


def _all() -> tuple[Subtle, ...]:
    entries = tomllib.loads(Path(__file__).with_name("subtle.toml").read_text())
    return tuple(Subtle(name=name, **entry) for name, entry in entries.items())


SUBTLE: Final = _all()
