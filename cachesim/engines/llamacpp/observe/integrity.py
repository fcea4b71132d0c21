"""Laws of memories and saved states, and of the calls of a memory, tried on a copy of an idle one.

save, restore     the same positions, keys, values and states, of as many bytes as are counted;
                  the next token has the logits that it has without
copy, remove      the copy has the content of its source, which stays as it is; both continue alike
clear             no cell is used, and the search for cells begins with the first one
add, add back     positions from one on move, and return with their keys
keep, divide      one sequence is left, and its positions are divided
decode            a batch of several sequences, or of coupled ones, leaves what its tokens leave
one by one
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy, deepcopy
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.attention import MARGIN, AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import MARKS, Blob, CellList, Word, pack, unpack
from cachesim.engines.llamacpp.memory.cells import free_cells
from cachesim.engines.llamacpp.memory.context import OK, Context
from cachesim.engines.llamacpp.memory.create import PROBE, can_seq_rm, seq_rm_type
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.observe.recomputed import unlike_definition
from cachesim.engines.llamacpp.options import CONTEXT_STEP
from cachesim.engines.llamacpp.server_batch import Advance, advance
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.errors import BlobError, ContractError
from cachesim.model.build import arithmetic_of
from cachesim.units import Array, Integers

LENGTHS: Final = (6, 4, 2)
"""Tokens of each sequence of a batch that is tried."""

SEQUENCES: Final = 8
"""Most sequences of a memory whose calls are tried: each takes its time."""

UBATCH: Final = 3
"""Tokens of its ubatches, where none has to be longer."""


class Part(NamedTuple):
    """A sequence in one part of a memory, in the order of positions."""

    positions: Integers
    rows: tuple[Array, ...]  # of each layer: keys, values or states
    window: int  # 0 for a part that can be cut anywhere, -1 for a state

    def equals(self, other: "Part") -> bool:
        """True for the same positions and rows."""
        pairs = zip(self.rows, other.rows, strict=True)
        alike = np.array_equal(self.positions, other.positions)
        return alike and all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def seen(self, ahead: int) -> "Part":
        """The part without what the window hides from so many positions after the last one."""
        end = int(self.positions.max(initial=-1)) + 1
        least = end + ahead - self.window if self.window > 0 else 0
        inside = self.positions >= least
        return Part(self.positions[inside], tuple(rows[inside] for rows in self.rows), self.window)


Content = Mapping[int, tuple[Part, ...]]
"""The parts of each sequence."""


def is_settled(context: Context) -> bool:
    """True without pending updates, if the memory is small enough for its calls to be tried."""
    caches, recurrent = _parts(context)
    if any(cache.copies or cache.streams.has_shift for cache in caches):
        return False  # the next decode applies a shift or a copy of streams
    rolls_back = recurrent is not None and any(recurrent.rs_idx)
    return not rolls_back and context.n_seq_max <= SEQUENCES


def check_calls(context: Context) -> None:
    """Raise ContractError if a call on a copy does not do what it promises."""
    if not is_settled(context):
        return
    caches, _ = _parts(context)
    tried, rules = copied(context), context.rules
    before = content_of(tried)
    held = [seq for seq, parts in before.items() if all(len(part.positions) for part in parts)]
    whole, logits = tried.state_write(-1), None
    for seq in held[-1:]:
        logits = _next(copied(context), seq)
        _try_states(tried, before[seq], seq, logits)
        _try_copy(tried, seq)
        _try_moves(tried, seq)
    tried.clear(data=True)
    tried.check_integrity()
    require(_same(content_of(tried), before, ()), "a cleared memory has tokens")
    emptied, states = _parts(tried)
    left = [part for cache in emptied for rows in cache.rows for part in (rows.keys, rows.values)]
    left += [] if states is None else [states.planes.rows]
    require(not any(rows.any() for part in left for rows in part.values()), "data is not cleared")
    heads = [head for cache in emptied for head in cache.streams.heads]
    heads += [] if states is None else [states.cells.head, states.cells.used]
    require(not any(heads), "the head of a cleared memory is not its first cell")
    if rules.restores_every_stream or not caches or len(caches[0].streams) == 1:
        for _ in range(2):  # into an empty memory, and into one that has the same content
            read = tried.state_read(_stored(whole), -1)
            require(read == whole.size, "a whole state is not read")
            require(_same(content_of(tried), before, before), "a whole state is restored otherwise")
            tried.check_integrity()
        for seq in held[-1:]:
            _require_next(tried, seq, logits)
    if _undoes(tried, whole) and not any(cache.mask.n_swa for cache in caches):
        require(tried.state_read(whole.cut(whole.size - 1), -1) is None, "a cut state is read")
        require(_same(content_of(tried), before, ()), "a cut whole state leaves tokens")
    if states is not None and states.n_rs_seq:
        states.rs_idx[0] = 1
        tried.seq_rm(0, -1, -1)
        require(not states.rs_idx[0], "a removed sequence is still to be rolled back")
    if arithmetic_of(tried.network) == "ring":
        _try_batches(tried)
    unlike = next(unlike_definition(copied(context)), "")
    require(not unlike, unlike)


def _parts(context: Context) -> tuple[list[AttentionCache], RecurrentMemory | None]:
    attention, recurrent = parts_of(context.memory)
    return [*caches_of(attention).values()], recurrent


def copied(context: Context) -> Context:
    """A context with a memory of its own, and the same network."""
    caches, recurrent = _parts(context)
    parts: list[AttentionCache | RecurrentMemory] = [*caches]
    parts += [] if recurrent is None else [recurrent]
    shared: list[object] = [
        value for part in parts for value in (part.rules, part.shapes, part.sizes)
    ]
    shared += [cache.rotate for cache in caches]
    tried = copy(context)
    tried.memory = deepcopy(context.memory, {id(value): value for value in shared})
    tried.device, tried.all_outputs = {}, False
    return tried


def content_of(context: Context) -> Content:
    """Every sequence in each part of a memory."""
    caches, recurrent = _parts(context)
    content = {}
    for seq in range(context.n_seq_max):
        parts = [_cells(cache, seq) for cache in caches]
        if recurrent is not None:
            cells, tail = recurrent.cells, recurrent.cells.tail[seq]
            at = [] if tail < 0 else [recurrent.rs_idx[seq] * recurrent.size + tail]
            positions = np.array([cells.pos[tail]] if at else [], np.int64)
            rows = tuple(row[at] for row in recurrent.planes.rows.values())
            parts.append(Part(positions, rows, -1))
        content[seq] = tuple(parts)
    return content


def _cells(cache: AttentionCache, seq: int) -> Part:
    stream = cache.streams.of(seq, "laws")
    cells, rows = cache.streams.cells[stream], cache.rows[stream]
    held = np.flatnonzero(cells.members(seq))
    held = held[cells.pos[held].argsort(kind="stable")]
    if held.size:
        rows.cover(int(held.max()))
    both = [*rows.keys.values(), *rows.values.values()]
    return Part(cells.pos[held], tuple(array[held + MARGIN] for array in both), cache.mask.n_swa)


def _same(found: Content, wanted: Content, seqs: Collection[int]) -> bool:
    """True if these sequences have the expected content, and all others none."""
    return all(
        part.equals(other) if seq in seqs else not part.positions.size
        for seq, parts in found.items()
        for part, other in zip(parts, wanted[seq], strict=True)
    )


def require(holds: object, what: str, *values: object) -> None:
    """Raise ContractError if a law does not hold; only then the values are put into its text."""
    if not holds:
        raise ContractError(f"llama.cpp: {what.format(*values) if values else what}")


# -- a server --------------------------------------------------------------------------------------


def check_sizes(server: ServerContext) -> None:
    """Raise ContractError if a memory has another size than the flags ask for."""
    context, flags, spec = server.contexts.target, server.options, server.network.spec
    caches, recurrent = _parts(context)
    n_slots, n_ctx = flags.n_parallel, flags.n_ctx_seq
    batches = context.n_batch, context.n_ubatch, context.n_ctx, context.n_seq_max
    wanted = flags.n_batch, flags.n_ubatch, flags.n_ctx, n_slots
    require(batches == wanted, "batch, ubatch, context, sequences are {}, not {}", batches, wanted)
    kinds = {spec.kind(shape.layer) for shape in (recurrent.shapes if recurrent else ())}
    drafted = flags.spec_draft_n_max if flags.spec_type == "draft-mtp" else 0
    planes = drafted if kinds and kinds <= server.rules.memory.rollback_layers else 0
    require(context.n_rs_seq == planes, "{0.n_rs_seq} tokens roll back, not {1}", context, planes)
    for cache in caches:
        n_cells = n_ctx
        if cache.mask.n_swa and not flags.swa_full:
            seqs = n_slots if flags.unified else 1
            needed = cache.mask.n_swa * seqs + flags.n_ubatch
            n_cells = min(n_ctx, -(-needed // CONTEXT_STEP) * CONTEXT_STEP)
        sizes = len(cache.streams), cache.streams.size
        count = 1 if flags.unified else n_slots
        require(
            sizes == (count, n_cells), "{} streams of cells, not {} of {}", sizes, count, n_cells
        )
    if recurrent is not None:
        sizes = recurrent.size, recurrent.planes.count
        require(sizes == (n_slots, planes + 1), "{} rows and planes for {} slots", sizes, n_slots)


def check_saved(server: ServerContext) -> None:
    """Raise ContractError if a saved state has other positions than its tokens."""
    _, recurrent = _parts(server.contexts.target)
    for slot in server.slots if server.rules.reuse.erasure != "trimmed" else ():
        for checkpoint in slot.prompt.checkpoints:
            blob = checkpoint.state.target
            for ends in [] if blob is None else _ends(blob):
                inside = int(checkpoint.pos_min) <= ends[0] or recurrent is not None
                require(
                    inside and ends[1] == checkpoint.pos_max,
                    "a checkpoint {0.pos_min} to {0.pos_max} has {1}",
                    checkpoint,
                    ends,
                )
    for entry in server.cache.entries if server.cache is not None else ():
        blob = entry.state.target
        for _, last in [] if blob is None else _ends(blob):
            require(
                last == entry.n_tokens - 1,
                "an entry of {0.n_tokens} tokens ends at {1}",
                entry,
                last,
            )
    texts = [tuple(e.tokens) for e in (server.cache.entries if server.cache is not None else ())]
    for at, text in enumerate(texts):
        others = [other[: len(text)] for place, other in enumerate(texts) if place != at]
        require(text not in others, "an entry is in another one")


def _ends(blob: Blob) -> list[tuple[int, int]]:
    """The lowest and the highest position of each list of cells, in its order of saving."""
    lists = [field.positions for field in blob.fields if isinstance(field, CellList)]
    return [(int(positions.min()), int(positions.max())) for positions in lists if positions.size]


# -- states ----------------------------------------------------------------------------------------


def _stored(blob: Blob) -> Blob:
    """A state read from a file; a failure is no user error."""
    try:
        return unpack(pack(blob))
    except BlobError as error:
        raise ContractError(f"llama.cpp: a stored state is not read: {error}") from None


def _next(context: Context, seq: int) -> Array | None:
    """The logits of a sequence's next token; None without a cell for it."""
    token = context.network.spec.vocabulary // 2
    batch = Batch.of([token], start=context.seq_pos_max(seq) + 1, seq=seq)
    return context.logits(0) if context.decode(batch) == OK else None


