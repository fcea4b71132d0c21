"""Saved states: their fields, their real bytes, and their form on disk.

A blob has the fields of the real one, read in the same order, so that a blob for another memory is
misread at the same place. Its `size` is the real size; rows are in the network's own element type,
so that a restore gives the same bits.

On disk (little-endian):

    bytes   field
    4       magic "CSST"
    4       format version, 1
    4       CRC-32 of everything that follows
    8       number of bytes that follow
    4, 8    id of the saved sequence (signed), real bytes of the blob
    ...     the fields: one byte for the kind, then
              W  word        value (8)
              H  header      size in bytes (4), count (4), values (8 each)
              C  cells       ext bytes per cell (4), count (4), positions (8 each),
                             number of ids per cell (4 each), ids (4 each)
              R  rows        type (4), bytes of one row (8), element type (8, ASCII, padded),
                             number of dimensions (4), each dimension (8), elements
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cachesim.errors import BlobError, OptionError, UpstreamAbort
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Integers

ARCHITECTURES: Final[Mapping[frozenset[str], str]] = {
    frozenset({"attention"}): "llama",
    frozenset({"window", "attention"}): "gemma3",
    frozenset({"ssm"}): "mamba2",
    frozenset({"ssm", "attention"}): "granitehybrid",
    frozenset({"delta", "attention"}): "qwen35",
    frozenset({"conv", "window"}): "lfm2",
    frozenset({"conv", "attention"}): "lfm2",
}
"""Kinds of layers -> the architecture in a GGUF file and a saved state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """The bytes of a layer: key and value of an attention cell, or R and S of a recurrent row."""

    key: int = 0
    value: int = 0
    r: int = 0
    s: int = 0


MARKS: Final = -1
"""The element type of layers without a real counterpart, which take no bytes."""


