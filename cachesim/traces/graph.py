"""Objects of a replay as data: a table of nodes in JSON, and the numbers of their arrays.

    nodes   0  ["object", "cachesim.traces.replay", "Run", names, values]
            1  ["list", values]                a value is a plain one, or [7]: node 7
            2  ["array", "<i8", [3], 0]        its bytes begin at 0

Nothing is run to read it: objects of the simulator are made empty and get their attributes,
containers are filled, arrays are bytes. A class is one of the simulator's, an installed engine's,
or of a few containers; a function is one that stands in these modules under its own name.
"""

import base64
import json
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Final, TypeAlias, cast

import numpy as np

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family, family_of
from cachesim.errors import InputError
from cachesim.model.arithmetic import Network
from cachesim.model.build import ARITHMETICS, arithmetic_of, build
from cachesim.model.spec import ModelSpec
from cachesim.typed import Value

HOMES: Final = (
    "cachesim.engines",
    "cachesim.model",
    "cachesim.play",
    "cachesim.traces",
    "cachesim.why.infer.model_memory",
)
"""Packages whose objects a state may have, beside those of installed engines."""

CONTAINERS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (list, dict, set, deque, Counter, OrderedDict, defaultdict, bytearray)
}
BASES: Final = (list, dict, set)
"""Containers of which the simulator has classes of its own."""

WHOLE: Final[dict[str, type]] = {"tuple": tuple, "frozenset": frozenset}
KINDS: Final = "biufc"
"""Kinds of numbers that an array may have."""

EMPTY: Final = np.dtype("V0")
"""Numbers of a network that computes none."""

GENERATORS: Final = ("PCG64", "MT19937", "Philox", "SFC64")

Node: TypeAlias = list[Value]


class DamagedError(ValueError):
    """A table of nodes that is not ours."""


def is_ours(module: str) -> bool:
    """True for a module whose classes and functions a state may name."""
    homes = {*HOMES, *(family.package for family in FAMILIES.values())}
    return any(module == home or module.startswith(f"{home}.") for home in homes)


# -- writing ---------------------------------------------------------------------------------------

#     a tuple, a frozenset, a key       its parts come before it
#     a list, a dictionary, an object   made empty where it stands, and filled at the end
#
# So a tree that is deeper than Python's stack is a long table, and objects may lead to each other.


