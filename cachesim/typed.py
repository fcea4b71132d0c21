"""Types for arbitrary values, and checked casts."""

from typing import Any, TypeAlias, TypeVar

from cachesim.errors import ContractError, InputError

Value: TypeAlias = Any
"""Value of an option, a rule's field or a file's entry."""

Json: TypeAlias = Any
"""A value of JSON or TOML; its reader knows the form."""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, a table of TOML."""

T = TypeVar("T")


def of_kind(kind: type[T], value: object) -> T:
    """The value, asserted to be of this class."""
    if not isinstance(value, kind):
        raise ContractError(f"{type(value).__name__} where only {kind.__name__} can be")
    return value


def check_whole(name: str, value: int | None, low: int, high: int | None = None) -> None:
    """Raise InputError for a given number outside its limits."""
    if value is not None and not (low <= value and (high is None or value <= high)):
        limits = f"from {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} is {value}; write a whole number {limits}")


def mapping(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def there_is(value: T | None) -> T:
    """The value, asserted to be not None."""
    if value is None:
        raise ContractError("nothing where something must be")
    return value
