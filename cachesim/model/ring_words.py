"""Words: integers modulo 2^64. Every operation wraps, none rounds, sums come in any order.

mix      a one-to-one scramble that neither sums nor products undo: the gate between layers
Powers   g^position: a rotation that is exact, undone by g^-position
fold     the chain s[i] = gate[i] * s[i-1] + input[i], all steps at once
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cachesim.units import Integers

Words: TypeAlias = NDArray[np.uint64]

MASK: Final = (1 << 64) - 1
"""What wraps a plain number as words wrap by themselves."""

SHORT: Final = 40
"""Steps of chains up to which a loop is quicker than dividing."""

SCRAMBLER: Final = 0x9E3779B97F4A7C15

# Arrays without dimensions: NumPy meets them sooner than its scalars, and these are everywhere.
ONE: Final[Words] = np.array(1, np.uint64)
_TWO: Final[Words] = np.array(2, np.uint64)
_THREE: Final[Words] = np.array(3, np.uint64)
_HALF: Final[Words] = np.array(32, np.uint64)
_SCRAMBLE: Final[Words] = np.array(SCRAMBLER, np.uint64)

DIGIT: Final = 16
"""Bits of one lookup; two of them reach every position that the real servers can number."""

_DIGIT: Final = np.array(DIGIT)
_LOWER: Final = np.array((1 << DIGIT) - 1)


def salt(seed: int, name: str, count: int = 1) -> Words:
    """Words that a seed and a name call for, (count,): what weights are to a float network."""
    drawn = (blake2b(f"{seed} {name} {i}".encode(), digest_size=8) for i in range(count))
    return np.array([int.from_bytes(each.digest(), "little") for each in drawn], np.uint64)


def mix(words: Words) -> Words:
    """Scramble words one to one: multiplication spreads upwards, the fold brings it down again."""
    words = words * _SCRAMBLE
    return words ^ (words >> _HALF)


def mixed(word: int) -> int:
    """`mix` of one word as a plain number, which is quicker than an array of one."""
    word = word * SCRAMBLER & MASK
    return word ^ (word >> 32)


def inverse(odd: Words) -> Words:
    """The words that odd words multiply to 1: five right bits to begin with, doubled four times."""
    guess = (odd * _THREE) ^ _TWO
    for _ in range(4):
        guess = guess * (_TWO - odd * guess)
    return guess


def fold(start: Words, gates: Words, inputs: Words) -> Words:
    """The states (S, n) of chains that begin at `start` (S,), with odd `gates`, (S, n).

    s[i] = gate[i] * s[i-1] + input[i], divided by the product of all gates up to i, is a running
    sum. Odd words have inverses, so the division is exact and the chain takes no loop.
    """
    if gates.size <= SHORT:
        return _one_by_one(start, gates, inputs)
    products = np.multiply.accumulate(gates, axis=1)
    sums = np.add.accumulate(inputs * inverse(products), axis=1)
    return products * (start[:, None] + sums)


def _one_by_one(start: Words, gates: Words, inputs: Words) -> Words:
    states = []
    for one, first in enumerate(start.tolist()):
        state = first
        for gate, word in zip(gates[one].tolist(), inputs[one].tolist(), strict=True):
            state = (gate * state + word) & MASK
            states.append(state)
    return np.array(states, np.uint64).reshape(gates.shape)


class Powers:
    """The powers of an odd word, for exponents of 32 bits with their sign."""

    def __init__(self, base: int) -> None:
        size = 1 << DIGIT
        low = np.multiply.accumulate(np.full(size, base, np.uint64))
        step = low[-1:]  # base^size
        up = np.multiply.accumulate(np.repeat(step, size // 2))
        down = np.multiply.accumulate(np.repeat(inverse(step), size // 2))
        self._low = np.concatenate([[ONE], low[:-1]])
        self._low_back = inverse(self._low)
        self._high = np.concatenate([[ONE], up[:-1], down[::-1]])  # from -1 back: negative digits

    def __call__(self, exponents: Integers) -> Words:
        """base^exponent, word by word: one lookup per digit, the upper one signed."""
        product: Words = self._low[exponents & _LOWER] * self._high[exponents >> _DIGIT]
        return product

    def there(self, positions: Integers, highest: int) -> Words:
        """base^position, word by word; no position is above the highest or negative."""
        return self._low[positions] if highest >> DIGIT == 0 else self(positions)

    def back(self, positions: Integers, highest: int) -> Words:
        """base^-position, likewise."""
        return self._low_back[positions] if highest >> DIGIT == 0 else self(-positions)

    def of(self, exponent: int) -> int:
        """base^exponent of one exponent, as a plain number."""
        low: int = self._low.item(exponent & ((1 << DIGIT) - 1))
        high: int = self._high.item(exponent >> DIGIT)
        return low * high & MASK


@lru_cache(maxsize=8)
def powers(base: int) -> Powers:
    """The tables of a base; networks share them."""
    return Powers(base)
