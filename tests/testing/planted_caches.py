"""Caches of three kinds, each right as it is, and with a bug for each method it overrides.

blocks   whole blocks of 8 tokens under a chain of keys, with room for some
states   all rows of a prompt under exactly its tokens
files    blocks in files, whose names are their keys
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows, joined, packed, split, unpacked

UNIT = 8


class Blocks:
    """Blocks in memory; a block's key is that of the block before it, and its own tokens."""

    room = 1000

    def __init__(self, server: Server, place: Path) -> None:
        self.server, self.place = server, place
        self.blocks: OrderedDict[Hashable, Rows] = OrderedDict()
        self.pins: dict[Request, dict[Hashable, Rows]] = {}  # what lookups have promised

    def names(self, request: Request) -> Hashable:
        return request.adapter, request.salt, request.image

    def key(self, parent: Hashable, request: Request, start: int, end: int) -> Hashable:
        return parent, request.tokens[start:end], self.names(request)

    def chain(self, request: Request) -> Iterator[Hashable]:
        parent: Hashable = None
        for start in range(0, len(request.tokens) - UNIT + 1, UNIT):
            parent = self.key(parent, request, start, start + UNIT)
            yield parent

    def store(self, request: Request, rows: Rows) -> None:
        for key, block in zip(self.chain(request), split(self.server, rows, UNIT), strict=True):
            self.put(key, [layer.copy() for layer in block])

    def put(self, key: Hashable, block: Rows) -> None:
        self.blocks[key] = block
        self.blocks.move_to_end(key)
        while len(self.blocks) > self.room:
            self.drop()

    def drop(self) -> None:
        self.blocks.popitem(last=False)

    def has(self, key: Hashable) -> bool:
        return key in self.blocks

    def held(self, request: Request) -> list[Hashable]:
        return list(takewhile(self.has, self.chain(request)))

    def lookup(self, request: Request) -> int:
        keys = self.held(request)
        self.pins[request] = {key: self.blocks[key] for key in keys}
        return UNIT * len(keys)

    def load(self, request: Request, count: int) -> Rows | None:
        keys = list(self.chain(request))[: count // UNIT]
        held = [self.blocks, self.pins.get(request, {})]
        blocks = [next((of[key] for of in held if key in of), None) for key in keys]
        return None if None in [block and 1 for block in blocks] else joined(blocks)  # type: ignore[arg-type]

    def evict(self, request: Request) -> None:
        for key in self.chain(request):
            self.blocks.pop(key, None)

    def clear(self) -> None:
        self.blocks.clear()
        self.pins.clear()


def named(name: str, of: Callable[[Request], Hashable]) -> type[Blocks]:
    """Blocks whose keys have other names of a request."""
    return type(name, (Blocks,), {"names": lambda _, request: of(request)})


NoAdapter = named("NoAdapter", lambda request: (request.salt, request.image))
NoSalt = named("NoSalt", lambda request: (request.adapter, request.image))
# Adapter and salt are one text: ab and c are a and bc.
SaltJoined = named("SaltJoined", lambda each: (each.adapter + each.salt, each.image))
# Four digits of an image's hash are in the key.
ShortImageHash = named("ShortImageHash", lambda each: (each.adapter, each.salt, each.image[-4:]))


class OnlyLastToken(Blocks):
    """A key is the last token of a block."""

    def key(self, parent: Hashable, request: Request, start: int, end: int) -> Hashable:
        return end, request.tokens[end - 1], self.names(request)


class NoParent(Blocks):
    """A block's key does not name the block before it."""

    def key(self, parent: Hashable, request: Request, start: int, end: int) -> Hashable:
        return request.tokens[start:end], self.names(request)


class SumOfTokens(Blocks):
    """A weak hash: the order of a block's tokens does not count."""

    def key(self, parent: Hashable, request: Request, start: int, end: int) -> Hashable:
        return parent, sum(request.tokens[start:end]), self.names(request)


class Unpinned(Blocks):
    """Between lookup and load other blocks may take the place."""

    room = 3

    def lookup(self, request: Request) -> int:
        return UNIT * len(self.held(request))


class EvictedStays(Blocks):
    """Blocks of a lookup stay, evicted or not."""

    def evict(self, request: Request) -> None:
        for key in list(self.chain(request))[1:]:
            self.blocks.pop(key, None)


class SharedArrays(Blocks):
    """The caller's arrays are kept."""

    def store(self, request: Request, rows: Rows) -> None:
        for key, block in zip(self.chain(request), split(self.server, rows, UNIT), strict=True):
            self.put(key, block)


class OneBlockLate(Blocks):
    """Of a state the one before the last token of a block is kept."""

    def store(self, request: Request, rows: Rows) -> None:
        late = [
            layer[max(0, UNIT - 2) :] if shape.place == "recurrent" else layer
            for shape, layer in zip(self.server.shapes, rows, strict=True)
        ]
        blocks = split(self.server, rows, UNIT)
        for at, (key, block) in enumerate(zip(self.chain(request), blocks, strict=True)):
            wrong = [
                other[UNIT * at : UNIT * at + 1] if shape.place == "recurrent" else layer
                for shape, layer, other in zip(self.server.shapes, block, late, strict=True)
            ]
            self.put(key, [layer.copy() for layer in wrong])


class Counted(Blocks):
    """Counts its bytes, and keeps within 4,096 of them."""

    nbytes = 0
    most = 4096

    def put(self, key: Hashable, block: Rows) -> None:
        if key in self.blocks:
            return
        size = len(packed(block))
        while self.blocks and self.nbytes + size > self.most:
            self.drop()
        super().put(key, block)
        self.nbytes += size

    def drop(self) -> None:
        _, block = self.blocks.popitem(last=False)
        self.nbytes -= len(packed(block))

    def evict(self, request: Request) -> None:
        self.nbytes -= sum(
            len(packed(self.blocks[each])) for each in self.chain(request) if each in self.blocks
        )
        super().evict(request)

    def clear(self) -> None:
        super().clear()
        self.nbytes = 0


class RoomAfterwards(Counted):
    """Room is made before the size of the new block is known."""

    def put(self, key: Hashable, block: Rows) -> None:
        while self.nbytes > self.most:
            self.drop()
        size = len(packed(block))
        if key not in self.blocks:
            Blocks.put(self, key, block)
            self.nbytes += size


class States:
    """All rows of a prompt under exactly its tokens; the longest that a prompt begins with."""

    def __init__(self, server: Server, place: Path) -> None:
        self.server = server
        self.kept: dict[Hashable, Rows] = {}

    def key(self, request: Request) -> Hashable:
        return request

    def store(self, request: Request, rows: Rows) -> None:
        self.kept[self.key(request)] = [row.copy() for row in rows]

    def lookup(self, request: Request) -> int:
        lengths = range(len(request.tokens), 0, -1)
        return next((n for n in lengths if self.key(request.first(n)) in self.kept), 0)

    def load(self, request: Request, count: int) -> Rows | None:
        rows = self.kept.get(self.key(request.first(count)))
        return rows and [row.copy() for row in rows]


class Trimmed(States):
    """A longer entry serves a shorter prompt: keys and values are cut, states cannot be."""

    def lookup(self, request: Request) -> int:
        return len(request.tokens) if self.longer(request) else super().lookup(request)

    def longer(self, request: Request) -> Request | None:
        size = len(request.tokens)
        return next(
            (e for e in self.kept if isinstance(e, Request) and e.first(size) == request), None
        )

    def load(self, request: Request, count: int) -> Rows | None:
        longer = self.longer(request.first(count))
        if longer is None:
            return super().load(request, count)
        return [
            layer[-1:].copy() if shape.place == "recurrent" else layer[:count].copy()
            for shape, layer in zip(self.server.shapes, self.kept[longer], strict=True)
        ]


class NoImagePlace(States):
    """The image is named where it stands; right."""

    def key(self, request: Request) -> Hashable:
        return replace(request, image_at=0)


class Files(Blocks):
    """Blocks in files, which are renamed when they are complete."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        self.blocks = None  # type: ignore[assignment]

    def of_server(self) -> Hashable:
        server = self.server
        return server.model, server.dtype, server.rope_base

    def path(self, key: Hashable) -> Path:
        name = hashlib.sha256(repr((self.of_server(), key)).encode()).hexdigest()
        return self.place / name

    def put(self, key: Hashable, block: Rows) -> None:
        partial = self.path(key).with_suffix(f".{os.getpid()}")
        partial.write_bytes(packed(block))
        partial.replace(self.path(key))

    def has(self, key: Hashable) -> bool:
        return self.path(key).exists()

    def read(self, key: Hashable) -> bytes:
        return self.path(key).read_bytes()

    def lookup(self, request: Request) -> int:
        return UNIT * len(self.held(request))

    def load(self, request: Request, count: int) -> Rows | None:
        keys = list(self.chain(request))[: count // UNIT]
        return joined([unpacked(self.server, self.read(key), UNIT) for key in keys])

    def evict(self, request: Request) -> None:
        for key in self.chain(request):
            self.path(key).unlink(missing_ok=True)

    def clear(self) -> None:
        for path in self.place.iterdir():
            path.unlink()


def of_servers(name: str, of: Callable[[Server], Hashable]) -> type[Files]:
    """Files whose names have other properties of the server."""
    return type(name, (Files,), {"of_server": lambda self: of(self.server)})


NoModel = of_servers("NoModel", lambda server: (server.dtype, server.rope_base))
NoDataType = of_servers("NoDataType", lambda server: (server.model, server.rope_base))
NoRope = of_servers("NoRope", lambda server: (server.model, server.dtype))


class WrittenInPlace(Files):
    """A file has its name before it is complete."""

    def put(self, key: Hashable, block: Rows) -> None:
        self.path(key).write_bytes(packed(block))


class WrittenInPlaceWithSize(Files):
    """The same, and a file of another size is none: right."""

    def put(self, key: Hashable, block: Rows) -> None:
        data = packed(block)
        if not self.has(key):  # a file that is whole is not put at risk again
            self.path(key).write_bytes(hashlib.sha256(data).digest() + data)

    def has(self, key: Hashable) -> bool:
        return bool(self.read(key))

    def read(self, key: Hashable) -> bytes:
        data = self.path(key).read_bytes() if self.path(key).exists() else b""
        return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else b""


class OwnList(Files):
    """A list of all keys is rewritten for each block, before it."""

    def listed(self) -> list[str]:
        known = self.place / "keys"
        return known.read_text().split() if known.exists() else []

    def put(self, key: Hashable, block: Rows) -> None:
        (self.place / "keys").write_text("\n".join([*self.listed(), self.path(key).name]))
        super().put(key, block)

    def has(self, key: Hashable) -> bool:
        return self.path(key).name in self.listed() and super().has(key)


class OneSlot(Files):
    """Two writers take the same temporary file, and each its own list of what is there."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        self.known: dict[Hashable, int] = {}

    def put(self, key: Hashable, block: Rows) -> None:
        at = self.known.setdefault(key, len(self.known))
        (self.place / str(at)).write_bytes(packed(block))

    def has(self, key: Hashable) -> bool:
        return key in self.known

    def path(self, key: Hashable) -> Path:
        return self.place / str(self.known.get(key, "none"))

    @property
    def evict(self) -> None:  # type: ignore[override]
        raise AttributeError

    @property
    def clear(self) -> None:  # type: ignore[override]
        raise AttributeError


SERVERS: Any = {"persists": True, "varied": ("model", "dtype", "rope")}

PLANTED: dict[Any, tuple[str, dict[str, Any]]] = {
    OnlyLastToken: ("tokens in the key", {"varied": ()}),
    NoParent: ("in the key", {"varied": ()}),
    SumOfTokens: ("tokens in the key", {"varied": ()}),
    NoAdapter: ("adapter in the key", {"varied": ("adapter",)}),
    NoSalt: ("salts apart", {"varied": ("salt",)}),
    SaltJoined: ("adapter in the key", {"varied": ("adapter", "salt")}),
    ShortImageHash: ("image in the key", {"varied": ("image",)}),
    Unpinned: ("promise kept", {}),
    EvictedStays: ("evicted is gone", {}),
    SharedArrays: ("no aliasing", {}),
    OneBlockLate: ("state of the boundary", {"presets": ("hybrid", "recurrent")}),
    RoomAfterwards: ("bytes within limits", {"limit": 4096}),
    Trimmed: ("state of the boundary", {"presets": ("hybrid",)}),
    NoModel: ("model in the key", SERVERS),
    NoDataType: ("dtype in the key", SERVERS),
    NoRope: ("rope in the key", SERVERS),
    WrittenInPlace: ("calls return", {"persists": True}),
    OwnList: ("acknowledged stays", {"persists": True}),
    OneSlot: ("tokens in the key", {"shared": True, "varied": ()}),
}
"""The law that is broken, and what the check is told of the cache."""

KINDS = ("dense", "swa", "hybrid", "recurrent")

RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"blocks, {kind}": (Blocks, {"presets": (kind,)}) for kind in KINDS},
    **{
        f"states, {each}": (States, {"presets": (each,)}) for each in ("hybrid-delta", "hybrid-swa")
    },
    "trimmed, dense": (Trimmed, {}),
    "trimmed, swa": (Trimmed, {"presets": ("swa",)}),
    "counted": (Counted, {"limit": 4096}),
    "image place": (NoImagePlace, {}),
    "files": (Files, {**SERVERS, "varied": ("model", "dtype", "rope", "salt")}),
    "files, hybrid": (Files, {"persists": True, "presets": ("hybrid",)}),
    "files, two writers": (Files, {"shared": True}),
    "files in place": (WrittenInPlaceWithSize, {"persists": True}),
}
