"""Exceptions of the real package, raised where it raises them.

Each one is both part of our tree and the Python class that upstream's caller would see, so that a
server can take a dying worker as an outcome and still tell it from a bug of ours.
"""

from typing import ClassVar

from cachesim.errors import CachesimError


class UpstreamRaise(CachesimError):  # noqa: N818 - it is not an error of ours
    """The real package raises here; `python_name` is the class that its caller sees."""

    python_name: ClassVar[str] = "Exception"


class UpstreamTypeError(UpstreamRaise, TypeError):
    """A None where an array is wanted, and the like."""

    python_name = "TypeError"


class UpstreamAttributeError(UpstreamRaise, AttributeError):
    """A method or field that the object does not have."""

    python_name = "AttributeError"


class UpstreamValueError(UpstreamRaise, ValueError):
    """Shapes that do not fit, arguments that cannot be taken."""

    python_name = "ValueError"


class UpstreamRuntimeError(UpstreamRaise, RuntimeError):
    """A call out of turn."""

    python_name = "RuntimeError"


class UpstreamNotImplementedError(UpstreamRaise, NotImplementedError):
    """An abstract method of the base class."""

    python_name = "NotImplementedError"


class UpstreamKeyError(UpstreamRaise, KeyError):
    """A key that is not in the trie."""

    python_name = "KeyError"


class UpstreamIndexError(UpstreamRaise, IndexError):
    """An index that a sequence does not have, a queue that is empty."""

    python_name = "IndexError"


class UpstreamUnboundLocalError(UpstreamRaise):
    """A name that a loop without a round never gave a value."""

    python_name = "UnboundLocalError"


class UpstreamStopIteration(UpstreamRaise, StopIteration):
    """The first element of nothing was asked for."""

    python_name = "StopIteration"


def name_of(error: BaseException) -> str:
    """The Python class that a caller of the real package would see."""
    return error.python_name if isinstance(error, UpstreamRaise) else type(error).__name__
