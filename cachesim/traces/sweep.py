"""All cells of a plan, replayed by processes or machines.

A cell knows nothing of the others, so it may be run anywhere, at any time, and more than once:
its result is the same. Results are stored as they arrive and reported in the order of the plan. A
process that dies loses nothing: its unfinished cells are run again by others.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import cachesim
from cachesim.engines import FAMILIES
from cachesim.errors import InputError
from cachesim.processes import pool_of
from cachesim.traces.fleet.serving import joined, parts_of
from cachesim.traces.plan import plan_of, read_plan
from cachesim.traces.playing import play
from cachesim.traces.reading import TraceError
from cachesim.traces.replay import Cell, Seams, row_of

# -- results in a file -----------------------------------------------------------------------------

# SQLite, because it is part of Python, one file, and whole after a process was killed: a cell is in
# it or is not. One process writes, those that run do not know of it.
#
# A cell's key is made of all that decides its outcome: what is in the trace, the server, the flags,
# and the source code of the engines. So a plan that has changed runs what is new in it alone.

TABLE: Final = "CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, cell TEXT, outcome TEXT)"

PACKAGES: Final = ("engines", "model", "play", "traces", "verify", "why")
"""Packages whose code affects a result."""


EVERYTHING: Final = (".",)

HOME: Final = Path(cachesim.__file__).parent
"""The folder of the program: a count of parents would name another one after this file moves."""


@cache
def code_digest(packages: tuple[str, ...] = PACKAGES, home: Path = HOME) -> str:
    """A digest of the source that replays a cell, or of other packages."""
    digest = hashlib.sha256()
    for room in packages:
        paths = sorted((home / room).rglob("*.py"))
        if not paths:
            # The digest of no file would be the same after every change of the code.
            raise FileNotFoundError(f"{home / room} holds no source")
        for path in paths:
            digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def engines_digest() -> dict[str, str]:
    """A digest of the source of each engine of another package."""
    homes = {
        name: Path(str(import_module(family.package).__file__)).parent
        for name, family in FAMILIES.items()
        if not family.package.startswith("cachesim.")
    }
    return {name: code_digest(EVERYTHING, home) for name, home in homes.items()}


def key_of(cell: Cell, digest: str) -> str:
    """The key of a cell's result, independent of the trace file's place."""
    fields = asdict(cell) | {"source": asdict(cell.source) | {"name": digest, "file": ""}}
    fleet = cell.fleet and {**cell.fleet.as_dict(), "part": cell.fleet.part}
    code = [code_digest(), fields, fleet]
    if foreign := engines_digest().get(cell.profile.partition("@")[0]):
        code.append(foreign)
    text = json.dumps(code, sort_keys=True, default=str)
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


# -- the sweep -------------------------------------------------------------------------------------


Workers: TypeAlias = Callable[[], AbstractContextManager[Executor]]
"""Context of the workers: processes of this machine, or a cluster."""

ATTEMPTS: Final = 3
"""Most attempts for a cell that ends its process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A cell that could not be replayed, with the reason."""

    complaint: str
    of_trace: bool = False  # wrong for every cell that runs it


def attempt(cell: Cell, seams: Seams | None = None) -> dict[str, Any] | Failed:
    """Replay a cell; invalid input is returned as a value, since workers may be remote."""
    try:
        return play(cell, seams=seams)
    except InputError as error:
        return Failed(str(error), of_trace=isinstance(error, TraceError))


Attempt: TypeAlias = Callable[[Cell], dict[str, Any] | Failed]


def sweep(
    plan: Mapping[str, Any] | str | Path, *, store: str | Path | None = None, processes: int = 1
) -> list[dict[str, Any]]:
    """Replay a plan (a file or a mapping): a flat row for each cell.

    `pandas.DataFrame(cachesim.sweep("plan.toml"))` is one. With a `store` what was run before
    with the same code is not run again.

    >>> import cachesim
    >>> server = {"profile": ["vllm@0.33.0", "sglang@0.5.23"], "model": "dense"}
    >>> rows = cachesim.sweep({"format": 1, "trace": [{"made": 20}], "server": [server]})
    >>> [(row["profile"], row["requests"]) for row in rows]
    [('vllm@0.33.0', 20), ('sglang@0.5.23', 20)]
    """
    cells = plan_of(plan) if isinstance(plan, Mapping) else read_plan(Path(plan))
    path = None if store is None else Path(store)
    with open_store(path) as known:
        outcomes = play_cells(cells, known, lambda: pool_of(processes))
    return [flat(row_of(*played)) for played in zip(cells, outcomes, strict=True)]


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without nested tables: each flag, cause and kind becomes a column.

    Of what is held over time, what there was of each kind at most.
    """
    tables = {"settings", "lost", "held", "bytes", "notes", "fleet"}
    plain = {name: value for name, value in row.items() if name not in tables}
    flags = {f"set.{name}": value for name, value in row["settings"].items()}
    lost = {f"lost.{name}": count for name, count in row["lost"].items()}
    kinds = {name: column for name, column in row["held"].items() if name != "requests"}
    most = {f"held.{name}": max(kinds[name]) for name in kinds}
    sizes = row["bytes"] or {}
    bytes_ = {f"bytes.{name}": value for name, value in sizes.items() if name != "limits"}
    fleet = {
        f"fleet.{name}": value
        for name, value in row.get("fleet", {}).items()
        if not isinstance(value, list)
    }
    return plain | fleet | flags | lost | most | bytes_ | {"notes": "; ".join(row["notes"])}


