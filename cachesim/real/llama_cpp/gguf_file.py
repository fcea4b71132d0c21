"""The GGUF container, as far as a model of 32-bit floats needs it: keys, tensors, alignment.

    magic · version · number of tensors · number of keys · keys · tensor headers · padding · data

Everything is little-endian; a string is its length (64 bits) and its UTF-8 bytes; data starts at
a multiple of `ALIGNMENT`, and so does every tensor in it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

MAGIC: Final = b"GGUF"
VERSION: Final = 3
ALIGNMENT: Final = 32
F32: Final = 0

Kind: TypeAlias = Literal["u32", "i32", "f32", "bool", "string"]
Scalar: TypeAlias = int | float | bool | str

_CODES: Final[Mapping[Kind, int]] = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "string": 8}
_LAYOUT: Final[Mapping[Kind, str]] = {"u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?"}
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a key, with the type that the format wants spelled out."""

    kind: Kind
    value: Scalar | Sequence[Scalar]


def u32(value: int | Sequence[int]) -> Value:
    """An unsigned number, or a list of them."""
    return Value("u32", value)


def i32(value: Sequence[int]) -> Value:
    """A list of signed numbers."""
    return Value("i32", value)


def f32(value: float | Sequence[float]) -> Value:
    """A 32-bit float, or a list of them."""
    return Value("f32", value)


def flag(value: bool) -> Value:  # noqa: FBT001 - the value is the point
    """True or false."""
    return Value("bool", value)


def text(value: str | Sequence[str]) -> Value:
    """A string, or a list of them."""
    return Value("string", value)


def write_gguf(
    out: BinaryIO, keys: Mapping[str, Value], tensors: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write a whole file; tensors keep their order."""
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(keys))]
    head += [_string(name) + _typed(value) for name, value in keys.items()]
    offset = 0
    for name, tensor in tensors.items():
        head.append(_tensor_header(name, tensor, offset))
        offset += _padded(tensor.nbytes)
    start = b"".join(head)
    out.write(start.ljust(_padded(len(start)), b"\0"))
    for tensor in tensors.values():
        data = np.ascontiguousarray(tensor, dtype="<f4").tobytes()
        out.write(data.ljust(_padded(len(data)), b"\0"))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Value) -> bytes:
    code = _CODES[value.kind]
    if isinstance(value.value, str) or not isinstance(value.value, Sequence):
        return struct.pack("<I", code) + _plain(value.kind, value.value)
    items = b"".join(_plain(value.kind, each) for each in value.value)
    return struct.pack("<IIQ", _ARRAY, code, len(value.value)) + items


def _plain(kind: Kind, value: Scalar) -> bytes:
    return _string(str(value)) if kind == "string" else struct.pack(_LAYOUT[kind], value)


def _tensor_header(name: str, tensor: NDArray[np.float32], offset: int) -> bytes:
    shape = tensor.shape[::-1]
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _string(name) + sizes + struct.pack("<IQ", F32, offset)
