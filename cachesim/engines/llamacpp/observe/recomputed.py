"""Decisions of a memory and of its batches, recomputed from upstream's definitions.

cells      the first usable ones from the head on, once around; of two ubatches, other ones
lanes      every cell that a token sees, in the order of positions
ubatches   each token once, in order; equal numbers of disjoint sequence sets; whole tails
n-grams    the table has each n-gram of the text with what follows it; a draft follows the longest
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise
from typing import Final

import numpy as np

from cachesim.engines.llamacpp import drafter
from cachesim.engines.llamacpp.memory.attention import MARGIN, AttentionCache, plan_lanes
from cachesim.engines.llamacpp.memory.batch import Batch, Ids, Splitter, Ubatch
from cachesim.engines.llamacpp.memory.cells import EMPTY, Cells, apply_ubatch, find_slot, prepare
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.recurrent_cells import RecurrentCells
from cachesim.engines.llamacpp.server_batch import Run, ServerBatch
from cachesim.model.store import ABSENT, BLOCK
from cachesim.units import Integers, Token

SETS: Final[tuple[tuple[Ids, ...], ...]] = (
    ((0,), (1,), (2,), (0,), (1,), (0,), (0,), (0,)),
    ((0,), (2,), (3,), (1,), (3,), (2,), (0,), (1,), (1,)),
    ((0, 1), (1, 2), (2,), (0, 1), (3,), (1, 2), (0, 1), (2,), (3,)),
)
"""The sequences of each token of a batch that is cut."""

TEXTS: Final = (
    (1, 2, 1, 3, 1, 2, 1, 3, 1),
    (5, 6, 5, 6, 5, 7, 5, 7, 5),
    (4, 4, 4, 4, 8, 4, 4, 4, 4, 9, 4, 4, 4),
    (1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 3),
)
"""Texts of repeated n-grams, some with as many of one continuation as of another."""


def unlike_definition(context: Context) -> Iterator[str]:
    """Decisions of a memory that differ from upstream's definitions; cells may change."""
    attention, recurrent = parts_of(context.memory)
    yield from _cut_otherwise()
    yield from _wrong_pieces()
    yield from _drafted_otherwise()
    for cache in caches_of(attention).values():
        for seq in range(context.n_seq_max):
            yield from _wrong_lanes(cache, seq)
        for stream in range(len(cache.streams)):
            yield from _found_otherwise(cache, stream)
    if recurrent is not None:
        yield from _misplaced_states(recurrent.cells)


# -- cells -----------------------------------------------------------------------------------------


def _found_otherwise(cache: AttentionCache, stream: int) -> Iterator[str]:
    streams = cache.streams
    cells, own = streams.cells[stream], streams.heads[stream]
    usable = _usable(cache, cells)
    free = int(usable.sum())
    for n in {1, 3, free, free + 1} - {0}:
        bound = cells.used + 2 * n
        for head in {own, 0, bound, bound + 1, streams.size - 1, streams.size}:
            if head > streams.size:
                continue
            streams.heads[stream] = head
            slot = find_slot(streams, _ubatch(stream, 0, n))
            order = np.roll(np.arange(streams.size), -head if head <= bound else 0)
            wanted = order[usable[order]][:n].tolist()
            picked = None if slot is None else list(map(int, slot.cells[0]))
            if picked != (wanted if len(wanted) == n else None):
                yield f"{picked} are found for {n} tokens from cell {head} on, not {wanted}"
    streams.heads[stream] = own
    if free < 5 or cache.mask.n_swa or len(streams) > 1:
        return  # a dry run of a window may empty cells, and of several streams moves heads
    before = cells.pos.copy(), cells.bits.copy(), cells.used, own
    pieces = [_ubatch(stream, 0, 2), _ubatch(stream, 2, 3)]
    slots = prepare(streams, pieces) or []
    after = cells.pos, cells.bits, cells.used, streams.heads[stream]
    width = len(before[0])  # the arrays may have grown
    same = np.array_equal(after[0][:width], before[0])
    same = same and np.array_equal(after[1][:, :width], before[1])
    if not same or after[2:] != before[2:] or (after[0][width:] != EMPTY).any():
        yield "a dry run changes the cells"
    for slot, piece in zip(slots, pieces, strict=True):
        apply_ubatch(streams, slot, piece)
        if streams.heads[stream] != int(slot.cells[0][-1]) + 1:
            yield f"the head is at {streams.heads[stream]}, not after the last cell"
    taken = [int(cell) for slot in slots for cell in slot.cells[0]]
    if cells.pos[taken].tolist() != [*range(5)] or not usable[taken].all():
        yield f"five tokens are in the cells {taken}"


