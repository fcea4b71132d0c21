"""Rows of tokens as text: blank-separated pieces, `5` one token, `5-9` the tokens 5 to 9, `0*250` a
token 250 times.
"""

from collections.abc import Sequence


def spell(tokens: Sequence[int]) -> str:
    """Tokens as text: runs of two or more as one piece."""
    pieces, at = [], 0
    while at < len(tokens):
        last = at + _run(tokens, at, 1) - 1
        pieces.append(str(tokens[at]) if last == at else f"{tokens[at]}-{tokens[last]}")
        at = last + 1
    return " ".join(pieces)


def read_row(text: str) -> list[int]:
    """Tokens of a row that `spell` or `write_row` wrote."""
    tokens: list[int] = []
    for piece in text.split():
        if "*" in piece:
            token, count = piece.split("*")
            tokens += [int(token)] * int(count)
        elif "-" in piece:
            first, last = piece.split("-")
            tokens += range(int(first), int(last) + 1)
        else:
            tokens.append(int(piece))
    return tokens


def write_row(tokens: Sequence[int]) -> str:
    """Tokens as text: repetitions, and runs of three or more, as one piece."""
    pieces, at = [], 0
    while at < len(tokens):
        same = _run(tokens, at, 0)
        rising = _run(tokens, at, 1)
        if same > 1:
            pieces.append(f"{tokens[at]}*{same}")
        elif rising > 2:
            pieces.append(f"{tokens[at]}-{tokens[at] + rising - 1}")
        else:
            pieces.append(str(tokens[at]))
            rising = 1
        at += max(same, rising)
    return " ".join(pieces)


def _run(tokens: Sequence[int], start: int, step: int) -> int:
    end = start + 1
    while end < len(tokens) and tokens[end] == tokens[end - 1] + step:
        end += 1
    return end - start