def _require_next(context: Context, seq: int, logits: Array | None) -> None:
    """Require the logits of the next token, in arithmetic that does not depend on the cells."""
    if logits is None or arithmetic_of(context.network) != "ring":
        return
    now = _next(context, seq)
    equal = now is None or np.array_equal(now, logits)
    require(equal, "a token after a restored or copied sequence has other logits")
    context.check_integrity()


def _undoes(context: Context, blob: Blob) -> bool:
    """True if a state without its last byte is not restored in part.

    Trap: bytes that end in the cell count of a later stream leave the cells of this one.
    """
    return context.rules.clears_failed_restore and not isinstance(blob.fields[-1], Word)


def _try_states(context: Context, wanted: tuple[Part, ...], seq: int, logits: Array | None) -> None:
    """Save a sequence, and restore it as the next one: all, the part of a checkpoint, cut short."""
    rules, dst = context.rules, (seq + 1) % context.n_seq_max
    caches, _ = _parts(context)
    room = dst == seq or all(has_room(cache, seq, dst) for cache in caches)
    complete = context.state_write(seq)
    for partial in (False, True) if room else ():
        blob = context.state_write(seq, partial=partial)
        size = context.state_seq_get_size(seq, partial=partial) - rules.sequence_header
        wanted_size = _bytes(context, seq, partial=partial)
        require(size == blob.size == wanted_size, f"a state has {size} bytes, not {wanted_size}")
        read = context.state_seq_set_data(_stored(blob), dst, partial=partial)
        size += rules.sequence_header
        require(read == size, f"{read} of {size} bytes of a state are read")
        for part, other in zip(content_of(context)[dst], wanted, strict=True):
            require(part.seen(1).equals(other.seen(1)), "a sequence is restored otherwise")
        context.check_integrity()
    if room:
        _require_next(context, dst, logits)
    if dst == seq:
        context.state_read(complete, dst)
    if room and rules.on_device_chunks:
        on_device = context.state_seq_get_data(seq, on_device=True)
        size = on_device.size + rules.sequence_header
        require(
            context.state_seq_set_data(on_device, dst) == size, "a state on the device is not read"
        )
        for part, other in zip(content_of(context)[dst], wanted, strict=True):
            require(part.seen(1).equals(other.seen(1)), "a sequence is restored otherwise")
    blob, others = complete, content_of(context)
    require(
        context.state_seq_set_data(blob.cut(blob.size - 1), dst) == 0, "a cut state is restored"
    )
    if _undoes(context, complete):
        require(context.seq_pos_max(dst) < 0, "a cut state leaves tokens")
        if not any(cache.mask.n_swa for cache in caches):
            rest = others.keys() - {dst}
            require(_same(content_of(context), others, rest), "a cut state changes the others")
    context.seq_rm(dst, -1, -1)
    context.check_integrity()
    if dst == seq:
        context.state_read(complete, dst)