def _misplaced_states(cells: RecurrentCells) -> Iterator[str]:
    """Cells of a new state that are not the first empty one from the head on, once around."""
    seq, size = cells.size - 1, cells.size
    if cells.tail[seq] >= 0:
        cells.leave(seq)
    for head in range(size):
        cells.head, bound = head, cells.used + 2
        order = np.roll(np.arange(size), -head if head <= bound else 0)
        wanted = next(int(cell) for cell in order if not cells.seqs[cell])
        cells.find_slot(_ubatch(seq, 0, 1))
        if cells.tail[seq] != wanted:
            yield f"a new state is in cell {cells.tail[seq]}, not in {wanted}"
        cells.leave(seq)


def _wrong_lanes(cache: AttentionCache, seq: int) -> Iterator[str]:
    """Cells that the last token of a sequence does not see, or not in the order of positions."""
    stream = cache.streams.of(seq, "laws")
    cells = cache.streams.cells[stream]
    held = np.flatnonzero(cells.members(seq))
    last = int(cells.pos[held].max(initial=EMPTY))
    if last == EMPTY:
        return
    seen = [cell for cell in held if not cache.mask.hides(int(cells.pos[cell]), last)]
    (plan,) = plan_lanes(cache.streams, _ubatch(seq, last, 1))
    positions, picked = plan.frame.positions, plan.picked
    at = np.flatnonzero(positions != ABSENT)
    seen_cells = (at + picked.start if isinstance(picked, slice) else picked[at]) - MARGIN
    if sorted(seen_cells) != seen or (cells.pos[seen_cells] != positions[at]).any():
        yield f"token {last} sees the cells {seen_cells.tolist()}, not {seen}"
    ordered, first = np.unique(positions[at], return_index=True)
    if (at[first] % BLOCK != ordered % BLOCK).any() or (np.diff(at[first]) <= 0).any():
        yield f"token {last} sees the positions {positions[at].tolist()} in this order"


def _usable(cache: AttentionCache, cells: Cells) -> Integers:
    """All cells that are empty, or of one sequence from whose next token the window hides them."""
    cells.cover(cells.size)
    usable: Integers = cells.pos == EMPTY
    for cell in np.flatnonzero(~usable) if cache.mask.n_swa else ():
        owners, pos = cells.seqs_of(int(cell)), int(cells.pos[cell])
        if len(owners) == 1:
            usable[cell] = cache.mask.hides(pos, cells.pos_max(owners[0]) + 1)
    return usable


def _ubatch(seq: int, start: int, n: int) -> Ubatch:
    return Ubatch(tuple(range(n)), 1, n, tuple(range(start, start + n)), ((seq,),) * n)


# -- ubatches --------------------------------------------------------------------------------------


def _cut_otherwise() -> Iterator[str]:
    for seqs in SETS:
        seen: Counter[Ids] = Counter()
        positions = tuple(seen.update([ids]) or seen[ids] - 1 for ids in seqs)
        split = Splitter(positions, seqs, (False,) * len(seqs))
        for n in (1, 2, 3, 4, len(seqs)):
            cuts = {
                "simple": split.all_simple(n),
                "by sequence": split.all_by_sequence(n),
                "equal": split.all_equal(n, sequential=False),
                "sequential": split.all_equal(n, sequential=True),
                "tails": split.all_equal(n, sequential=False, keep_tail=2) if n > 2 else [],
            }
            for name, pieces in cuts.items():
                if name == "sequential" and split.coupled:
                    if pieces is not None:
                        yield "coupled sequences are cut one after the other"
                elif pieces is None or (
                    pieces and (why := _wrong_ubatches(split, name, pieces, n))
                ):
                    yield f"{seqs} in ubatches of {n}, {name}: {pieces and why}"