class Writer:
    """A table of all objects that one leads to."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays = bytearray()
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # whatever has a number stays in memory

    def write(self, root: object) -> None:
        """Add an object and all that it leads to."""
        waiting: deque[object] = deque([root])
        nodes: list[tuple[Node, list[object]]] = []
        known: dict[int, tuple[Node, list[object], bool]] = {}
        while waiting:
            stack = [(waiting.popleft(), False)]
            opened = set[int]()
            while stack:
                each, ready = stack.pop()
                if _is_plain(each) or id(each) in self._numbers:
                    continue
                if id(each) not in known:
                    known[id(each)] = self._parts(each)
                    self._kept.append(each)
                node, parts, first = known[id(each)]
                if first and not ready and id(each) not in opened:
                    opened.add(id(each))
                    stack += [(each, True), *((part, False) for part in reversed(parts))]
                    continue
                self._numbers[id(each)] = len(self.nodes)
                nodes.append((node, parts))
                self.nodes.append(node)
                if not first:
                    waiting.extend(parts)
        for node, parts in nodes:
            node.append([self._value(part) for part in parts])

    def text(self, root: object) -> bytes:
        """The table as JSON."""
        self.write(root)
        table = {"root": self._value(root), "nodes": self.nodes}
        return json.dumps(table, separators=(",", ":")).encode()

    def _value(self, value: object) -> object:
        return value if _is_plain(value) else [self._numbers[id(value)]]

    def _parts(self, value: Value) -> tuple[Node, list[object], bool]:
        """The node without its values, the values, and whether these come before it."""
        kind = type(value)
        name = kind.__name__
        if WHOLE.get(name) is kind:
            return [name], list(value), True
        if CONTAINERS.get(name) is kind:
            return _container(value)
        if isinstance(value, np.ndarray):
            return self._array(value), [], True
        if isinstance(value, np.generic):
            return ["number", value.dtype.str, base64.b64encode(value.tobytes()).decode()], [], True
        if isinstance(value, np.random.Generator):
            return ["generator", _listed(value.bit_generator.state)], [], True
        if isinstance(value, np.random.RandomState):
            return ["randomstate", _listed(value.get_state(legacy=False))], [], True
        if isinstance(value, random.Random):
            return ["random"], [value.getstate()], True
        if isinstance(value, bytes):
            return ["bytes", base64.b64encode(value).decode()], [], True
        if isinstance(value, range | slice):
            return [type(value).__name__], [value.start, value.stop, value.step], True
        if isinstance(value, Family):
            return ["family", value.name], [], True
        if kind in ARITHMETICS.values():
            network = cast("Network", value)
            return ["network", arithmetic_of(network)], [network.spec], True
        if isinstance(value, FunctionType):
            return ["function", *_place_of(value)], [], True
        if isinstance(value, BuiltinMethodType):  # a reader could not tell whose it is
            raise TypeError(f"{value!r} cannot be kept in a state")
        if isinstance(value, MethodType):
            return ["method", value.__name__], [value.__self__], True
        if isinstance(value, type):
            return ["class", *_named(value)], [], True
        return _object(value)

    def _array(self, value: Value) -> Node:
        if value.dtype.kind not in KINDS and value.dtype != EMPTY:
            raise InputError(f"an array of {value.dtype} cannot be kept in a state")
        at = len(self.arrays)
        self.arrays += value.tobytes()
        return ["array", value.dtype.str, list(value.shape), at]


def _listed(state: Value) -> Value:
    """The state of a generator as JSON."""
    if isinstance(state, dict):
        return {key: _listed(item) for key, item in state.items()}
    return {"array": state.tolist()} if isinstance(state, np.ndarray) else state


def _unlisted(state: Value) -> Value:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array"}:
        return np.array(state["array"], dtype=np.uint64).astype(np.uint32)
    return {key: _unlisted(item) for key, item in state.items()}


def _is_plain(value: object) -> bool:
    return value is None or type(value) in {bool, int, float, str}


def _container(value: Value) -> tuple[Node, list[object], bool]:
    name = type(value).__name__
    if isinstance(value, bytearray):
        return [name, base64.b64encode(value).decode()], [], True
    if isinstance(value, dict):
        pairs = [part for pair in value.items() for part in pair]
        factory = [value.default_factory] if isinstance(value, defaultdict) else []
        return [name], [*factory, *pairs], False
    if isinstance(value, deque):
        return [name], [value.maxlen, *value], False
    return [name], list(value), False


def _object(value: Value) -> tuple[Node, list[object], bool]:
    kind = type(value)
    named = _named(kind)
    if isinstance(value, Enum):
        return ["member", *named, value.name], [], True
    if isinstance(value, int | float | str):
        plain = next(kind for kind in (int, float, str) if isinstance(value, kind))
        return ["plain", *named, plain(value)], [], True
    if isinstance(value, tuple):
        return ["named", *named], list(value), True
    base = next((base for base in BASES if isinstance(value, base)), None)
    if base is not None and kind.__new__ is base.__new__:
        return _container_of_ours(value, base)
    odd = [
        name
        for name in ("__new__", "__reduce__")
        if getattr(kind, name) is not getattr(object, name)
    ]
    if odd:
        raise InputError(f"{'.'.join(named)} cannot be kept in a state: it has its own {odd[0]}")
    state = attributes_of(value)
    hashed = _is_hashed(kind)
    return ["object", *named, [*state]], [*state.values()], hashed


def _container_of_ours(value: Value, base: type) -> tuple[Node, list[object], bool]:
    """A list, set or dictionary of a class of ours: its attributes, then what it holds."""
    state = attributes_of(value)
    held = [part for pair in value.items() for part in pair] if base is dict else list(value)
    named = _named(type(value))
    return ["container", *named, [*state], base.__name__], [*state.values(), *held], False


def _is_hashed(kind: type) -> bool:
    """True for a class whose objects are keys by their attributes."""
    own: object = kind.__hash__
    return own is not object.__hash__ and own is not None


def attributes_of(value: Value) -> dict[str, Value]:
    """Names and values of an object's attributes, in its slots or not."""
    kind = type(value)
    if is_dataclass(kind) and "__slots__" in vars(kind):
        names = [field.name for field in fields(kind)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    state: Value = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: item for part in parts if part for name, item in part.items()}


def _named(kind: type) -> tuple[str, str]:
    if kind.__module__ != "builtins" and not is_ours(kind.__module__):
        raise InputError(f"{kind.__module__}.{kind.__qualname__} cannot be kept in a state")
    return kind.__module__, kind.__qualname__


