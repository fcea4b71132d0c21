"""`msgspec.Struct` in plain Python, for releases whose settings and actions are structs.

What a struct does beyond its fields (encoding, checks of types) is not there: the scheduler makes
structs, reads them and replaces fields.
"""

import copy
import dataclasses
import inspect
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachesim.real.empty_modules import EmptyModule

Real = Any


class UnsetType:
    """The type of `UNSET`: false."""

    def __bool__(self) -> bool:
        return False


UNSET: Final = UnsetType()
NODEFAULT: Final = dataclasses.MISSING


def field(*, default: Real = NODEFAULT, default_factory: Real = NODEFAULT, **_: Real) -> Real:
    """A field with a default."""
    if default_factory is not NODEFAULT:
        return dataclasses.field(default_factory=default_factory)
    return dataclasses.field(default=default)


class Struct:
    """Fields from annotations, with an `__init__`; lists and the like are copied for each."""

    __struct_fields__: tuple[str, ...] = ()

    def __init_subclass__(cls, *, kw_only: bool = False, **_: Real) -> None:
        """Make the fields."""
        for name in inspect.get_annotations(cls):
            held = cls.__dict__.get(name)
            if isinstance(held, list | dict | set):
                setattr(cls, name, dataclasses.field(default_factory=_copies(held)))
        dataclasses.dataclass(kw_only=kw_only, eq=False)(cls)
        made: Real = cls
        cls.__struct_fields__ = tuple(each.name for each in dataclasses.fields(made))


def _copies(held: Real) -> Real:
    return lambda: copy.copy(held)


def fields(struct: Real) -> list[Real]:
    """What is known of each field."""
    made = struct if isinstance(struct, type) else type(struct)
    known: Real = made
    return [
        types.SimpleNamespace(
            name=each.name,
            encode_name=each.name,
            type=each.type,
            default=each.default,
            default_factory=each.default_factory,
        )
        for each in dataclasses.fields(known)
    ]


def defstruct(
    name: str,
    members: Sequence[Sequence[Real]],
    *,
    bases: tuple[type, ...] = (),
    namespace: Mapping[str, Real] | None = None,
    **options: Real,
) -> type:
    """A struct made at run time."""
    body: dict[str, Real] = dict(namespace or {})
    body["__annotations__"] = {member[0]: member[1] for member in members}
    body |= {member[0]: member[2] for member in members if len(member) > 2}
    return types.new_class(name, bases or (Struct,), options, lambda made: made.update(body))


def asdict(struct: Struct) -> dict[str, Real]:
    """Fields by name."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def install() -> None:
    """Make `import msgspec` find these."""
    package, inner = EmptyModule("msgspec"), EmptyModule("msgspec.structs")
    for each in (Struct, UnsetType, field, defstruct):
        setattr(package, each.__name__, each)
    vars(package).update(UNSET=UNSET, NODEFAULT=NODEFAULT, structs=inner)
    vars(inner).update(fields=fields, asdict=asdict, replace=dataclasses.replace)
    sys.modules["msgspec"], sys.modules["msgspec.structs"] = package, inner
