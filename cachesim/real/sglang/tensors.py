"""What SGLang's scheduler asks of torch, on NumPy: tensors of whole numbers, on a CPU.

    a[1:]  a[i]     views of the same memory, as torch's
    a[mask]         copies
    cat, unique     new tensors

A slice of a free list, one slot of it, or a row of the table of slots: nothing here computes a
model. A name of torch that is not here is an error once the release is imported, not an empty
answer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from cachesim.real.empty_modules import EmptyModule, Nothing

Real = Any
Array = np.ndarray[Any, Any]

ABSENT: Final = frozenset({"npu", "_npu", "musa", "hpu", "mps"})
"""What torch has on other machines only: releases ask whether it is there."""

DTYPES: Final = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int": "int32",
    "int64": "int64",
    "long": "int64",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "half": "float16",
    "bfloat16": "float16",
    "float32": "float32",
    "float": "float32",
    "float64": "float64",
    "float8_e5m2": "V1",
    "float8_e4m3fn": "V1",
    "float8_e4m3fnuz": "V1",
    "float8_e5m2fnuz": "V1",
}


class Device:
    """The only one there is."""

    type = "cpu"
    index = None

    def __init__(self, *_: Real) -> None:
        pass

    def __str__(self) -> str:
        return "cpu"

    def __eq__(self, other: object) -> bool:
        return str(other) == "cpu"

    def __hash__(self) -> int:
        return hash("cpu")


class Tensor(np.ndarray[Any, Any]):
    """An array with torch's methods, which `_METHODS` brings."""

    def __getitem__(self, key: Real) -> Real:
        found: Real = super().__getitem__(key)
        if isinstance(found, np.ndarray):
            return found
        return super().__getitem__((*key, ...) if isinstance(key, tuple) else (key, ...))

    def __iter__(self) -> Iterator[Real]:
        return (self[index] for index in range(len(self)))


def tensor(data: Real, dtype: Real = None, device: Real = None, **_: Real) -> Real:
    """A new tensor."""
    del device
    made = np.array(data, dtype=dtype)
    if dtype is None and made.dtype == np.float64:
        made = made.astype(np.float32)
    return made.view(Tensor)


def _made(array: Real) -> Real:
    return np.asarray(array).view(Tensor)


def _plain(array: Real) -> Array:
    return np.asarray(array)


def _shape(shape: Sequence[Real]) -> Sequence[int]:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape


def zeros(
    *shape: Real,
    size: Real = None,
    dtype: Real = None,
    device: Real = None,
    pin_memory: Real = None,
) -> Real:
    """Zeros, for what is empty too."""
    del device, pin_memory
    return _made(np.zeros(_shape(shape if size is None else (size,)), dtype or np.float32))


def ones(*shape: Real, dtype: Real = None, device: Real = None) -> Real:
    """Ones."""
    del device
    return _made(np.ones(_shape(shape), dtype or np.float32))


def full(shape: Real, fill_value: Real, *, dtype: Real = None, device: Real = None) -> Real:
    """One value everywhere."""
    del device
    return _made(np.full(shape, fill_value, dtype))


def arange(*given: Real, dtype: Real = None, device: Real = None) -> Real:
    """Numbers in order."""
    del device
    return _made(np.arange(*given, dtype=dtype))


def cat(parts: Sequence[Real], dim: int = 0) -> Real:
    """One after the other, in new memory."""
    return _made(np.concatenate([_plain(part) for part in parts], axis=dim))


def stack(parts: Sequence[Real], dim: int = 0) -> Real:
    """Side by side."""
    return _made(np.stack([_plain(part) for part in parts], axis=dim))


def where(test: Real, *rest: Real) -> Real:
    """One or the other."""
    if rest:
        return _made(np.where(_plain(test), *rest))
    return tuple(_made(each) for each in np.where(_plain(test)))


