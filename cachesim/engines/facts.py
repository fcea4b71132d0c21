"""All causes and events of an engine, collected from its modules.

They are in the `vocabulary` of every engine's package, a module or a folder of modules, so that no
list is needed.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from cachesim.engines.causes import Cause, declared
from cachesim.engines.events import Event
from cachesim.engines.family import FAMILIES, family_of


def engines() -> tuple[str, ...]:
    """The names of all engines."""
    return tuple(FAMILIES)


def shipped() -> tuple[str, ...]:
    """The built-in engines, without registered ones."""
    return tuple(
        engine for engine in engines() if _package(engine).startswith(f"{__name__.split('.')[0]}.")
    )


def causes_of(engine: str) -> tuple[Cause, ...]:
    """Every cause of an engine."""
    return causes_in(_package(engine))


def causes_in(package: str) -> tuple[Cause, ...]:
    """Every cause of an engine's package."""
    return tuple(cause for module in _vocabulary(package) for cause in declared(vars(module)))


def events_of(engine: str) -> tuple[type[Event], ...]:
    """Every event class of an engine, in the order of their definition."""
    return events_in(_package(engine))


def events_in(package: str) -> tuple[type[Event], ...]:
    """Every event class of an engine's package."""
    _vocabulary(package)
    return tuple(leaf for leaf in _leaves(Event) if leaf.__module__.startswith(f"{package}."))


def _vocabulary(package: str) -> list[ModuleType]:
    home = import_module(f"{package}.vocabulary")
    below = iter_modules(getattr(home, "__path__", ()), f"{home.__name__}.")
    return [home, *(import_module(module.name) for module in below)]


def _package(engine: str) -> str:
    return family_of(engine).package


def _leaves(cls: type[Event]) -> Iterator[type[Event]]:
    """The leaf classes; of the pair that `slots=True` creates, the last one."""
    below = {
        (subclass.__module__, subclass.__name__): subclass for subclass in cls.__subclasses__()
    }
    for kind in below.values():
        if kind.__subclasses__():
            yield from _leaves(kind)
        else:
            yield kind
