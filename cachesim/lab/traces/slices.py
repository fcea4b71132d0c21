"""The state of a replay between two slices of its trace, as a file.

    requests    |   0 .. 99,999   |  100,000 .. 199,999  |  200,000 ..
    files              state of 100,000        state of 200,000, in its place

A replay that is resumed from the file ends as if it had never stopped. The file is a pickle; only
classes of the simulator, of NumPy and of Python's own containers are read from it.
"""

import gc
import hashlib
import json
import pickle
import random
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, TypeAlias, cast

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family, family_of
from cachesim.errors import InputError
from cachesim.files import Output, not_writable, readable
from cachesim.lab.traces.replay import Cell, Run
from cachesim.lab.traces.source import MOST_REQUESTS
from cachesim.lab.traces.sweep import code_digest, engines_digest
from cachesim.model.arithmetic import Network
from cachesim.model.build import ARITHMETICS, arithmetic_of, build
from cachesim.typed import check_whole

FORMAT: Final = 1
FLAG: Final = "--states"
START: Final = b"{"
EVERY: Final = 100_000
"""Requests of a slice, by default."""

MOST_HEAD: Final = 1 << 16

HOMES: Final = (
    "cachesim.engines",
    "cachesim.model",
    "cachesim.play",
    "cachesim.lab.traces",
    "cachesim.lab.logs.model_memory",
)
"""Packages whose objects a state may have, beside those of installed engines."""

PLAIN: Final = (
    *(set, frozenset, bytearray, range, slice, complex, object),
    *(Counter, OrderedDict, defaultdict, deque, random.Random),
)
"""Python's own classes that a state may have."""

NUMPY: Final = frozenset(
    {"_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"}
    | {"MT19937", "__bit_generator_ctor", "__randomstate_ctor"}
)
"""Parts of arrays and generators in a pickle."""

HASH: Final = "__hash__"

DAMAGE: Final = (
    *(pickle.UnpicklingError, zlib.error, EOFError, ImportError, LookupError, RecursionError),
    *(AttributeError, StopIteration, TypeError, ValueError),
)
"""Errors of a pickle that is not ours."""


# -- objects ---------------------------------------------------------------------------------------

# A radix tree or a list of blocks is as deep for a pickle as it is long. So objects that are equal
# to themselves alone are written one after the other: empty where they are met first, and their
# attributes later, in this order. What all servers share (a network, a family) is made again.


def _is_apart(kind: type) -> bool:
    """True for classes whose objects are written in two steps."""
    plain = ("__new__", "__reduce__", "__reduce_ex__")
    made = all(getattr(kind, name) is getattr(object, name) for name in plain)
    hashed = getattr(kind, HASH) not in (getattr(object, HASH), None)
    return made and not hashed and not hasattr(kind, "__setstate__") and _is_ours(kind.__module__)


def _is_ours(module: str) -> bool:
    homes = {*HOMES, *(each.package for each in FAMILIES.values())}
    return any(module == home or module.startswith(f"{home}.") for home in homes)


