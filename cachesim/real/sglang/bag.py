"""Small objects that stand where the release expects somebody; runs in the worker."""

import inspect
from typing import Any

Real = Any


class Bag:
    """An object with some values; what nobody set is None."""

    def __init__(self, **values: Real) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Told(Bag):
    """Somebody who is only told things."""

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def fitting(made: Real, **values: Real) -> Real:
    """Call with those arguments that this release knows."""
    known = set(inspect.signature(made).parameters)
    return made(**{name: value for name, value in values.items() if name in known})