def sort(given: Real) -> Real:
    """Values and where they were."""
    order = np.argsort(_plain(given), kind="stable")
    return _made(_plain(given)[order]), _made(order)


def searchsorted(ends: Real, values: Real, *, right: bool = False) -> Real:
    """Where values belong."""
    side: Real = "right" if right else "left"
    return _made(np.searchsorted(_plain(ends), _plain(values), side=side))


FUNCTIONS: Final[dict[str, Callable[..., Real]]] = {
    "tensor": tensor,
    "zeros": zeros,
    "empty": zeros,
    "ones": ones,
    "full": full,
    "arange": arange,
    "cat": cat,
    "concat": cat,
    "stack": stack,
    "where": where,
    "sort": sort,
    "searchsorted": searchsorted,
    "empty_like": lambda like, **named: zeros(like.shape, dtype=named.get("dtype") or like.dtype),
    "zeros_like": lambda like, **named: zeros(like.shape, dtype=named.get("dtype") or like.dtype),
    "ones_like": lambda like, **named: ones(like.shape, dtype=named.get("dtype") or like.dtype),
    "from_numpy": _made,
    "unique": lambda given: _made(np.unique(_plain(given))),
    "sum": lambda given: _made(_plain(given).sum()),
    "all": lambda given: _made(_plain(given).all()),
    "any": lambda given: _made(_plain(given).any()),
    "cumsum": lambda given, dim: _made(np.cumsum(_plain(given), axis=dim)),
    "isin": lambda given, among: _made(np.isin(_plain(given), _plain(among))),
    "clamp": lambda given, min=None, max=None: np.clip(given, min, max),
    "gather": lambda given, dim, index: _made(np.take_along_axis(_plain(given), index, dim)),
    "equal": lambda one, other: bool(np.array_equal(one, other)),
    "is_tensor": lambda given: isinstance(given, Tensor),
    "get_num_threads": lambda: 1,
    "no_grad": lambda *_: lambda function: function,
    "inference_mode": lambda *_: lambda function: function,
    "iinfo": np.iinfo,
    "finfo": lambda dtype: np.finfo(np.float16 if dtype.kind == "V" else dtype),
}
"""Functions of `torch`."""


def _to(self: Real, *wanted: Real, dtype: Real = None, **_: Real) -> Real:
    for each in (dtype, *wanted):
        kind = each.dtype if isinstance(each, np.ndarray) else each
        if isinstance(kind, np.dtype):
            return self if self.dtype == kind else self.astype(kind)
    return self


def _view(self: Real, *shape: Real) -> Real:
    if len(shape) == 1 and isinstance(shape[0], type | np.dtype):
        return np.ndarray.view(self, *shape)
    return self.reshape(*shape)