def play_cells(
    cells: Sequence[Cell],
    store: Store,
    workers: Workers,
    progress: Callable[[int], None] = lambda _: None,
    seams: Seams | None = None,
) -> list[dict[str, Any]]:
    """Results of cells in order; `progress` is called with the number of parts done."""
    parts = [parts_of(cell) for cell in cells]
    each_part = [part for group in parts for part in group]
    tried = attempt if seams is None else partial(attempt, seams=seams)
    rows = iter(_play_parts(each_part, store, workers, progress, tried))
    return [
        joined(cell, [next(rows) for _ in part]) if len(part) > 1 else next(rows)
        for cell, part in zip(cells, parts, strict=True)
    ]


def count_parts(cells: Sequence[Cell]) -> int:
    """The number of parts that `play_cells` runs, each by itself."""
    return sum(len(parts_of(cell)) for cell in cells)


def _play_parts(
    cells: Sequence[Cell],
    store: Store,
    workers: Workers,
    progress: Callable[[int], None],
    tried: Attempt,
) -> list[dict[str, Any]]:
    digests = {
        name: source.digest() for name, source in {c.source.name: c.source for c in cells}.items()
    }
    keys = [key_of(cell, digests[cell.source.name]) for cell in cells]
    waiting = {key: cell for key, cell in zip(keys, cells, strict=True) if store.get(key) is None}
    progress(len(set(keys)) - len(waiting))
    for left in reversed(range(ATTEMPTS)):
        if not waiting:
            break
        try:
            _play_all(
                waiting, store, workers, lambda: progress(len(set(keys)) - len(waiting)), tried
            )
        except BrokenProcessPool:
            if not left:
                names = ", ".join(sorted({cell.profile for cell in waiting.values()}))
                msg = f"the processes that ran {names} were ended {ATTEMPTS} times"
                raise InputError(msg) from None
    return [outcome for key in keys if (outcome := store.get(key)) is not None]


def _play_all(
    waiting: dict[str, Cell],
    store: Store,
    workers: Workers,
    progress: Callable[[], None],
    tried: Attempt,
) -> None:
    with workers() as pool:
        played = {pool.submit(tried, cell): key for key, cell in waiting.items()}
        for future in as_completed(played):
            key, outcome = played.pop(future), future.result()  # a cluster need not keep it
            if isinstance(outcome, Failed):
                cell = waiting[key]
                where = f"{cell.source.name} on {cell.profile}, {cell.model}: "
                msg = outcome.complaint if outcome.of_trace else f"{where}{outcome.complaint}"
                raise InputError(msg)
            store.put(key, waiting.pop(key), outcome)
            progress()
