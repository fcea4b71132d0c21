"""The state of a replay between two slices of its trace, as a file.

    requests    |   0 .. 99,999   |  100,000 .. 199,999  |  200,000 ..
    files              state of 100,000        state of 200,000, in its place

A replay that is resumed from the file ends as if it had never stopped. The file is a zip of data
alone: `head.json` says whose state it is and has the digest of the others, `nodes.json` are the
objects (`graph.py`), `arrays` their numbers.
"""

import gc
import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.files import Output, not_writable, readable
from cachesim.traces import graph
from cachesim.traces.replay import Cell, Run
from cachesim.traces.source import MOST_REQUESTS
from cachesim.traces.sweep import code_digest, engines_digest
from cachesim.typed import check_whole

FORMAT: Final = 2
FLAG: Final = "--states"
START: Final = b"PK"
EVERY: Final = 100_000
"""Requests of a slice, by default."""

HEAD, NODES, ARRAYS = "head.json", "nodes.json", "arrays"
MOST_HEAD, MOST_BYTES = 1 << 16, 1 << 30
"""Bytes of the head, and of each other part, unpacked."""

DAMAGE: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, OSError, ValueError),
    *(NotImplementedError, RuntimeError),
)
"""Errors of a file that is no zip of ours."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Do not look for garbage among objects that are all in use; it takes longer than the rest."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The folder of the states, and the requests between two of them."""

    folder: Path
    every: int

    def load(self, cell: Cell) -> Run | None:
        """The replay of a cell where it was left; None if it was not begun."""
        path = self._path(cell)
        with readable(path):
            if not path.exists():
                return None
            file = path.open("rb")
            try:
                with file, zipfile.ZipFile(file) as packed:
                    head = _part(path, packed, HEAD, MOST_HEAD)
                    nodes, arrays = (_part(path, packed, name, MOST_BYTES) for name in PARTS)
            except InputError:
                raise
            except DAMAGE:
                raise _damaged(path) from None
        self._check(path, cell, head, nodes + arrays)
        try:
            with _no_collection():
                run = graph.read(nodes, arrays)
        except graph.DamagedError as error:
            raise InputError(f"{path}: no state of a replay: {error}; delete it") from None
        if not isinstance(run, Run):
            raise InputError(f"{path}: no state of a replay; delete it")
        first = cell.source.first
        if first is not None and run.reader.read > first:
            raise InputError(
                f"{path}: the state after {run.reader.read:,} requests, and --first is {first:,}; "
                f"name another folder with {FLAG}"
            )
        run.go_on(cell)
        return run

    def save(self, cell: Cell, run: Run) -> None:
        """Replace the state of a cell."""
        writer = graph.Writer()
        with _no_collection():
            nodes = writer.text(run)
        arrays = bytes(writer.arrays)
        if max(len(nodes), len(arrays)) > MOST_BYTES:
            raise InputError(
                f"{FLAG} {self.folder}: the state has more than {MOST_BYTES >> 30} GiB; leave "
                f"{FLAG} out, or replay fewer requests"
            )
        body = nodes + arrays
        head = json.dumps({**_origin(cell), "read": run.reader.read, "sha256": _sha256(body)})

        def fill(part: Path) -> None:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
                for name, data in ((HEAD, head.encode()), (NODES, nodes), (ARRAYS, arrays)):
                    packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 1)

        Output(self._path(cell), FLAG, START).fill(fill)

    def _path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.profile}-{_key_of(cell)[:16]}.state"

    @staticmethod
    def _check(path: Path, cell: Cell, head: bytes, body: bytes) -> None:
        """Raise InputError for a file that is not the state of this cell."""
        try:
            header = json.loads(head)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("sha256") != _sha256(body):
            raise _damaged(path)
        for name, wanted in _origin(cell).items():
            if header.get(name) != wanted:
                raise InputError(
                    f"{path}: the state of a replay with {OTHER[name]}; delete it, or name another "
                    f"folder with {FLAG}"
                )


OTHER: Final = {
    "format": "another format",
    "code": "other code of cachesim or of its engine",
    "cell": "another server or other options",
    "trace": "another trace",
}


def states_at(folder: Path | None, every: int | None) -> States | None:
    """The states in a folder that can be written, if one is named."""
    if folder is None:
        if every is not None:
            raise InputError("--slice is for --states: write --states FOLDER as well")
        return None
    check_whole("--slice", every, 1, MOST_REQUESTS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise not_writable(folder, FLAG, error) from None
    Output.at(folder / "probe.state", FLAG, START)
    return States(folder=folder.resolve(), every=every or EVERY)


def _origin(cell: Cell) -> dict[str, Any]:
    """The state that determines how a replay continues."""
    foreign = engines_digest().get(cell.profile.partition("@")[0], "")
    return {
        "format": FORMAT,
        "code": code_digest() + foreign,
        "cell": _key_of(cell),
        "trace": cell.source.digest(),
    }


def _key_of(cell: Cell) -> str:
    """A key of a cell, whatever number of requests is replayed."""
    fields = asdict(replace(cell, source=replace(cell.source, first=None, file="")))
    fleet = cell.fleet and {**cell.fleet.as_dict(), "part": cell.fleet.part}
    return _sha256(json.dumps([fields, fleet], sort_keys=True, default=str).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PARTS: Final = (NODES, ARRAYS)


def _part(path: Path, packed: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A part of a file, not longer than that, whatever the file says of its size."""
    if packed.getinfo(name).compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise _damaged(path)
    with packed.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path}: {name} unpacks to more than {most:,} bytes; delete it")
    return data


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: cut or damaged, or no state of a replay by this version; delete it")