def has_room(cache: AttentionCache, seq: int, dst: int) -> bool:
    """True if the cells of one sequence fit beside all but those of another."""
    streams = cache.streams
    one, other = streams.of(seq, "laws"), streams.of(dst, "laws")
    needed = len(streams.cells[one].of(seq))
    return needed <= free_cells(streams, other) + len(streams.cells[other].of(dst))


def _bytes(context: Context, seq: int, *, partial: bool) -> int:
    """The real bytes of a saved sequence: counts, cells with one id each, rows of each layer."""
    caches, recurrent = _parts(context)
    total = 0
    for cache in caches:
        if partial and not cache.mask.n_swa and (len(caches) > 1 or recurrent is not None):
            continue
        part = _cells(cache, seq)
        part = part.seen(0) if context.rules.saves_unmasked_window else part
        n, sizes = len(part.positions), [cache.sizes[layer] for layer in cache.layers]
        rows = sum(24 + n * (size.key + size.value) for size in sizes)
        total += 4 + 4 * len(cache.streams) + n * (12 + cache.ext) + cache.header.size + rows
    if recurrent is not None:
        sizes = [recurrent.sizes[layer] for layer in recurrent.layers]
        total += 4 + 8 + 8 + sum(24 + size.r + size.s for size in sizes)
    return total