Made: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the arguments with which it makes an object again."""


def empty(kind: type) -> object:
    """An object without its attributes."""
    return object.__new__(kind)


def method_of(owner: object, name: str) -> object:
    """A method, bound to its object."""
    return getattr(type(owner), name).__get__(owner)


def function_of(module: str, name: str, *key: Hashable) -> object:
    """A function that a module of ours defines, by its name or in a table."""
    found = _names(module)[name][key[0]] if key else _names(module).get(name)
    if isinstance(found, FunctionType) and found.__module__ == module:
        return found
    raise pickle.UnpicklingError(f"{module}.{name} belongs to no state")


def _names(module: str) -> dict[str, Any]:
    """The names of a module, if it is ours."""
    return vars(import_module(module)) if _is_ours(module) else {}


def _place_of(function: FunctionType) -> Made:
    """Reconstruction of a function."""
    module, name = function.__module__, function.__qualname__
    names = vars(import_module(module))
    if names.get(name) is function:
        return function_of, (module, name)
    for table, entries in names.items():
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            if entry is function:
                return function_of, (module, table, key)
    raise InputError(f"{module}.{name} cannot be kept in a state: leave out {FLAG}")


class _Pickler(pickle.Pickler):
    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, 5)
        self._waiting: list[object] = []
        self._kinds: dict[type, Made | None] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def write(self, root: object) -> None:
        """Write an object and all that it leads to."""
        self.dump(root)
        while self._waiting:
            values: list[object] = []  # one list: what is written stays in memory to the end
            for each in self._waiting:
                # Names and values of an object's attributes, in its slots or not.
                state: Any = each.__getstate__()
                parts = state if isinstance(state, tuple) else (state,)
                found = {name: value for part in parts if part for name, value in part.items()}
                names, own = tuple(found), [*found.values()]
                values += [self._names.setdefault(names, names), *own]
            self._waiting = []
            self.dump(values)
        self.dump(None)

    def reducer_override(self, obj: object) -> Any:  # noqa: ANN401 - as in its base class
        """Called once for each object, but for Python's own values."""
        kind = type(obj)
        if kind not in self._kinds:
            apart = kind not in (Family, *ARITHMETICS.values()) and _is_apart(kind)
            self._kinds[kind] = (empty, (kind,)) if apart else None
        if made := self._kinds[kind]:
            self._waiting.append(obj)
            return made
        if isinstance(obj, FunctionType) and _is_ours(obj.__module__):
            return NotImplemented if obj in HELPERS.values() else _place_of(obj)
        if isinstance(obj, MethodType | BuiltinMethodType):
            if _is_ours(type(obj.__self__).__module__):
                return method_of, (obj.__self__, obj.__name__)
        elif isinstance(obj, Family):
            return family_of, (obj.name,)
        elif kind in ARITHMETICS.values():
            network = cast("Network", obj)
            return build, (network.spec, arithmetic_of(network))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._found: list[object] = []

    def read(self) -> object:
        """The object that `write` wrote."""
        root, filled = self.load(), 0
        while (values := self.load()) is not None:
            left = iter(values)
            for names in left:
                for name in names:
                    object.__setattr__(self._found[filled], sys.intern(name), next(left))
                filled += 1
        return root

    def _empty(self, kind: type) -> object:
        self._found.append(empty(kind))
        return self._found[-1]

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in HELPERS:
            found = HELPERS[module, name]
            return self._empty if found is empty else found
        if module.startswith("numpy.") or module == "numpy":
            if name in NUMPY:
                return super().find_class(module, name)
        elif isinstance(kind := _names(module).get(name), type) and kind.__module__ == module:
            return kind
        for kind in PLAIN:
            if (kind.__module__, kind.__qualname__) == (module, name):
                return kind
        raise pickle.UnpicklingError(f"{module}.{name} belongs to no state")


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
            with path.open("rb") as file:
                head, body = file.readline(MOST_HEAD), file.read()
        self._check(path, cell, head, body)
        try:
            with _no_collection():
                run = _Unpickler(BytesIO(zlib.decompress(body))).read()
        except DAMAGE as error:
            msg = f"{path}: no state of a replay: {str(error)[:80]}; delete it"
            raise InputError(msg) from None
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
        packed = BytesIO()
        with _no_collection():
            _Pickler(packed).write(run)
        body = zlib.compress(packed.getbuffer(), 1)
        head = json.dumps({**_origin(cell), "read": run.reader.read, "sha256": _sha256(body)})
        path = self._path(cell)
        data = head.encode() + b"\n" + body
        Output(path, FLAG, START).fill(lambda part: part.write_bytes(data))

    def _path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.profile}-{_key_of(cell)[:16]}.state"

    @staticmethod
    def _check(path: Path, cell: Cell, head: bytes, body: bytes) -> None:
        """Raise InputError for a file that is not the state of this cell."""
        try:
            found = json.loads(head)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("sha256") != _sha256(body):
            raise InputError(f"{path}: cut or damaged, or no state of a replay; delete it")
        for name, wanted in _origin(cell).items():
            if found.get(name) != wanted:
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


HELPERS: Final[dict[tuple[str, str], Callable[..., object]]] = {
    (each.__module__, each.__qualname__): each
    for each in (build, family_of, empty, method_of, function_of)
}
"""Functions that a state may call."""
