"""Lazily imported public names (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`: `homes` has the module of each name.

    The package also gets a `__dir__`, so that `dir()` and `help()` list these names and no others.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    vars(sys.modules[package])["__dir__"] = lambda: sorted(homes)
    return find