def _whole_bytes(context: Context) -> int:
    """The real bytes of the saved memory: each cell with the ids of all its sequences."""
    caches, recurrent = _parts(context)
    total = 0
    for cache in caches:
        rows = [cache.sizes[layer].key + cache.sizes[layer].value for layer in cache.layers]
        total += 4 + 4 * len(cache.streams)
        for cells in cache.streams.cells:
            n = int(np.count_nonzero(cells.pos >= 0))
            ids = sum(int(cells.members(seq).sum()) for seq in range(context.n_seq_max))
            kept = cache.header.size + sum(24 + n * size for size in rows)
            total += n * (8 + cache.ext) + 4 * ids + kept if n else 0
    if recurrent is not None:
        owners = [seqs for seqs in recurrent.cells.seqs if seqs]
        sizes = [recurrent.sizes[layer] for layer in recurrent.layers]
        total += 4 + sum(8 + 4 * len(seqs) for seqs in owners) + 8
        total += sum(24 + len(owners) * (size.r + size.s) for size in sizes)
    return total


# -- sequences -------------------------------------------------------------------------------------


def _try_copy(context: Context, seq: int) -> None:
    """Copy a sequence, and continue both: alike, and neither changes the other."""
    before, dst = content_of(context), (seq + 1) % context.n_seq_max
    if dst == seq:
        return
    context.seq_cp(seq, dst, -1, -1)
    context.memory.update()
    both = {**before, dst: before[seq]}
    require(_same(content_of(context), both, both), "a copy has another content")
    context.seq_rm(dst, -1, -1)
    require(_same(content_of(context), before, before), "a removed copy changes others")
    context.check_integrity()
    if arithmetic_of(context.network) != "ring":
        return
    stored = context.state_write(seq)
    context.seq_cp(seq, dst, -1, -1)
    logits = _next(context, dst)
    pairs = zip(content_of(context)[seq], before[seq], strict=True)
    alike = all(part.seen(1).equals(other.seen(1)) for part, other in pairs)
    require(alike or logits is None, "a copy that continues changes its source")
    _require_next(context, seq, logits)
    for copied in (dst, seq):
        context.seq_rm(copied, -1, -1)
    require(context.state_read(stored, seq) is not None, "a state is not restored in its place")
    context.check_integrity()


