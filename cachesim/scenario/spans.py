"""Spans: named runs of tokens, drawn from the seed by a generator of our own.

The generator is a counter put through the finaliser of splitmix64, so that no version of any
library changes a token: token `i` of a span depends on the seed, the span's name and `i` alone.
The first token of each span is moved on until it is no other span's first: prompts that continue
with different spans part exactly where the spans begin.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np

from cachesim.engines.byte_tokenizer import FIRST_WORD, THINK_MARKS, ByteTokenizer
from cachesim.units import Array, Token, Tokens, as_tokens

Word = TypeVar("Word", int, Array)

_WORD: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15


def mixed(value: Word) -> Word:
    """A 64-bit word in which every bit of the value has its say (splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    word: Word = value ^ value >> 31
    return word


def stream_of(seed: int, name: str) -> int:
    """Where the counter of a name begins."""
    start = mixed(seed & _WORD)
    for byte in name.encode():
        start = mixed((start ^ byte) + _STEP & _WORD)
    return start


def drawn(seed: int, name: str, length: int, low: int, high: int) -> list[int]:
    """`length` tokens in `[low, high)` for one name."""
    steps = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_STEP)
    words = mixed(steps + np.uint64(stream_of(seed, name)))
    tokens: list[int] = (words % np.uint64(high - low) + np.uint64(low)).tolist()
    return tokens


def _plain_tokens(vocabulary: int, *, thinks: bool = False) -> range:
    """The tokens that mean nothing to a server: no byte, no mark, no role."""
    if vocabulary <= FIRST_WORD:
        return range(vocabulary)
    return range(FIRST_WORD, min(vocabulary, THINK_MARKS[0]) if thinks else vocabulary)


def draw_spans(
    spans: Mapping[str, int | str | tuple[int, ...]],
    *,
    seed: int,
    tokenizer: ByteTokenizer,
    vocabulary: int,
) -> dict[str, Tokens]:
    """The tokens of every span, drawn spans in the order of the file."""
    plain = _plain_tokens(vocabulary, thinks=tokenizer.template.thinks)
    firsts: set[int] = set()
    found: dict[str, Tokens] = {}
    for name, value in spans.items():
        if isinstance(value, str):
            found[name] = tokenizer.encode(value)
        elif isinstance(value, int):
            tokens = drawn(seed, name, value, plain.start, plain.stop)
            tokens[0] = _free(tokens[0], firsts, plain)
            firsts.add(tokens[0])
            found[name] = as_tokens(tokens)
        else:
            found[name] = tuple(map(Token, value))
    return found


def _free(token: int, taken: set[int], plain: range) -> int:
    while token in taken and len(taken) < len(plain):
        token = token + 1 if token + 1 in plain else plain.start
    return token
