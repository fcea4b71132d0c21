"""Exceptions of the real package, raised where it raises them.

Each one is both part of our tree and the Python class that upstream's caller would see, so that a
server can take a dying worker as an outcome and still tell it from a bug of ours.
"""

from cachesim.errors import CachesimError


class UpstreamRaise(CachesimError):  # noqa: N818 - it is not an error of ours
    """The real package raises here what a class is called behind `Upstream`."""


class UpstreamTypeError(UpstreamRaise, TypeError):
    """A None where an array is wanted, and the like."""


class UpstreamAttributeError(UpstreamRaise, AttributeError):
    """A method or field that the object does not have."""


class UpstreamValueError(UpstreamRaise, ValueError):
    """Shapes that do not fit, arguments that cannot be taken."""


class UpstreamRuntimeError(UpstreamRaise, RuntimeError):
    """A call out of turn."""


class UpstreamNotImplementedError(UpstreamRaise, NotImplementedError):
    """An abstract method of the base class."""


class UpstreamKeyError(UpstreamRaise, KeyError):
    """A key that is not in the trie."""


class UpstreamIndexError(UpstreamRaise, IndexError):
    """An index that a sequence does not have, a queue that is empty."""


class UpstreamUnboundLocalError(UpstreamRaise):
    """A name that a loop without a round never gave a value."""


class UpstreamStopIteration(UpstreamRaise, StopIteration):
    """The first element of nothing was asked for."""


def name_of(error: BaseException) -> str:
    """The Python class that a caller of the real package would see."""
    name = type(error).__name__
    return name.removeprefix("Upstream") if isinstance(error, UpstreamRaise) else name
