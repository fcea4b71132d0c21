"""All causes and events of an engine, collected from its modules.

Every engine's package has a module `causes`, and modules with names in `events` whose classes
derive from `Event`, so that no list is needed.
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
    """The built-in engines, without registered ones."""
    return tuple(
        each for each in engines() if _package(each).startswith(f"{__name__.split('.')[0]}.")
    )


def causes_of(engine: str) -> tuple[Cause, ...]:
    """Every cause of an engine."""
    return causes_in(_package(engine))


def causes_in(package: str) -> tuple[Cause, ...]:
    """Every cause of an engine's package."""
    return declared(vars(import_module(f"{package}.causes")))


def events_of(engine: str) -> tuple[type[Event], ...]:
    """Every event class of an engine, in the order of their definition."""
    return events_in(_package(engine))


def events_in(package: str) -> tuple[type[Event], ...]:
    """Every event class of an engine's package."""
    inside = f"{package}."
    for module in walk_packages(import_module(inside[:-1]).__path__, inside):
        if module.name.endswith("events"):
            import_module(module.name)
    return tuple(each for each in _leaves(Event) if each.__module__.startswith(inside))


def _package(engine: str) -> str:
    return family_of(engine).package


def _leaves(cls: type[Event]) -> Iterator[type[Event]]:
    """The leaf classes; of the pair that `slots=True` creates, the last one."""
    found = {(each.__module__, each.__name__): each for each in cls.__subclasses__()}
    for each in found.values():
        if each.__subclasses__():
            yield from _leaves(each)
        else:
            yield each