def _place_of(function: FunctionType) -> tuple[str, ...]:
    """The module and the name of a function, or its key in a table there."""
    module, name = function.__module__, function.__qualname__
    names = vars(import_module(module)) if is_ours(module) else {}
    if names.get(name) is function:
        return module, name
    for table, entries in names.items():
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            if entry is function and isinstance(key, str):
                return module, table, key
    raise InputError(f"{module}.{name} cannot be kept in a state")


# -- reading ---------------------------------------------------------------------------------------


def read(text: bytes, arrays: bytes) -> object:
    """The object that `Writer.text` wrote; DamagedError for anything else."""
    try:
        table = json.loads(text)
        reader = _Reader(table["nodes"], arrays)
        return reader.read(table["root"])
    except DamagedError:
        raise
    except DAMAGE as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None


DAMAGE: Final = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, RecursionError, TypeError),
    *(ValueError, InputError),
)
"""Errors of a table with other contents than ours."""


class _Reader:
    def __init__(self, nodes: list[Node], arrays: bytes) -> None:
        self._nodes, self._arrays = nodes, arrays
        self._made: list[Value] = []

    def read(self, root: object) -> object:
        for node in self._nodes:
            self._made.append(self._new(node))
        for value, node in zip(self._made, self._nodes, strict=True):
            self._fill(value, node)
        return self._value(root)

    def _value(self, value: Value) -> Value:
        if not isinstance(value, list):
            return value
        (number,) = value
        if not 0 <= number < len(self._made):
            raise DamagedError("a part that does not stand before the whole")
        return self._made[number]

    def values(self, node: Node) -> Iterator[Value]:
        """What a node holds."""
        return map(self._value, node[-1])

    def _new(self, node: Node) -> Value:
        tag = node[0]
        if tag in WHOLE:
            return WHOLE[tag](self.values(node))
        if tag == "bytearray":
            return bytearray(base64.b64decode(node[1]))
        if tag == "deque":
            return deque(maxlen=self._value(node[-1][0]))
        if tag == "defaultdict":
            return defaultdict(self._factory(node[-1][0]))
        if tag in CONTAINERS:
            return CONTAINERS[tag]()
        if tag == "container":
            return cast("Value", CONTAINERS[node[4]]).__new__(class_of(*node[1:3]))
        if tag == "object":
            kind = class_of(*node[1:3])
            made: Value = object.__new__(kind)
            if _is_hashed(kind):
                self._set(made, node, len(self._made))  # before it is a key
            return made
        return MAKERS[tag](self, node)

    def _factory(self, value: Value) -> Value:
        """What makes a missing entry: a class of Python's containers, or one of ours."""
        if value is None:
            return None
        (number,) = value
        if number < len(self._made):
            return self._made[number]
        return MAKERS[self._nodes[number][0]](self, self._nodes[number])

    def _fill(self, value: Value, node: Node) -> None:
        tag = node[0]
        if tag in {"object", "container"}:
            self._set(value, node, len(self._made))
        if tag == "container":
            held = list(self.values(node))[len(node[3]) :]
            if isinstance(value, dict):
                dict.update(value, zip(held[::2], held[1::2], strict=True))
            elif isinstance(value, list):
                list.extend(value, held)  # not its own: a log of events tells its listeners
            else:
                set.update(value, held)
        elif tag in {"list", "deque"}:
            value.extend(list(self.values(node))[tag == "deque" :])
        elif tag == "set":
            value.update(self.values(node))
        elif tag in {"dict", "Counter", "OrderedDict", "defaultdict"}:
            parts = list(self.values(node))[tag == "defaultdict" :]
            for key, item in zip(parts[::2], parts[1::2], strict=True):
                value[key] = item

    def _set(self, value: Value, node: Node, known: int) -> None:
        for name, item in zip(node[3], node[-1], strict=node[0] == "object"):
            if isinstance(item, list) and item[0] >= known:
                continue
            if not isinstance(name, str) or name.startswith("__"):
                raise DamagedError(f"an attribute {name!r}")
            object.__setattr__(value, sys.intern(name), self._value(item))

    def array(self, node: Node) -> Value:
        dtype, shape, at = _dtype(node[1]), node[2], node[3]
        if dtype == EMPTY and len(shape) < 5 and all(0 <= side < 1 << 31 for side in shape):
            return np.zeros(shape, dtype)
        size = int(np.prod(shape, dtype=object)) if shape else 1
        if size < 0 or at < 0 or at + size * dtype.itemsize > len(self._arrays):
            raise DamagedError("an array beyond the end of its bytes")
        return np.frombuffer(self._arrays, dtype, size, at).reshape(shape).copy()

    def number(self, node: Node) -> Value:
        return np.frombuffer(base64.b64decode(node[1 + 1]), _dtype(node[1]), 1)[0]

    def generator(self, node: Node) -> Value:
        kind = node[1]["bit_generator"]
        if kind not in GENERATORS:
            raise DamagedError(f"a generator {kind!r}")
        made = np.random.Generator(getattr(np.random, kind)(0))
        made.bit_generator.state = _unlisted(node[1])
        return made

    def randomstate(self, node: Node) -> Value:
        made = np.random.RandomState(0)
        made.set_state(_unlisted(node[1]))
        return made

    def random(self, node: Node) -> Value:
        made = random.Random()
        made.setstate(self._value(node[-1][0]))
        return made

    def network(self, node: Node) -> Value:
        (spec,) = self.values(node)
        if not isinstance(spec, ModelSpec) or node[1] not in ARITHMETICS:
            raise DamagedError("a network of no model")
        return build(spec, node[1])

    def method(self, node: Node) -> Value:
        (owner,) = self.values(node)
        name = node[1]
        function = getattr(type(owner), name, None)
        ours = isinstance(function, FunctionType) and is_ours(function.__module__)
        if name.startswith("__") or not ours or not is_ours(type(owner).__module__):
            raise DamagedError(f"a method {name!r}")
        return MethodType(cast("FunctionType", function), owner)

    def function(self, node: Node) -> Value:
        module, name, *key = node[1:-1]
        names = vars(import_module(module)) if is_ours(module) else {}
        named = names[name][key[0]] if key else names[name]
        if not isinstance(named, FunctionType) or named.__module__ != module:
            raise DamagedError(f"a function {module}.{name}")
        return named


