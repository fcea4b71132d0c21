"""Compressed logs and traces, decompressed while reading."""

import importlib
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Mapping
from importlib.util import find_spec
from io import BufferedReader, RawIOBase
from typing import BinaryIO, Final, cast

from cachesim.errors import InputError

UNPACKED_HERE: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "lzma",
}
"""Magic bytes of compressed files, and the modules that decompress them."""

HEAD_BYTES: Final = 6
"""Bytes of a file's head with the magic number."""

UNPACKED_BY: Final[Mapping[bytes, str]] = {b"PK\x03\x04": "unzip -p"}
"""Magic bytes of other compressed files, and the programs that decompress them."""


ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"


def unpacked(name: str, file: BinaryIO, head: bytes) -> BinaryIO:
    """The file, decompressed if its head is that of a compressed one."""
    for start, program in UNPACKED_BY.items():
        if head.startswith(start):
            file.close()
            raise InputError(f"{name}: is compressed: unpack it first, as `{program}` does")
    if head.startswith(ZSTANDARD):
        if find_spec("pyarrow") is None:
            file.close()
            raise InputError(
                f"{name}: is compressed: unpack it first, as `zstd -dc` does, or install pyarrow: "
                "pip install 'cachesim[parquet]'"
            )
        arrow = importlib.import_module("pyarrow")
        stream = arrow.CompressedInputStream(file, "zstd")
        inner = _Unpacking(name, file, stream, (OSError, ValueError, arrow.ArrowException))
        return cast("BinaryIO", BufferedReader(inner))
    for start, module in UNPACKED_HERE.items():
        if head.startswith(start):
            library = importlib.import_module(module)
            wrong = (
                EOFError,
                OSError,
                ValueError,
                zlib.error,
                getattr(library, "LZMAError", OSError),
            )
            inner = _Unpacking(name, file, library.open(file), wrong)
            return cast("BinaryIO", BufferedReader(inner))
    return file


class _Unpacking(RawIOBase):
    """Content of a compressed file; a truncated or damaged one raises an `InputError`."""

    def __init__(
        self, name: str, file: BinaryIO, inner: BinaryIO, wrong: tuple[type[Exception], ...]
    ) -> None:
        self._name, self._file, self._inner, self._wrong = name, file, inner, wrong

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self._inner.close()
        self._file.close()

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        try:
            part = self._inner.read(len(view))
        except self._wrong as error:
            raise InputError(f"{self._name}: is compressed, and cut or damaged: {error}") from None
        view[: len(part)] = part
        return len(part)


def in_utf8(file: BinaryIO, head: bytes) -> BinaryIO:
    """The file, converted if its head has the mark of UTF-16, as PowerShell writes it."""
    if not head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return file
    return cast("BinaryIO", BufferedReader(_Converting(file)))


class _Converting(RawIOBase):
    """UTF-16 as UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, getincrementaldecoder("utf-16")("replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self._file.close()

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        while not self._rest:
            more = self._file.read(len(view))
            self._rest = self._decoder.decode(more, not more).encode("utf-8", "replace")
            if not more:
                break
        part, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(part)] = part
        return len(part)
