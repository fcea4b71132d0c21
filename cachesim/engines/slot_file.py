"""Slot files: the frame that all engines share.

bytes   field (little-endian)
4       magic, an engine's own
4       format version, 1
4       CRC-32 of everything that follows
4       length of a JSON text
...     the text: the engine's description of the slot
...     the parts that the text describes, in its order
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from cachesim.errors import BlobError
from cachesim.units import Token

VERSION: Final = 1
HEAD: Final = struct.Struct("<4sIII")

T = TypeVar("T")


def write(magic: bytes, head: Mapping[str, Any], parts: Iterable[bytes]) -> bytes:
    """A slot as bytes: its description, then the parts."""
    text = json.dumps(head, separators=(",", ":")).encode()
    body = text + b"".join(parts)
    return HEAD.pack(magic, VERSION, zlib.crc32(body), len(text)) + body


def read(data: bytes, magic: bytes, engine: str, make: Callable[[Any, bytes], T]) -> T:
    """Parse a slot file with `make`; a damaged or foreign file is refused."""
    if len(data) < HEAD.size or data[:4] != magic:
        begins = magic.decode()
        msg = f"this is no slot file of {engine}: it does not begin with {begins}; save it again"
        raise BlobError(msg)
    _, version, checksum, length = HEAD.unpack_from(data)
    body = data[HEAD.size :]
    if version != VERSION:
        raise BlobError(f"the slot file has format {version}; this cachesim reads {VERSION}")
    if zlib.crc32(body) != checksum or length > len(body):
        raise BlobError("the slot file is damaged: its checksum differs; save the slot again")
    try:
        return make(json.loads(body[:length]), body[length:])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BlobError(f"the slot file is damaged: {type(error).__name__}: {error}") from error


def whole(value: object, low: int = -1, most: int = 1 << 31) -> int:
    """Check a count, a position or a token of a file."""
    if type(value) is not int or not low <= value < most:
        raise ValueError(f"{value!r} is no whole number that could stand there")
    return value


def tokens_of(ids: list[Any]) -> list[Token]:
    """The token ids of a file; those of a `Rope` are longer numbers."""
    return [Token(whole(token, 0, 1 << 62)) for token in ids]