def _dtype(text: object) -> np.dtype[Value]:
    dtype = np.dtype(text) if isinstance(text, str) and len(text) < 8 else None
    if dtype is None or (dtype.kind not in KINDS and dtype != EMPTY):
        raise DamagedError(f"an array of {text!r}")
    return dtype


def class_of(module: str, name: str) -> type:
    """A class of the simulator or of an installed engine."""
    kind: Value = vars(import_module(module)) if is_ours(module) else {}
    for part in name.split("."):
        kind = kind[part] if isinstance(kind, dict) else vars(kind)[part]
    if not isinstance(kind, type) or kind.__module__ != module:
        raise DamagedError(f"a class {module}.{name}")
    return kind


def _any_class(module: str, name: str) -> type:
    plain = {**CONTAINERS, **WHOLE, **{e.__name__: e for e in (int, float, str, bool, bytes)}}
    return plain[name] if module in {"builtins", "collections"} else class_of(module, name)


def _member(_: _Reader, node: Node) -> Value:
    kind = class_of(node[1], node[2])
    if not issubclass(kind, Enum):
        raise DamagedError(f"a member of {node[2]}")
    return kind[node[3]]


def _plain_of_ours(node: Node) -> Value:
    kind = class_of(node[1], node[2])
    base = next((base for base in (int, float, str) if issubclass(kind, base)), None)
    if base is None or type(node[3]) is not base:
        raise DamagedError(f"a number or text of {node[2]}")
    return base.__new__(kind, node[3])


def _named_tuple(reader: _Reader, node: Node) -> Value:
    kind = class_of(node[1], node[2])
    if not issubclass(kind, tuple):
        raise DamagedError(f"a tuple of {node[2]}")
    return tuple.__new__(kind, reader.values(node))


MAKERS: Final[dict[str, Callable[[_Reader, Node], Value]]] = {
    "array": _Reader.array,
    "number": _Reader.number,
    "generator": _Reader.generator,
    "random": _Reader.random,
    "randomstate": _Reader.randomstate,
    "slice": lambda reader, node: slice(*reader.values(node)),
    "plain": lambda _, node: _plain_of_ours(node),
    "network": _Reader.network,
    "method": _Reader.method,
    "function": _Reader.function,
    "bytes": lambda _, node: base64.b64decode(node[1]),
    "range": lambda reader, node: range(*reader.values(node)),
    "family": lambda _, node: family_of(node[1]),
    "class": lambda _, node: _any_class(node[1], node[2]),
    "member": _member,
    "named": _named_tuple,
}
