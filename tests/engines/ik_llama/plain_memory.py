"""The cell table and the prefix match once more, from upstream's rules alone, in plain lists.

There is no wheel of ik_llama.cpp's server: what the port's fast forms do is held against these slow
ones, which share no code with them. They follow `llama_kv_cache_find_slot`, `_seq_rm`, `_seq_add`,
`_seq_pos_min`, `_seq_pos_max` and `server_tokens::get_common_prefix`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

SPACES = " \n\r"


@dataclass
class Cell:
    """One cell: its position, who sees it, and how far it was moved since its key was rotated."""

    pos: int = -1
    seqs: set[int] = field(default_factory=set)
    shift: int = 0
    born: int = -1


class PlainCells:
    """Cells one by one."""

    def __init__(self, size: int, kind: str) -> None:
        self.kind = kind  # dense, hybrid, recurrent
        self.cells = [Cell() for _ in range(size)]
        self.head = 0

    @property
    def used(self) -> int:
        return sum(cell.pos >= 0 for cell in self.cells)

    def find_slot(self, count: int) -> int | None:
        size = len(self.cells)
        if count > size:
            return None
        if self.head > self.used + 2 * count:
            self.head = 0
        tested = 0
        while True:
            if self.head + count > size:
                tested, self.head = tested + size - self.head, 0
                continue
            taken = [i for i in range(count) if self.cells[self.head + i].pos >= 0]
            if not taken:
                return self.head
            self.head, tested = self.head + taken[0] + 1, tested + taken[0] + 1
            if tested >= size:
                return None

    def place(self, start: int, positions: Sequence[int], seqs: Sequence[int]) -> None:
        for i, (pos, seq) in enumerate(zip(positions, seqs, strict=True)):
            self.cells[start + i] = Cell(pos, {seq}, self.cells[start + i].shift, pos)

    def place_recurrent(self, seq: int, pos: int) -> None:
        self.cells[seq] = Cell(pos, {seq}, self.cells[seq].shift, pos)
        self.head = seq

    def advance(self, count: int) -> None:
        self.head += count
        if self.head >= len(self.cells):
            self.head = 0

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        p0, p1 = max(p0, 0), p1 if p1 >= 0 else 1 << 62
        if self.kind == "recurrent":
            if seq >= len(self.cells):
                return False
            at = self.cells[seq].pos
            if 0 < p0 <= at or 0 < p1 <= at:
                return False
        freed = []
        for i, cell in enumerate(self.cells):
            if seq in cell.seqs and p0 <= cell.pos < p1:
                cell.seqs.discard(seq)
                if not cell.seqs:
                    self.cells[i] = Cell()
                    freed.append(i)
        if freed and freed[0] < self.head:
            self.head = freed[0]
        return True

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        freed = []
        for i, cell in enumerate(self.cells):
            if seq in cell.seqs and p0 <= cell.pos < p1:
                cell.pos, cell.shift = cell.pos + delta, cell.shift + delta
                if cell.pos < 0:
                    self.cells[i] = Cell()
                    freed.append(i)
        self.head = freed[0] if freed else 0

    def clear(self) -> None:
        self.cells, self.head = [Cell() for _ in self.cells], 0

    def of(self, seq: int) -> list[int]:
        return [i for i, cell in enumerate(self.cells) if seq in cell.seqs]

    def seq_pos_max(self, seq: int) -> int:
        return max((self.cells[i].pos for i in self.of(seq)), default=0)

    def seq_pos_min(self, seq: int) -> int:
        if self.kind != "dense":
            return self.seq_pos_max(seq)
        mine = self.of(seq)
        return self.cells[mine[0]].pos if mine else -1


def plain_prefix(left: Sequence[str], right: Sequence[str], *, exact: bool) -> tuple[int, int]:
    """The number of common tokens in each list, the tokens given as their texts.

    A token is equal to another one where their texts are equal.
    """
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    if n in (len(left), len(right)):
        return n, n
    one = "".join(left[n:])
    other = "".join(right[n:])
    i = j = 0
    while i < len(one) and j < len(other):
        spaces = one[i] in SPACES, other[j] in SPACES
        if one[i] == other[j] or (not exact and all(spaces)):
            i, j = i + 1, j + 1
        elif exact or not any(spaces):
            break
        else:
            i, j = i + spaces[0], j + spaces[1]
    ends = (i, j)
    whole = [
        _whole(tail, end, exact=exact)
        for tail, end in zip((left[n:], right[n:]), ends, strict=True)
    ]
    for i in range(len(whole[0]), 0, -1):
        for j in range(len(whole[1]), 0, -1):
            if whole[0][i - 1] == whole[1][j - 1] == max({*whole[0]} & {*whole[1]}):
                return n + i, n + j
    return n, n


def _whole(tail: Sequence[str], end: int, *, exact: bool) -> list[int]:
    """Lengths up to the end of each token that lies within the equal text."""
    found, length, counted = [], 0, 0
    for text in tail:
        length += len(text)
        counted += len(text) if exact else sum(c not in SPACES for c in text)
        if length > end:
            break
        found.append(counted)
    return found


def plain_reasoning(tokens: Sequence[str], opening: str, closing: str) -> list[str]:
    """The tokens that do not begin within a closed block: from an opening to the end of a closing.

    A later opening counts from the end of the block before it.
    """
    text, hidden, at = "".join(tokens), set[int](), 0
    while opening in text[at:]:
        start = text.index(opening, at)
        if closing not in text[start + len(opening) :]:
            break
        at = text.index(closing, start + len(opening)) + len(closing)
        hidden.update(range(start, at))
    kept, begins = [], 0
    for token in tokens:
        if begins not in hidden:
            kept.append(token)
        begins += len(token)
    return kept