BLOCKS: Final[Mapping[str, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
}
"""Element type -> number of elements in a block, and its bytes."""

F16_BYTES: Final = 2


def row_bytes(spec: ModelSpec, layer: int, type_k: str = "f16", type_v: str = "f16") -> RowBytes:
    """Bytes of keys and values in the types of the cache, of recurrent rows in f32.

    Upstream: `ggml_row_size` of `n_embd_k_gqa`, `n_embd_v_gqa`, `n_embd_r`, `n_embd_s`. Sizes in a
    scenario are those of the real model, whatever the types.
    """
    key, value = spec.key_bytes(layer), spec.value_bytes(layer)
    if spec.sizes is None:
        key, value = _as_kept(spec, key, type_k), _as_kept(spec, value, type_v)
    return RowBytes(key=key, value=value, r=spec.conv_bytes(layer), s=spec.state_bytes(layer))


def _as_kept(spec: ModelSpec, f16: int, kept: str) -> int:
    block, size = BLOCKS[kept]
    # A row of a block type is stored in whole blocks.
    if f16 and spec.head_size % block:
        raise OptionError(
            f"a cache of type {kept} has blocks of {block}, and a head has {spec.head_size} "
            "values: the real server does not start"
        )
    return f16 // F16_BYTES // block * size


MAGIC: Final = b"CSST"
VERSION: Final = 1
READ_DEVICE: Final = "llama_io_read_device::read_tensor"


class Word(NamedTuple):
    """A four-byte number: a count of streams or cells."""

    value: int

    @property
    def size(self) -> int:
        """Real bytes."""
        return 4


class Header(NamedTuple):
    """Numbers that must be equal for the rows after them to be read."""

    values: tuple[int, ...]
    size: int


class CellList(NamedTuple):
    """Positions and ids of the saved cells; without any ids, one sequence's recurrent state."""

    positions: Integers
    ids: tuple[tuple[int, ...], ...]
    ext: int
    size: int  # real bytes: position, number of ids, extra data, ids
    has_one_owner_each: bool

    @classmethod
    def of(cls, positions: Integers, ids: tuple[tuple[int, ...], ...], ext: int = 0) -> "CellList":
        """Create a list with its size, which the prompt cache queries repeatedly."""
        alike = bool(ids) and ids.count(ids[0]) == len(ids)
        owners = len(ids) * len(ids[0]) if alike else sum(map(len, ids))
        single = len(ids[0]) == 1 if alike else all(len(own) == 1 for own in ids)
        return cls(positions, ids, ext, len(ids) * (8 + ext) + 4 * owners, single)


class RowBlock(NamedTuple):
    """The rows of a layer; `data` is None if they are on the device."""

    kind: int  # element type, a number that must be equal
    row_bytes: int
    n_rows: int
    data: Array | None
    chunks: int = 1  # runs of consecutive cells that were saved

    @property
    def size(self) -> int:
        """Real bytes: type, row size, rows."""
        if self.kind == MARKS:
            return 0
        return 12 + (0 if self.data is None else self.n_rows * self.row_bytes)


Field: TypeAlias = Word | Header | CellList | RowBlock
F = TypeVar("F", Word, Header, CellList, RowBlock)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blob:
    """A saved state."""

    fields: tuple[Field, ...]
    source: int = 0
    available: int | None = None  # remaining bytes of a truncated blob
    whole_chunks: bool = False  # rows are restored in their saved chunks, or not at all
    size: int = field(init=False)  # real bytes, without the 8-byte header of the sequence calls

    def __post_init__(self) -> None:
        whole = sum([part.size for part in self.fields])
        size = whole if self.available is None else min(whole, self.available)
        object.__setattr__(self, "size", size)

    @property
    def rows_elsewhere(self) -> bool:
        """True if the rows are on the device: all of them, or none."""
        for part in self.fields:
            if isinstance(part, RowBlock):
                return part.data is None
        return False

    def on_device(self) -> "Blob":
        """The host's part of a state whose rows stay on the device: numbers only."""
        host = (p._replace(data=None) if isinstance(p, RowBlock) else p for p in self.fields)
        return replace(self, fields=tuple(host))

    def with_rows(self, held: "Blob", *, across_chunks: bool) -> "Blob":
        """The blob with the current rows of the device, in their order.

        The real process aborts if they do not fit: in older releases also if the number of chunks
        differs.
        """
        rows = [part for part in held.fields if isinstance(part, RowBlock)]
        blocks = [part for part in self.fields if isinstance(part, RowBlock)]
        if len(rows) != len(blocks):
            raise UpstreamAbort(READ_DEVICE, "another number of row blocks is on the device")
        for row, block in zip(rows, blocks, strict=True):
            if row.n_rows * row.row_bytes != block.n_rows * block.row_bytes:
                raise UpstreamAbort(READ_DEVICE, "rows of another size are on the device")
        following = iter(rows)
        fields = (next(following) if isinstance(p, RowBlock) else p for p in self.fields)
        return replace(self, fields=tuple(fields), whole_chunks=not across_chunks)

    def cut(self, size: int) -> "Blob":
        """The first `size` bytes of the real blob."""
        return replace(self, available=size)


class TruncatedError(BlobError):
    """The blob ends before the field to read."""


class MisreadError(BlobError):
    """The blob has another field at this place."""


@dataclass(slots=True)
class Reader:
    """Reader of a blob's fields in order; rows are moved only at the end.

    As upstream, rows are queued while the metadata is processed.
    """

    blob: Blob
    consumed: int = 0
    queue: list[Callable[[], None]] = field(default_factory=list)
    _next: int = 0

    def take(self, kind: type[F]) -> F:
        """The next field, which must be of this kind."""
        if self._next == len(self.blob.fields):
            raise TruncatedError("the state ends before what is to be restored")
        part = self.blob.fields[self._next]
        if not isinstance(part, kind):
            raise MisreadError(f"the state holds {type(part).__name__}, not {kind.__name__}")
        size = part.size
        if self.blob.available is not None and self.consumed + size > self.blob.available:
            raise TruncatedError("the state was cut short")
        self._next += 1
        self.consumed += size
        return part

    def word(self) -> int:
        """The next field as a plain number."""
        return self.take(Word).value

    def rows(self, kind: int, row_bytes: int, count: int, *, chunks: int) -> Array:
        """The next field as `count` rows of a type and size, for `chunks` runs of cells."""
        block = self.take(RowBlock)
        if (block.kind, block.row_bytes, block.n_rows) != (kind, row_bytes, count):
            raise MisreadError("the state has rows of another type or size")
        if block.data is None:
            raise UpstreamAbort(READ_DEVICE, "the rows of this state are not on the device")
        # Older releases copy whole chunks, and abort where the cells are in other ranges now.
        if self.blob.whole_chunks and block.chunks != chunks:
            raise UpstreamAbort(READ_DEVICE, f"{block.chunks} pieces for {chunks} runs of cells")
        return block.data

    def move_rows(self) -> None:
        """Run the queued moves."""
        for move in self.queue:
            move()
        self.queue.clear()


def chunks_of(cells: Integers | range) -> int:
    """Number of runs of consecutive cells."""
    if isinstance(cells, range) or len(cells) == cells[-1] - cells[0] + 1:
        return 1
    return 1 + int(np.count_nonzero(cells[1:] - cells[:-1] != 1))


def pack(blob: Blob) -> bytes:
    """A blob as bytes, in the format above."""
    body = struct.pack("<iq", blob.source, blob.size) + b"".join(map(_pack_field, blob.fields))
    return MAGIC + struct.pack("<IIQ", VERSION, zlib.crc32(body), len(body)) + body


def _pack_field(part: Field) -> bytes:
    match part:
        case Word(value):
            return b"W" + struct.pack("<q", value)
        case Header(values, size):
            return b"H" + struct.pack(f"<II{len(values)}q", size, len(values), *values)
        case CellList(positions, ids, ext):
            counts = np.array([len(own) for own in ids], dtype="<u4")
            flat = np.array([s for own in ids for s in own], dtype="<i4")
            head = struct.pack("<II", ext, len(ids))
            places = positions.astype("<i8").tobytes()
            return b"C" + head + places + counts.tobytes() + flat.tobytes()
        case RowBlock(kind, row_bytes, count, data):
            if data is None:
                raise BlobError("a state whose rows stayed on the device cannot be stored")
            name = data.dtype.str.encode().ljust(8)
            shape = struct.pack(f"<I{data.ndim}q", data.ndim, *data.shape)
            return (
                b"R" + struct.pack("<iqI", kind, row_bytes, count) + name + shape + data.tobytes()
            )


class _Source:
    """Bytes with a read position."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        if n < 0 or self.at + n > len(self.data):
            raise BlobError("the saved state is damaged: a field reaches beyond its end")
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def array(self, dtype: str, count: int) -> Array:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype=dtype)


def unpack(data: bytes) -> Blob:
    """Parse the bytes of `pack`; damaged, truncated or foreign ones raise BlobError."""
    start = len(MAGIC) + 16
    if data[: len(MAGIC)] != MAGIC:
        raise BlobError("this is no saved state of cachesim: it does not begin with CSST")
    if len(data) < start:
        raise BlobError("the saved state was cut short within its first 20 bytes")
    version, checksum, length = struct.unpack("<IIQ", data[len(MAGIC) : start])
    if version != VERSION:
        raise BlobError(f"the saved state has format {version}; this cachesim reads {VERSION}")
    body = data[start:]
    if len(body) != length:
        raise BlobError(f"the saved state has {len(body)} bytes where {length} were written")
    if zlib.crc32(body) != checksum:
        raise BlobError("the saved state is damaged: its checksum differs")
    source = _Source(body)
    seq, size = source.numbers("iq")
    blob = Blob(fields=tuple(_fields(source)), source=seq)
    return blob if blob.size == size else blob.cut(size)


def _fields(source: _Source) -> Iterator[Field]:
    while source.at < len(source.data):
        kind = source.take(1)
        match kind:
            case b"W":
                yield Word(*source.numbers("q"))
            case b"H":
                size, count = source.numbers("II")
                yield Header(source.numbers(f"{count}q"), size)
            case b"C":
                ext, count = source.numbers("II")
                positions = source.array("<i8", count).astype(np.int64)
                ends = np.cumsum(source.array("<u4", count)).tolist()
                flat = source.array("<i4", ends[-1] if ends else 0).tolist()
                ids = tuple(tuple(flat[a:b]) for a, b in zip([0, *ends], ends, strict=False))
                yield CellList.of(positions, ids, ext)
            case b"R":
                yield _row_block(source)
            case _:
                raise BlobError(f"the saved state is damaged: {kind!r} is no kind of field")


def _row_block(source: _Source) -> RowBlock:
    kind, row_bytes, count = source.numbers("iqI")
    name = source.take(8).decode("ascii", "replace").strip()
    if name not in {"<f8", "<f4", "<u8", "<i8"}:
        raise BlobError(f"the saved state is damaged: {name!r} is no element type")
    (dimensions,) = source.numbers("I")
    shape = source.numbers(f"{dimensions}q")
    elements = 1
    for n in shape:
        elements *= n
    return RowBlock(kind, row_bytes, count, source.array(name, elements).reshape(shape).copy())
