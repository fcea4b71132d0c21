"""Files written by commands: one rule for every flag that names one.

    scenarios, traces, recordings       a file that exists is refused
    pages, plots, tables, models        replaced at once and whole, where the file that exists is
                                        of the same kind; any other file is refused

The first are edited or cannot be made again; the second come out of the same inputs once more. A
refusal comes before any work, and a command that fails leaves the file that was there.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from cachesim.errors import InputError

PAGE, PLOT, GIF, TABLE = b"<!doctype html", b"<svg", b"GIF8", b"trace,"
PARQUET, GGUF = b"PAR1", b"GGUF"
"""First bytes of the kinds of files that are replaced, in lower case for the texts."""

ANYBODY: Final = 0o666
"""Permissions of a new file, without the umask."""


@contextmanager
def readable(name: object, kind: type[InputError] = InputError) -> Iterator[None]:
    """Convert a failed read or decoding of a file into an error of this kind."""
    try:
        yield
    except OSError as error:
        raise kind(f"{name}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        msg = f"{name}: is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise kind(msg) from None


def refuse_existing(path: Path, flag: str) -> None:
    """Raise InputError for an existing file that must not be replaced."""
    if os.path.lexists(path):
        raise InputError(f"{flag} {path}: the file exists; name another with {flag}")


def not_writable(path: Path, flag: str, error: Exception) -> InputError:
    """The error of a file without write permission."""
    why = getattr(error, "strerror", None) or error
    return InputError(f"{flag} {path}: cannot be written: {why}")


@dataclass(frozen=True, slots=True)
class Output:
    """The file of a flag, checked before any work is done for it."""

    path: Path
    flag: str
    kind: bytes = b""  # first bytes of the files that it may replace; empty: none

    @classmethod
    def at(cls, path: Path, flag: str, kind: bytes = b"") -> "Output":
        """The file if it is writable; else raise InputError with the reason."""
        output = cls(path, flag, kind)
        try:
            output._check()
        except InputError:
            raise
        except (OSError, ValueError) as error:  # the latter: a name with a null character
            raise not_writable(path, flag, error) from None
        return output

    def _check(self) -> None:
        if self._is_device():
            return
        if not self.kind:
            refuse_existing(self.path, self.flag)
        elif self.path.exists():
            with self.path.open("rb") as file:
                start = file.read(len(self.kind))
            if start and start.lower() != self.kind.lower():
                raise InputError(
                    f"{self.flag} {self.path}: another kind of file; name another with {self.flag}"
                )
        self._part().unlink()

    def _is_device(self) -> bool:
        if self.path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        return self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode)

    def write(self, text: str) -> None:
        """Write a text as UTF-8, atomically."""
        self.fill(lambda path: path.write_text(text, encoding="utf-8"))

    def fill(self, make: Callable[[Path], object]) -> None:
        """Write the output of `make` to the file, atomically."""
        try:
            if self._is_device():
                make(self.path)
                return
            part = self._part()
            try:
                make(part)
                if not self.kind:
                    refuse_existing(self.path, self.flag)
                part.replace(self.path.resolve())
            finally:
                part.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise not_writable(self.path, self.flag, error) from None

    def _part(self) -> Path:
        folder = self.path.resolve().parent
        number, name = mkstemp(prefix=f".{self.path.name[:80]}.", dir=folder)
        os.close(number)
        mask = os.umask(0)
        os.umask(mask)
        part = Path(name)
        part.chmod(ANYBODY & ~mask)
        return part


def free_name(path: Path) -> Path:
    """The path, or the path with an unused number."""
    found, number = path, 1
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found
