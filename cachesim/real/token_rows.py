"""Rows of tokens as text: blank-separated pieces, `5` one token, `5-9` the tokens 5 to 9."""

from collections.abc import Sequence


def spell(tokens: Sequence[int]) -> str:
    """Tokens as text: `5-9` for a run."""
    out, i = [], 0
    while i < len(tokens):
        j = i
        while j + 1 < len(tokens) and tokens[j + 1] == tokens[j] + 1:
            j += 1
        out.append(str(tokens[i]) if j == i else f"{tokens[i]}-{tokens[j]}")
        i = j + 1
    return " ".join(out)


def unspell(text: str) -> list[int]:
    """Read what `spell` wrote."""
    out: list[int] = []
    for piece in text.split():
        first, dash, last = piece.partition("-")
        out.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    return out
