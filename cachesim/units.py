"""Types of numbers shared by all packages.

A position names one token; a count says how many there are. `Count(n)` covers
`Pos(0) .. Pos(n - 1)`, and the two never mix: the classic off-by-one of this field compares a
position with a count.
"""

from typing import TYPE_CHECKING, Any, Final, NewType, TypeAlias, cast

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Token = NewType("Token", int)
"""An entry of the vocabulary."""

Pos = NewType("Pos", int)
"""The index of one token in its sequence, from 0."""

Count = NewType("Count", int)
"""Number of tokens."""

SeqId = NewType("SeqId", int)
"""The id of one history in a memory."""

SlotId = NewType("SlotId", int)
"""The index of a server's slot."""

NO_POS: Final = Pos(-1)
"""The position of an empty sequence."""

Tokens: TypeAlias = tuple[Token, ...]

if TYPE_CHECKING:
    Array: TypeAlias = NDArray[Any]
    Integers: TypeAlias = NDArray[np.int64]
else:  # NumPy is not loaded for a name: tables of releases and options are read without it
    Array = Integers = Any


def as_tokens(ids: "tuple[int, ...] | list[int] | range") -> Tokens:
    """Read plain integers as a prompt."""
    return cast("Tokens", tuple(ids))  # a token is an integer: nothing is made of it
