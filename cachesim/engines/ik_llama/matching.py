"""The common prefix of two token lists: by token, then by text (`get_common_prefix`)."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.byte_tokenizer import BYTES, FIRST_BYTE, ByteTokenizer
from cachesim.engines.rope import LONGEST, as_rope
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Token

SPACES: Final = frozenset(" \n\r")

NUMERALS: Final = frozenset("[0123456789]")
"""Characters in the text of an unknown token."""

TextOf = Callable[[Token], str]
"""The text of one token."""


class Match(NamedTuple):
    """The numbers of tokens of the left and of the right list in the common prefix."""

    left: Count
    right: Count


def common_prefix(
    left: Sequence[Token], right: Sequence[Token], text_of: TextOf, *, exact: bool = False
) -> Match:
    """Match by token, then the tails by text; (`server_tokens::get_common_prefix`).

    A token of a tail counts when it lies wholly inside the equal text and its end coincides with
    the end of a token on the other side; the search goes from the ends, so that of several tokens
    without visible text the last one counts.
    """
    same = get_common_prefix(left, right)
    if same in (len(left), len(right)):
        return Match(same, same)
    if _apart(text_of(left[same]), text_of(right[same])):
        return Match(same, same)
    tails = list(map(text_of, left[same:])), list(map(text_of, right[same:]))
    reached = _exact_reach(*tails) if exact else _tolerant_reach(*tails)
    ends = [_ends(tail, limit, exact=exact) for tail, limit in zip(tails, reached, strict=True)]
    shared = set(ends[0]) & set(ends[1])
    if not shared:
        return Match(same, same)
    best = max(shared)
    # bisect_right: of tokens that add no visible text, the last one is counted
    return Match(
        Count(same + bisect_right(ends[0], best)), Count(same + bisect_right(ends[1], best))
    )


def _apart(one: str, other: str) -> bool:
    return not (one.startswith(other) or other.startswith(one) or SPACES & {*one, *other})


def _exact_reach(left: list[str], right: list[str]) -> tuple[int, int]:
    one, other = "".join(left), "".join(right)
    reach = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        reach += 1
    return reach, reach


def _tolerant_reach(left: list[str], right: list[str]) -> tuple[int, int]:
    """Characters matched on each side when white space may be missing or differ.

    Upstream: `get_common_prefix`.
    """
    one, other = "".join(left), "".join(right)
    i = j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        if a == b or (a in SPACES and b in SPACES):
            i, j = i + 1, j + 1
        elif a in SPACES:
            i += 1
        elif b in SPACES:
            j += 1
        else:
            break
    return i, j


def _ends(tail: list[str], reach: int, *, exact: bool) -> list[int]:
    """Cumulative lengths of the tokens that lie fully inside the first `reach` characters."""
    whole = list(accumulate(len(text) for text in tail))
    inside = bisect_right(whole, reach)
    if exact:
        return whole[:inside]
    return list(accumulate(sum(c not in SPACES for c in text) for text in tail[:inside]))


def discard(tokens: Sequence[Token], keep: int, count: int) -> Sequence[Token]:
    """The list without [keep, keep + count); a range that reaches its end is left in.

    Follows `server_tokens::discard_n_tokens`.
    """
    if count <= 0 or keep + count >= len(tokens):
        return tokens
    return [*tokens[:keep], *tokens[keep + count :]]


def similarity(left: Sequence[Token], right: Sequence[Token], text_of: TextOf) -> np.float32:
    """The Dice ratio of two lists, from the right-hand count (`get_tokens_similarity`)."""
    total = len(left) + len(right)
    if total == 0:
        return np.float32(0)
    shared = common_prefix(left, right, text_of).right
    return np.float32(2 * shared) / np.float32(total)


def kept_fraction(entry: Sequence[Token], prompt: Sequence[Token], text_of: TextOf) -> np.float32:
    """The kept fraction of `entry`: left-hand count by length (`get_cached_tokens_similarity`)."""
    if not entry:
        return np.float32(0)
    return np.float32(common_prefix(entry, prompt, text_of).left) / np.float32(len(entry))


def without_reasoning(
    tokens: Sequence[Token], tags: tuple[str, str] | None, text_of: TextOf
) -> Sequence[Token]:
    """Drop the tokens of closed reasoning blocks (`get_tokens_exclude_think`).

    `tags` None: exclusion is off. An unclosed block is kept, and the token after a block always
    stays.
    """
    if tags is None or not tokens:
        return tuple(tokens)
    if _all_unknown(tokens) and not {*tags[0]} <= NUMERALS:
        return tokens  # their texts are numerals, so no tag is among them
    texts = list(map(text_of, tokens))
    blocks = _blocks("".join(texts), *tags)
    if not blocks:
        return tuple(tokens)
    kept, start, block = [], 0, 0
    for token, text in zip(tokens, texts, strict=True):
        while block < len(blocks) and start >= blocks[block][1]:
            block += 1
        inside = block < len(blocks) and blocks[block][0] <= start < blocks[block][1]
        if not inside:
            kept.append(token)
        start += len(text)
    return tuple(kept)


def _all_unknown(tokens: Sequence[Token]) -> bool:
    rope = as_rope(tokens)
    if rope is not None:
        return all(text for text, _, _ in rope.runs)
    return min(tokens) >= LONGEST


def _blocks(text: str, opening: str, closing: str) -> list[tuple[int, int]]:
    """Character ranges of closed blocks, each start paired with the first later end.

    Upstream: `get_common_prefix`.
    """
    blocks: list[tuple[int, int]] = []
    at = 0
    while True:
        start = text.find(opening, at)
        if start < 0:
            return blocks
        end = text.find(closing, start + len(opening))
        if end < 0:
            return blocks
        end += len(closing)
        blocks.append((start, end))
        at = end


class _Texts(dict[Token, str]):
    """The texts of the known tokens; that of an unknown one is its number."""

    def __missing__(self, token: Token) -> str:
        return f"[{token}]"


@cache
def texts(chat_template: str) -> TextOf:
    """Token texts under a chat template; a byte is one character, an unknown token its number."""
    of_bytes = {Token(FIRST_BYTE + byte): chr(byte) for byte in range(BYTES)}
    return _Texts(of_bytes | ByteTokenizer(chat_template).texts).__getitem__