def _wrong_ubatches(split: Splitter, name: str, pieces: Sequence[Ubatch], most: int) -> str:
    """The fault in the ubatches of a batch; empty if correct."""
    rows = [row for piece in pieces for row in piece.rows]
    if sorted(rows) != [*range(len(split))]:
        return f"the tokens are {rows}"
    if any(piece.positions != _of(split.positions, piece) for piece in pieces):
        return "a token has another position"
    if any(piece.seqs != _of(split.seqs, piece) for piece in pieces):
        return "a token has another sequence"
    lengths = [piece.n_tokens for piece in pieces]
    if any(n > max(most, piece.n_seqs) for n, piece in zip(lengths, pieces, strict=True)):
        return f"ubatches have {lengths} tokens"
    if name == "simple":
        short = any(n < most for n in lengths[:-1])
        return "tokens are out of order" if rows != sorted(rows) or short else ""
    left = set(range(len(split)))
    for piece in pieces:
        left -= set(piece.rows)
        sets = [set(piece.set_ids(k)) for k in range(piece.n_seqs)]
        if name == "by sequence":
            shrinks = all(set(b) <= set(a) for a, b in pairwise(piece.seqs))
            fits = piece.n_seqs == 1 and shrinks and list(piece.rows) == sorted(piece.rows)
            if not fits:
                return f"one ubatch has {piece.seqs}"
            continue
        if piece.n_seqs * piece.n_seq_tokens != piece.n_tokens:
            return f"{piece.n_tokens} tokens of {piece.n_seqs} sets"
        if len(set(chain.from_iterable(sets))) != sum(map(len, sets)):
            return f"the sets {sets} overlap"
        if name == "sequential" and any(max(b) != max(a) + 1 for a, b in pairwise(sets)):
            return f"the sets {sets} do not follow each other"
        further = [split.seqs[row] for row in left]
        rests = [further.count(piece.set_ids(k)) for k in range(piece.n_seqs)]
        longer = piece.n_tokens + piece.n_seqs <= most and all(rests)
        joins = not any(map(set(chain.from_iterable(sets)).intersection, further)) and further
        if name == "tails":
            if any(0 < rest < 2 for rest in rests):
                return f"{rests} tokens are left of the sets"
        elif longer or (joins and name == "equal" and piece.n_seqs < most):
            return f"an ubatch has {piece.n_seqs} times {piece.n_seq_tokens} tokens"
    return ""


def _of(values: Sequence[object], piece: Ubatch) -> tuple[object, ...]:
    return tuple(values[row] for row in piece.rows)


def _wrong_pieces() -> Iterator[str]:
    """Pieces of a server's batch that are not, one after the other, the whole."""
    runs = [
        Run(seq, 3 * seq, [*map(Token, range(10 * seq, 10 * seq + n))], output=seq == 1, last=True)
        for seq, n in enumerate((3, 1, 4))
    ]
    batch = ServerBatch(runs=runs, length=sum(len(run.tokens) for run in runs))
    whole = Batch.joined(run.batch(0, len(run.tokens)) for run in runs)
    for low, high in combinations(range(batch.length + 1), 2):
        ends = ((0, low), (low, high), (high, batch.length))
        pieces = [batch.piece(*end) for end in ends if end[0] < end[1]]
        if Batch.joined(piece.batch() for piece in pieces) != whole:
            yield f"a batch of {batch.length} tokens is divided otherwise at {low} and {high}"
        slots = {ids[0] for piece in pieces for ids in piece.batch().seqs or ()}
        if {slot for piece in pieces for slot in piece.slots()} != slots:
            yield f"pieces of a batch are not of the slots {slots}"


# -- n-grams ---------------------------------------------------------------------------------------


def _drafted_otherwise() -> Iterator[str]:
    for text, first in chain.from_iterable(
        ((text, 1), (text, len(text) // 2), (text, len(text))) for text in TEXTS
    ):
        cache, table = drafter.NgramCache(), dict[tuple[Token, ...], Counter[Token]]()
        for begin, end in ((0, first), (first, len(text)), (len(text), first)):
            tokens = tuple(map(Token, text[:end]))
            part, most = tokens[begin:], end // 2 + 1
            drafted = cache.draft(tokens[:-1], tokens[-1], most)
            for length in range(1, drafter.LONGEST + 1):
                for at in range(length, len(part)):
                    table.setdefault(part[at - length : at], Counter())[part[at]] += 1
            if cache.after != table:
                yield f"the n-grams of {part} are not those of the text"
            wanted = _continued(table, tokens)[:most]
            if drafted != wanted:
                yield f"{drafted} is drafted after {tokens}, not {wanted}"


def _continued(
    table: Mapping[tuple[Token, ...], Mapping[Token, int]], text: tuple[Token, ...]
) -> list[Token]:
    drafted: list[Token] = []
    while len(text) > 1 and len(drafted) < drafter.MOST_DRAFTED:
        after = (*text, *drafted)[-drafter.LONGEST :]
        for n in range(drafter.LONGEST, 0, -1):
            least, percent = drafter.LEAST_SEEN[n - 1], drafter.LEAST_PERCENT[n - 1]
            counts = table.get(after[-n:], {}) if n <= len(after) else {}
            seen, top = sum(counts.values()), max(counts.values(), default=0)
            if seen >= least and 100 * top >= percent * seen:
                drafted.append([token for token, times in counts.items() if times == top][-1])
                break
        else:
            break
    return drafted
