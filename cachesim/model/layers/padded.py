"""Recurrent layers over rows of which some are padding, as batches on a real server hold them.

The fold of a set's tokens is the plain one, row for row and bit for bit, as if the padding were not
there. What is *kept* is upstream's business: the convolution's rows from where it believes the
tokens to end, and of a chunked scan whatever `Padding.endings` says.
"""

from typing import Protocol

import numpy as np

from cachesim.model.store import Ending, Padding
from cachesim.units import Array, Integers


class Scan(Protocol):
    """Some rows of one set, folded into a state (1, n): what each reads, and the state after."""

    def __call__(self, rows: Integers, state: Array) -> tuple[Array, Array]:
        """Rows must not be empty."""
        ...


def masked(rows: Array, padding: Padding | None) -> Array:
    """A convolution's new rows (S, L, C), zeros where they are padding."""
    return rows if padding is None else np.where(padding.real[..., None], rows, 0)


def kept_rows(joined: Array, taps: int, padding: Padding) -> Array:
    """The convolution's rows to be carried on, (S, 1, (k - 1) * C): those before `conv_ends`.

    [ carried: k - 1 | rows ]      an end of e keeps [e, e + k - 1) of both together
    """
    sets, count = joined.shape[0], joined.shape[1] - taps + 1
    ends = np.full(sets, count)
    if padding.conv_ends is not None:
        ends = np.clip(padding.conv_ends, 0, count)
    kept = [row[end : end + taps - 1] for row, end in zip(joined, ends, strict=True)]
    return np.stack(kept).reshape(sets, 1, -1)


def fold_tokens(y: Array, real: Array, state: Array, scan: Scan) -> Array:
    """The state (1, n) of a layer without chunks: other rows than tokens see it and leave it."""
    edges = np.flatnonzero(np.diff(real)) + 1
    for rows in np.split(np.arange(len(real)), edges):
        if real[rows[0]]:
            y[rows], state = scan(rows, state)
        else:
            for row in rows:
                y[row], _ = scan(np.array([row]), state)
    return state


def fold_chunk(y: Array, ending: Ending, state: Array, scan: Scan, fades: Array) -> Array:
    """The state (1, n) that is kept of one chunk of a chunked scan; its tokens read into `y`.

    kept = fold of `folded` from nothing + `undecayed` + former state, decayed by every row of them
    and of `fading`.   `fades` (L, n) is what each row multiplies the state by.
    """
    tokens = np.sort(np.concatenate((ending.folded, ending.undecayed, ending.lost)))
    plain, nothing = state, np.zeros_like(state)
    if len(tokens):
        y[tokens], plain = scan(tokens, state)
    if ending.keeps_former:
        return state
    if ending.plain(fresh=not state.any()):
        return plain
    kept = scan(ending.folded, nothing)[1] if len(ending.folded) else nothing
    for row in ending.undecayed:
        kept = kept + scan(np.array([row]), nothing)[1]
    decaying = np.concatenate((tokens, ending.fading))
    return np.asarray(kept + state * np.prod(fades[decaying], axis=0))


def read_former(ending: Ending, state: Array, fades: Array) -> list[tuple[int, Array]]:
    """The former state that each padding row reads, decayed up to that row."""
    tokens = {int(row) for row in (*ending.folded, *ending.undecayed, *ending.lost)}
    fading = {int(row) for row in ending.fading}
    seen = []
    for row in map(int, ending.rows):
        if row in tokens or row in fading:
            state = state * fades[row]
        if row not in tokens:
            seen.append((row, state))
    return seen