def _try_moves(context: Context, seq: int) -> None:
    """Move, keep, cut and divide a sequence."""
    caches, recurrent = _parts(context)
    dst = (seq + 1) % context.n_seq_max
    if not any(cache.mask.n_swa or not has_room(cache, seq, dst) for cache in caches):
        context.state_read(context.state_write(seq), dst)  # in cells of its own
    unified = not caches or caches[0].streams.unified
    if unified or recurrent is None:  # of several streams, attention empties one alone
        kept = [seq] if unified else [*range(context.n_seq_max)]
        wanted = content_of(context)
        _freed(context, lambda: context.seq_keep(seq))
        require(_same(content_of(context), wanted, kept), "a kept sequence has another content")
    high = context.seq_pos_max(seq)
    attention, _ = parts_of(context.memory)
    low, end = high // 3, high // 3 * 2
    if attention is not None:
        _freed(context, lambda: attention.seq_rm(seq, low, end))
        for cache in caches:
            positions = _cells(cache, seq).positions
            require(not ((positions >= low) & (positions < end)).any(), "a range is not removed")
        require(context.seq_pos_max(seq) == high, "more than a range is removed")
    moves = not any(cache.sections for cache in caches)
    if moves and all(not cache.fixed and {*cache.kinds.values()} - {MARKS} for cache in caches):
        _try_additions(context, seq, high)
    if moves:
        parts = content_of(context)[seq]
        context.seq_div(seq, end, -1, 2)
        for part, other in zip(content_of(context)[seq], parts, strict=True):
            divided = np.where(other.positions >= end, other.positions // 2, other.positions)
            require(np.array_equal(part.positions, np.sort(divided)), "positions are not halved")
        context.check_integrity()


def _try_additions(context: Context, seq: int, high: int) -> None:
    """Move positions to the end and back: without the last one, and with it."""
    before, delta, start = content_of(context), high + 1, high // 2 + 1
    for end in (high, high + 1):
        context.seq_add(seq, start, end, delta)
        context.memory.update()
        for part, other in zip(content_of(context)[seq], before[seq], strict=True):
            inside = (other.positions >= start) & (other.positions < end)
            moved = np.sort(other.positions + inside * delta)
            require(np.array_equal(part.positions, moved), "other positions are moved")
        context.seq_add(seq, start + delta, end + delta, -delta)
        context.memory.update()
        if arithmetic_of(context.network) == "ring":
            require(_same(content_of(context), before, before), "keys are moved otherwise")
        context.check_integrity()


def _freed(context: Context, call: Callable[[], object]) -> None:
    """Run a call, after which the head is at or before the first cell that it freed."""
    streams = [cache.streams for cache in _parts(context)[0]]
    used = [[cells.pos >= 0 for cells in stream.cells] for stream in streams]
    call()
    context.check_integrity()
    for stream, one in zip(streams, used, strict=True):
        for head, cells, before in zip(stream.heads, stream.cells, one, strict=True):
            freed = np.flatnonzero(before & (cells.pos < 0))
            require(head <= freed.min(initial=head), "the head is after a freed cell")


# -- batches ---------------------------------------------------------------------------------------


class Reference:
    """Texts of a few sequences, and the content after decoding them one by one."""

    def __init__(self, context: Context) -> None:
        self.context = context
        n_seqs = min(context.n_seq_max, len(LENGTHS), context.n_batch)
        vocabulary = context.network.spec.vocabulary
        lengths = [min(n, context.n_batch // n_seqs) for n in LENGTHS[:n_seqs]]
        self.texts = [
            [(7 * seq + 3 * n + 5) % vocabulary for n in range(length)]
            for seq, length in enumerate(lengths)
        ]
        self.shorter: list[tuple[Part, ...]] = []  # without the last token
        self.logits: list[Array] = []
        context.clear(data=True)
        for seq, text in enumerate(self.texts):
            for pos, token in enumerate(text):
                shorter = content_of(context)[seq]
                self.decode(Batch.of([token], start=pos, seq=seq))
            self.shorter.append(shorter)
            self.logits.append(context.logits(0))
        self.wanted = content_of(context)
        self.cells = _places(context)

    def decode(self, batch: Batch) -> None:
        """Decode a batch, which is valid and has room."""
        require(self.context.decode(batch) == OK, f"a batch is refused: {self.context.refusal}")
        for ubatch, _ in self.context.reached:
            fits = ubatch.n_tokens <= max(self.context.n_ubatch, ubatch.n_seqs)
            require(fits, f"an ubatch has {ubatch.n_tokens} tokens")
        self.context.check_integrity()

    def require(self, wanted: Content, seqs: Collection[int], what: str) -> None:
        """Require the content of some sequences, and no other one."""
        require(_same(content_of(self.context), wanted, seqs), f"{what} leaves another content")

    def joined(self, rows: Sequence[tuple[int, int]]) -> None:
        """Decode some tokens, each a sequence and a position, as one batch."""
        ends = [n == len(self.texts[seq]) - 1 for seq, n in rows]
        self.decode(
            Batch(
                tokens=tuple(self.texts[seq][n] for seq, n in rows),
                positions=tuple(n for _, n in rows),
                seqs=tuple((seq,) for seq, _ in rows),
                outputs=tuple(ends),
            )
        )
        for at, (seq, _) in enumerate(rows):
            if ends[at] or self.context.all_outputs:
                row = self.context.logits(at)
                equal = not ends[at] or np.array_equal(row, self.logits[seq])
                require(equal, "a token of a batch has other logits")

    def rows(self, first: int, end: int) -> list[tuple[int, int]]:
        """The tokens of all sequences at some positions, position by position."""
        numbers = range(len(self.texts))
        return [(s, n) for n in range(first, end) for s in numbers if n < len(self.texts[s])]


def _try_batches(context: Context) -> None:
    """Decode tokens in one batch, in two of another order, as coupled sequences, and at once."""
    reference, most = Reference(context), LENGTHS[0]
    seqs, text = range(len(reference.texts)), tuple(reference.texts[0])
    caches, _ = _parts(context)
    _try_advance(reference)
    context.n_ubatch = max(UBATCH, context.n_rs_seq + 2)
    two = [reference.rows(0, 2), sorted(reference.rows(2, most), key=lambda row: (row[1], -row[0]))]
    for context.all_outputs, batches in (
        (True, [reference.rows(0, most)]),
        (False, two),
        (False, [reference.rows(0, most)]),
    ):
        context.clear(data=True)
        for rows in filter(None, batches):
            reference.joined(rows)
        reference.require(reference.wanted, seqs, "a batch")
    if context.n_rs_seq and context.rules.rollback_split == "keep-tail":
        for seq in seqs:
            end = len(reference.texts[seq]) - 1
            require(context.seq_rm(seq, end, -1), "a last token is not rolled back")
            pairs = zip(content_of(context)[seq], reference.shorter[seq], strict=True)
            require(not end or all(a.equals(b) for a, b in pairs), "a rollback differs")
    if len(seqs) > 1 and len(text) > 1 and caches and caches[0].streams.unified:
        context.clear(data=True)
        reference.decode(Batch(tokens=text[:-1], seqs=((0, 1),) * (len(text) - 1)))
        reference.decode(Batch(tokens=text[-1:], seqs=((1,),)))
        both = {**reference.wanted, 0: reference.shorter[0], 1: reference.wanted[0]}
        reference.require(both, (0, 1), "a coupled batch")
        size, wanted = context.state_write(-1).size, _whole_bytes(context)
        require(size == wanted, f"a whole state has {size} bytes, not {wanted}")
    context.clear(data=True)
    reference.decode(Batch(tokens=text))
    reference.require(reference.wanted, (0,), "a batch without positions")
    reference.decode(Batch(tokens=text[:1]))
    require(context.seq_pos_max(0) == len(text), "a batch without positions does not continue")
    _, recurrent = _parts(context)
    if recurrent is not None and (not caches or caches[0].streams.unified):
        none = context.state_read(context.state_write(0), context.n_seq_max)
        require(none is None, "a state is restored into a sequence too many")
        context.clear(data=True)
    if context.n_batch >= PROBE and not context.rules.impossible_rollback_passes:
        require(can_seq_rm(context) == seq_rm_type(context), "a trial cut has another result")


def _places(context: Context) -> list[tuple[int, list[int]]]:
    """The head of each stream, and the position in each cell."""
    caches, _ = _parts(context)
    pairs = (
        pair
        for cache in caches
        for pair in zip(cache.streams.heads, cache.streams.cells, strict=True)
    )
    return [(head, cells.pos.tolist()) for head, cells in pairs]


def _try_advance(reference: Reference) -> None:
    """Put tokens into the memory without the network: into the same cells."""
    context = reference.context
    caches, _ = _parts(context)
    context.clear(data=True)
    runs = [Advance(seq, 0, len(text)) for seq, text in enumerate(reference.texts)]
    window = any(cache.mask.n_swa for cache in caches)
    require(not advance(context, [Advance(0, 1, 1)]), "tokens are put into it after a gap")
    require(_same(content_of(context), reference.wanted, ()), "a refused run leaves tokens")
    if context.n_rs_seq or (window and len(caches[0].streams) > 1):
        require(not advance(context, runs[:1]), "tokens are put into it that need a decode")
        return
    for run in runs:
        require(advance(context, [run]), "no tokens are put into it")
    context.check_integrity()
    require(_places(context) == reference.cells, "tokens put into it are elsewhere")
    pairs = (
        (part, other)
        for seq, parts in content_of(context).items()
        for part, other in zip(parts, reference.wanted[seq], strict=True)
    )
    for part, other in pairs:
        equal = np.array_equal(part.positions, other.positions)
        require(equal, "tokens put into it have other positions")
    more = [Advance(run.seq, run.count, 1) for run in runs]
    for cache in caches[:1]:
        free = free_cells(cache.streams, cache.streams.of(runs[-1].seq, "laws"))
        more[-1] = Advance(runs[-1].seq, runs[-1].count, free + 1)
        require(not advance(context, more), "more tokens are put into it than it has free cells")
        require(_places(context) == reference.cells, "a refused run leaves tokens")
        if free and not window:
            full = [Advance(runs[-1].seq, runs[-1].count, free)]
            require(advance(context, full), "the free cells do not take as many tokens")
