"""Results of cells in a file that survives interruptions.

SQLite, because it is part of Python, one file, and whole after a process was killed: a cell is in
it or is not. One process writes, those that play do not know of it.

A cell's key is made of all that decides its outcome: what is in the trace, the server, the flags,
and the source code of the engines. So a plan that has changed plays what is new in it alone.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.lab.traces.replay import Cell

TABLE: Final = "CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, cell TEXT, outcome TEXT)"

PACKAGES: Final = ("engines", "model", "lab/traces")
"""Packages whose code affects a result."""


EVERYTHING: Final = (".",)


@cache
def code_digest(packages: tuple[str, ...] = PACKAGES) -> str:
    """A digest of the source that replays a cell, or of other packages."""
    home = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(path for room in packages for path in (home / room).rglob("*.py")):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key_of(cell: Cell, digest: str) -> str:
    """The key of a cell's result, independent of the trace file's place."""
    fields = asdict(cell) | {"source": asdict(cell.source) | {"name": digest, "file": ""}}
    text = json.dumps([code_digest(), fields], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """The stored results."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM cells").fetchone()
        return int(count)

    def get(self, key: str) -> dict[str, Any] | None:
        """Result of a cell, or None."""
        row = self._connection.execute("SELECT outcome FROM cells WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, cell: Cell, outcome: dict[str, Any]) -> None:
        """Store a cell's result; it is on disk when this returns."""
        fields = json.dumps(asdict(cell), sort_keys=True, default=str)
        with self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (key, fields, json.dumps(outcome))
            )


@contextmanager
def open_store(path: Path | None) -> Iterator[Store]:
    """The store in a file, or a temporary one."""
    try:
        connection = sqlite3.connect(path or ":memory:")
    except sqlite3.Error as error:
        msg = f"{path}: results cannot be kept there: {error}; name another file with --store"
        raise InputError(msg) from None
    try:
        connection.execute(TABLE)
        yield Store(connection)
    except sqlite3.DatabaseError as error:
        msg = f"{path}: cannot hold results: {error}; name another file with --store"
        raise InputError(msg) from None
    finally:
        connection.close()
