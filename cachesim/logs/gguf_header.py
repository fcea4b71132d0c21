"""The metadata of a GGUF file, read without its tensors and in bounded time and memory.

    magic · version · number of tensors · number of keys · keys · tensor headers · data

Long arrays are skipped where they stand: those of a tokenizer have a string for each token.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from cachesim.errors import InputError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
STRING, ARRAY = 8, 9

NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Types of values, as `struct` names them."""

MOST_KEYS: Final = 1 << 16
MOST_STRINGS: Final = 1 << 21
"""Strings of all arrays together; the largest tokenizers have some 600,000 with their merges."""

LONGEST_TEXT: Final = 1 << 26
"""Bytes of one string; a chat template has some 100,000."""

MOST_KEPT: Final = 1 << 12
"""Elements of an array that is kept: one for each layer of a model."""


def read_header(path: Path) -> dict[str, object]:
    """Every key with its value; an array of strings, or a very long one, as None."""
    try:
        with path.open("rb") as file:
            return _Header(str(path), file, path.stat().st_size).read()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        msg = f"--gguf {path}: cannot be read: {why}"
        raise InputError(msg) from None


@dataclass(slots=True)
class _Header:
    name: str
    file: BinaryIO
    size: int
    order: str = "<"
    key: str = ""
    strings: int = 0

    def read(self) -> dict[str, object]:
        magic = self.file.read(4)
        if magic != MAGIC:
            self._refuse(f"is no GGUF file: it begins with {magic!r}, not with {MAGIC!r}")
        version = self._number("I")
        if isinstance(version, int) and not version & 0xFFFF:
            self.order = ">"
            version = int.from_bytes(int(version).to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            self._refuse(f"is GGUF version {version}; versions 2 and 3 are read")
        self._number("Q")  # tensors
        count = self._length()
        if count > MOST_KEYS:
            self._refuse(f"has {count} keys; a model's file has less than {MOST_KEYS}")
        found: dict[str, object] = {}
        for _ in range(count):
            self.key = self._text() or ""
            found[self.key] = self._value(self._kind())
        return found

    @property
    def _place(self) -> str:
        return f"key {self.key[:80]!r}"

    def _kind(self) -> int:
        kind = self._length("I")
        if kind not in NUMBERS and kind not in {STRING, ARRAY}:
            self._refuse(f"{self._place} has a value of type {kind}, which GGUF does not have")
        return kind

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._text()
        return self._array() if kind == ARRAY else self._number(NUMBERS[kind])

    def _array(self) -> list[object] | None:
        kind, count = self._kind(), self._length()
        if kind == ARRAY:
            self._refuse(f"{self._place} is an array of arrays, which no model's header has")
        if kind == STRING:
            self.strings += count
            if self.strings > MOST_STRINGS:
                self._refuse(f"{self._place} brings the strings to more than {MOST_STRINGS:,}")
            for _ in range(count):
                self._skip(self._length())
            return None
        letter = NUMBERS[kind]
        if count > MOST_KEPT:
            self._skip(count * struct.calcsize(f"={letter}"))
            return None
        return [self._number(letter) for _ in range(count)]

    def _number(self, letter: str) -> int | float | bool:
        shape = f"{self.order}{letter}"
        value: int | float | bool = struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0]
        return value

    def _length(self, letter: str = "Q") -> int:
        return int(self._number(letter))

    def _text(self) -> str:
        length = self._length()
        if length > LONGEST_TEXT and self.file.tell() + length <= self.size:
            self._refuse(f"{self._place} has a text of {length:,} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _skip(self, length: int) -> None:
        if self.file.tell() + length > self.size:
            self._end()
        self.file.seek(length, 1)

    def _bytes(self, length: int) -> bytes:
        if self.file.tell() + length > self.size:
            self._end()
        data = self.file.read(length)
        if len(data) < length:
            self._end()
        return data

    def _end(self) -> NoReturn:
        where = f"in or after {self._place}" if self.key else "before its first key"
        self._refuse(f"is cut: the file of {self.size:,} bytes ends {where}")

    def _refuse(self, why: str) -> NoReturn:
        msg = f"--gguf {self.name}: {why}"
        raise InputError(msg)