def _stride(self: Real, dim: int | None = None) -> Real:
    steps = tuple(step // self.itemsize for step in self.strides)
    return steps if dim is None else steps[dim]


def _split(self: Real, sizes: Real, dim: int = 0) -> Real:
    ends = range(sizes, len(self), sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return tuple(np.split(self, list(ends), axis=dim))


def _changed(change: Callable[..., None]) -> Callable[..., Real]:
    def method(self: Real, *given: Real, **named: Real) -> Real:
        change(self, *given, **named)
        return self

    return method


def _set(self: Real, value: Real, **_: Real) -> None:
    self[...] = value


_size: Final[Callable[[Real], int]] = vars(np.ndarray)["size"].__get__

_METHODS: Final[dict[str, Callable[..., Real]]] = {
    "numel": lambda self: int(_size(self)),
    "size": lambda self, dim=None: self.shape if dim is None else self.shape[dim],
    "dim": lambda self: self.ndim,
    "data_ptr": lambda self: self.ctypes.data,
    "stride": _stride,
    "element_size": lambda self: self.itemsize,
    "clone": lambda self: self.copy(),
    "detach": lambda self: self,
    "cpu": lambda self: self,
    "cuda": lambda self, *_, **__: self,
    "contiguous": lambda self: self,
    "pin_memory": lambda self, *_, **__: self,
    "to": _to,
    "type": _to,
    "long": lambda self: _to(self, np.dtype("int64")),
    "int": lambda self: _to(self, np.dtype("int32")),
    "bool": lambda self: _to(self, np.dtype("bool")),
    "numpy": lambda self: np.ndarray.view(self, np.ndarray),
    "view": _view,
    "unsqueeze": np.expand_dims,
    "split": _split,
    "index_select": lambda self, dim, index: np.take(self, index, axis=dim),
    "clamp": lambda self, min=None, max=None: np.clip(self, min, max),
    "clamp_": _changed(lambda self, min=None, max=None: _set(self, np.clip(self, min, max))),
    "add_": _changed(lambda self, other: _set(self, self + other)),
    "sub_": _changed(lambda self, other: _set(self, self - other)),
    "copy_": _changed(_set),
    "fill_": _changed(_set),
    "zero_": _changed(lambda self: _set(self, 0)),
    "index_fill_": _changed(
        lambda self, dim, index, value: self.__setitem__((slice(None),) * dim + (index,), value)
    ),
}


class Stream:
    """Work in order; here everything is done when it is asked for."""

    def __init__(self, *_: Real, **__: Real) -> None:
        pass

    def synchronize(self, *_: Real) -> None:
        """Nothing is under way."""

    wait_stream = wait_event = record_event = synchronize


class Event:
    """A copy between device and host: done after `lag` looks, or when it is waited for."""

    lag = 0

    def __init__(self, *_: Real, **__: Real) -> None:
        self.looks = 0

    def record(self, *_: Real) -> None:
        """The copy was submitted."""
        self.looks = self.lag

    def query(self) -> bool:
        """Whether it is done."""
        self.looks -= 1
        return self.looks < 0

    def wait(self, *_: Real) -> None:
        """Until it is done."""

    synchronize = wait


class Torch(EmptyModule):
    """`torch`: what is not here is empty while the release is imported, and an error afterwards."""

    sealed = False

    def __getattr__(self, name: str) -> Real:
        if name in ABSENT or self.sealed:
            msg = f"torch.{name} is not among what the scheduler needs"
            raise AttributeError(msg)
        return super().__getattr__(name)


def make() -> dict[str, EmptyModule]:
    """`torch` and its modules, by name."""
    for name, value in {"device": Device(), "is_cuda": False, **_METHODS}.items():
        setattr(Tensor, name, value)
    torch = Torch("torch")
    vars(torch).update(FUNCTIONS)
    vars(torch).update({name: np.dtype(kind) for name, kind in DTYPES.items()})
    vars(torch).update(Tensor=Tensor, device=Device, __version__="2.9.0")
    known: dict[str, dict[str, Real]] = {
        "cuda": {"is_available": lambda: False, "device_count": lambda: 0},
        "version": dict.fromkeys(("hip", "cuda", "musa", "xpu")),
        "distributed": {
            "is_initialized": lambda: False,
            "is_available": lambda: False,
            "get_world_size": lambda **_: 1,
        },
        "xpu": {"is_available": lambda: False},
        "accelerator": {"current_accelerator": lambda **_: None},
        "cpu": {
            "Event": Event,
            "Stream": Stream,
            "stream": lambda *_: Nothing(),
            "current_stream": Stream,
        },
        "nn": {},
        "profiler": {"record_function": lambda *_: Nothing()},
    }
    made: dict[str, EmptyModule] = {"torch": torch}
    for name, values in known.items():
        made[f"torch.{name}"] = module = EmptyModule(f"torch.{name}")
        vars(module).update(values)
        setattr(torch, name, module)
    vars(torch).update(get_device_module=lambda *_: made["torch.cpu"])
    return made


def install() -> Real:
    """Make `import torch` find these."""
    made = make()
    sys.modules.update(made)
    return made["torch"]
