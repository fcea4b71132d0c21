"""Types for values of any form, and checked casts of them."""

from typing import Any, TypeAlias, TypeVar

from cachesim.errors import ContractError

Value: TypeAlias = Any
"""Value of an option, a rule's field or an entry of a file, each of its own type."""

Json: TypeAlias = Any
"""A value that JSON or TOML can hold, of a form that only its reader knows."""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, a table of TOML."""

T = TypeVar("T")


def of_kind(kind: type[T], value: object) -> T:
    """The value, which can only be of this class; if it is not, that is a bug of ours."""
    if not isinstance(value, kind):
        msg = f"{type(value).__name__} where only {kind.__name__} can be"
        raise ContractError(msg)
    return value


def mapping(value: object) -> JsonObject:
    """The value, if it is an object of JSON; else an empty one."""
    return value if isinstance(value, dict) else {}


def there_is(value: T | None) -> T:
    """The value, which can only be there; if it is not, that is a bug of ours."""
    if value is None:
        msg = "nothing where something must be"
        raise ContractError(msg)
    return value
