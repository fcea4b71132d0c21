"""Token rows as text, as vectors and workers write them: `5`, `5-9`, `0*250`."""

from collections.abc import Sequence


def read_row(text: str) -> list[int]:
    """The tokens of one row."""
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
    """The shortest such text: repetitions and rising runs are drawn together."""
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
