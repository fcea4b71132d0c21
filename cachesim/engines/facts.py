"""All causes and events of an engine, found where each engine declares its own.

Every engine's package has a module `causes`, and modules whose names end in `events` that derive
from `Event`: a tool that lists them needs no list.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

from cachesim.engines.causes import Cause, declared
from cachesim.engines.events import Event
from cachesim.engines.family import FAMILIES, family_of


def engines() -> tuple[str, ...]:
    """The names of all engines."""
    return tuple(FAMILIES)


def shipped() -> tuple[str, ...]:
    """The engines that come with cachesim: others may be registered beside them."""
    return tuple(
        each for each in engines() if _package(each).startswith(f"{__name__.split('.')[0]}.")
    )


def causes_of(engine: str) -> tuple[Cause, ...]:
    """Every reason for which an engine reuses less."""
    return declared(vars(import_module(f"{_package(engine)}.causes")))


def events_of(engine: str) -> tuple[type[Event], ...]:
    """Every event class of an engine, in the order of their definition."""
    inside = f"{_package(engine)}."
    for module in walk_packages(import_module(inside[:-1]).__path__, inside):
        if module.name.endswith("events"):
            import_module(module.name)
    return tuple(each for each in _leaves(Event) if each.__module__.startswith(inside))


def _package(engine: str) -> str:
    """`cachesim.engines.llamacpp`: where an engine lives."""
    return family_of(engine).room


def _leaves(cls: type[Event]) -> Iterator[type[Event]]:
    """The classes that nothing is derived from; of the twins that `slots=True` makes, the last."""
    found = {(each.__module__, each.__name__): each for each in cls.__subclasses__()}
    for each in found.values():
        if each.__subclasses__():
            yield from _leaves(each)
        else:
            yield each
