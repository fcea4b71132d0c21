"""The rows of a picture of memory: what a request got, and each place that holds tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal, TypeAlias

from cachesim.scenario.provenance import Piece, part_of, size_of
from cachesim.scenario.result import Run
from cachesim.scenario.states import CellRun, CheckpointState, Entry, Memory, SlotState, State

Look: TypeAlias = Literal["held", "shared", "again", "wrong", "missing"]
Kind: TypeAlias = Literal[
    "request", "slot", "attention", "window", "recurrent", "checkpoint", "parked"
]

MOST_CHECKPOINTS: Final = 5
MOST_ENTRIES: Final = 8
MOST_LANES: Final = 12
MOST_IDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Neighbouring positions `[start, end)` that one step's tokens fill, or none."""

    start: int
    end: int
    step: int | None  # who wrote them
    look: Look
    text: str
    tip: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the picture."""

    kind: Kind
    label: str
    bars: tuple[Bar, ...]
    note: str = ""  # what happened to it in this step
    bracket: tuple[int, int] | None = None  # what a window sees


# --- tokens ----------------------------------------------------------------------------------


class Texts:
    """The steps' names, parts and tokens, for pieces that name them by number."""

    def __init__(self, run: Run) -> None:
        self.steps = run.steps

    def tokens(self, piece: Piece) -> tuple[int, ...]:
        """The tokens of a piece; none where they are not known."""
        if "tokens" in piece:
            return tuple(piece["tokens"])
        step = piece.get("step")
        if step is None or self.steps[step].detail is None:
            return ()
        detail = self.steps[step].detail
        prompt = () if detail is None else detail.prompt
        text = (*prompt, *self.steps[step].generated)
        return tuple(text[piece["at"] : piece["at"] + piece["count"]])

    def spelled(self, pieces: Iterable[Piece]) -> tuple[int, ...]:
        """The tokens of pieces in a row."""
        return tuple(token for piece in pieces for token in self.tokens(piece))

    def step(self, piece: Piece) -> int | None:
        """Who wrote it."""
        return piece.get("step")

    def name(self, piece: Piece) -> str:
        """Whose tokens: the step, and the parts of its prompt that they lie in."""
        at = piece.get("step")
        if at is None:
            return "no step" if "tokens" in piece else "unknown"
        step = self.steps[at]
        if step.detail is None:
            return step.name
        first, end = piece["at"], piece["at"] + piece["count"]
        parts = [each.name for each in step.detail.parts if each.start < end and first < each.end]
        if end > len(step.detail.prompt):
            parts.append("reply")
        return f"{step.name}: {' '.join(dict.fromkeys(parts))}" if parts else step.name

    def bar(self, start: int, piece: Piece, look: Look = "held", *, also: str = "") -> Bar:
        """A piece from a position on; `also` is said of it when it is pointed at."""
        count, ids = size_of(piece), self.tokens(piece)
        name = self.name(piece)
        where = f"position {start}" if count == 1 else f"positions {start} to {start + count - 1}"
        more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
        told = f"; tokens {' '.join(map(str, ids[:MOST_IDS]))}{more}" if ids else ""
        return Bar(
            start=start,
            end=start + count,
            step=self.step(piece),
            look=look,
            text=name,
            tip=f"{where}, {name}{also}{told}",
            tokens=ids,
        )

    def bars(self, pieces: Iterable[Piece], look: Look = "held") -> Iterator[Bar]:
        """Pieces in a row, from position 0 on."""
        start = 0
        for piece in pieces:
            yield self.bar(start, piece, look)
            start += size_of(piece)


def _cut(pieces: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """The tokens `[start, end)` of pieces in a row."""
    found, at = [], 0
    for piece in pieces:
        size = size_of(piece)
        first, last = max(start - at, 0), min(end - at, size)
        if first < last:
            found.append(part_of(piece, first, last))
        at += size
    return found


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


# --- rows ------------------------------------------------------------------------------------


def request(run: Run, index: int) -> Iterator[Row]:
    """The prompt: reused, processed again, new."""
    step, texts = run.steps[index], Texts(run)
    if step.detail is None or not step.detail.prompt or step.cached is None:
        return
    total, cached = step.prompt_tokens, min(step.cached, step.prompt_tokens)
    explained = step.explanation
    equal = max(explained.equal if explained else 0, cached)
    own: Piece = {"step": index, "at": 0, "count": total}
    fault = explained.fault if explained else None
    right = cached
    if fault is not None and step.answer == "diverged":
        right = min(cached, fault.position)
    bars = []
    for start, end, look, word in (
        (0, right, "shared", "reused"),
        (right, cached, "wrong", "reused, and wrong"),
        (cached, equal, "again", "matched, and processed again"),
        (equal, total, "held", "new"),
    ):
        for piece in _cut([own], start, end):
            bar = texts.bar(start, piece, _as_look(look), also=f", {word}")
            bars.append(replace(bar, text=f"{end - start} {word}"))
    yield Row(kind="request", label=f"request {step.name}", bars=tuple(bars))


def _as_look(word: str) -> Look:
    looks: dict[str, Look] = {"shared": "shared", "wrong": "wrong", "again": "again"}
    return looks.get(word, "held")


def held(run: Run, state: State) -> tuple[Row, ...]:
    """Everything that is held: slots, cells, states, checkpoints, parked, the companion's."""
    texts = Texts(run)
    believed = {slot.id: texts.spelled(slot.tokens) for slot in state.slots}
    rows = list(_slots(texts, state.slots))
    rows += _memory(texts, state.memory, believed, "")
    for slot in state.slots:
        rows += _shelf(texts, slot, several=len(state.slots) > 1)
    rows += _parked(texts, state.prompt_cache)
    if state.companion is not None:
        rows += _memory(texts, state.companion, believed, "companion: ")
    return tuple(rows)


def _slots(texts: Texts, slots: Sequence[SlotState]) -> Iterator[Row]:
    for slot in slots:
        if slot.tokens or len(slots) == 1:
            bars = tuple(texts.bars(slot.tokens))
            yield Row(kind="slot", label=f"slot {slot.id} believes to hold", bars=bars)


def _memory(
    texts: Texts, memory: Memory, believed: dict[int, tuple[int, ...]], prefix: str
) -> Iterator[Row]:
    for part in memory.cells:
        kind: Kind = "window" if part.part == "window" else "attention"
        shared = groupby(sorted(part.runs, key=lambda run: run.slots), key=lambda run: run.slots)
        for owners, found in shared:
            label = f"{prefix}{part.part}{_owner(owners, len(believed))}"
            runs = sorted(found, key=lambda run: (run.position, run.cell))
            truths = [believed[each] for each in owners if each in believed]
            truth = truths[0] if len(truths) == 1 else ()
            lanes = _lanes(runs)
            for lane in lanes[:MOST_LANES]:
                bars = [bar for run in lane for bar in _cells(texts, run, truth)]
                sees = None
                if part.window is not None and truth and len(lanes) == 1:
                    sees = (max(0, len(truth) - part.window + 1), len(truth))
                    bars += _missing(lane, sees)
                yield Row(kind=kind, label=label, bars=tuple(bars), bracket=sees)
            if len(lanes) > MOST_LANES:
                more = f"{prefix}{part.part}: {len(lanes) - MOST_LANES} more rows"
                yield Row(kind=kind, label=more, bars=())
    for row in memory.rows:
        truths = [believed[each] for each in row.slots if each in believed]
        label = f"{prefix}recurrent state at {row.position}{_owner(row.slots, len(believed))}"
        bars_of = _folded(texts, row.tokens or (), truths[0] if truths else ())
        if row.tokens is None:
            bars_of = (_unknown(row.position + 1),)
        yield Row(kind="recurrent", label=label, bars=bars_of)


def _unknown(count: int) -> Bar:
    tip = f"folded in {count} tokens; whose is not watched"
    return Bar(start=0, end=count, step=None, look="held", text="not watched", tip=tip)


def _owner(owners: Sequence[int], slots: int) -> str:
    if slots < 2 or not owners:
        return ""
    word = "slot" if len(owners) == 1 else "slots"
    return f", {word} {' and '.join(map(str, owners))}"


def _lanes(runs: Sequence[CellRun]) -> list[list[CellRun]]:
    """Runs of cells in as few rows as they need so that none covers another."""
    lanes: list[list[CellRun]] = []
    for run in runs:
        for lane in lanes:
            if lane[-1].position + lane[-1].count <= run.position:
                lane.append(run)
                break
        else:
            lanes.append([run])
    return lanes


def _cells(texts: Texts, run: CellRun, truth: Sequence[int]) -> Iterator[Bar]:
    """Cells of one step, cut where they change from right to wrong."""
    held = texts.tokens(run.holds)
    ours = truth[run.position : run.position + run.count]
    wrong = [i < len(ours) and held[i] != ours[i] for i in range(len(held))]
    if not any(wrong):
        yield texts.bar(run.position, run.holds)
        return
    for is_wrong, found in groupby(range(len(held)), key=lambda i: wrong[i]):
        at = list(found)
        piece = part_of(run.holds, at[0], at[-1] + 1)
        yield texts.bar(run.position + at[0], piece, "wrong" if is_wrong else "held")


def _missing(lane: Sequence[CellRun], sees: tuple[int, int]) -> Iterator[Bar]:
    """Positions that the next token sees and memory does not have."""
    held = {at for run in lane for at in range(run.position, run.position + run.count)}
    gone = [at for at in range(*sees) if at not in held]
    for _, found in groupby(enumerate(gone), key=lambda pair: pair[1] - pair[0]):
        at = [position for _, position in found]
        where = f"position {at[0]}" if len(at) == 1 else f"positions {at[0]} to {at[-1]}"
        yield Bar(
            start=at[0], end=at[-1] + 1, step=None, look="missing", text="missing",
            tip=f"{where}: the next token needs this, and memory does not have it",
        )  # fmt: skip


def _folded(texts: Texts, pieces: Sequence[Piece], truth: Sequence[int]) -> tuple[Bar, ...]:
    """What a state has folded in; from the first foreign token on all of it is wrong."""
    held = texts.spelled(pieces)
    right = _shared(held, truth)
    if not truth or right in {len(held), len(truth)}:
        return tuple(texts.bars(pieces))
    start, bars = 0, []
    for piece in (*_cut(pieces, 0, right), *_cut(pieces, right, len(held))):
        bars.append(texts.bar(start, piece, "held" if start < right else "wrong"))
        start += size_of(piece)
    return tuple(bars)


def _shelf(texts: Texts, slot: SlotState, *, several: bool) -> Iterator[Row]:
    shelf = slot.checkpoints[-MOST_CHECKPOINTS:]
    if len(slot.checkpoints) > len(shelf):
        label = f"{len(slot.checkpoints) - len(shelf)} older checkpoints"
        yield Row(kind="checkpoint", label=label, bars=())
    for each in shelf:
        yield Row(
            kind="checkpoint",
            label=_saved(texts, each, slot, several=several),
            bars=_state(texts, each),
        )


def _saved(texts: Texts, each: CheckpointState, slot: SlotState, *, several: bool) -> str:
    made = "" if each.made_by is None else f", made by {texts.steps[each.made_by].name}"
    owner = f", slot {slot.id}" if several else ""
    return f"checkpoint {checkpoint_word(each)}{made}{owner}"


def checkpoint_word(each: CheckpointState) -> str:
    """A checkpoint as people write it."""
    return f"{each.n_tokens}[{each.pos_min}..{each.pos_max}]"


def _state(texts: Texts, each: CheckpointState) -> tuple[Bar, ...]:
    if each.row is not None:
        return tuple(texts.bars(each.row))
    if each.cells:
        return tuple(texts.bar(run.position, run.holds) for run in each.cells)
    return (_unknown(each.n_tokens),)


def _parked(texts: Texts, entries: Sequence[Entry]) -> Iterator[Row]:
    """Conversations in order of their tokens, so that shared beginnings stand below each other."""
    before: tuple[int, ...] = ()
    spelled = sorted(((texts.spelled(each.tokens), each) for each in entries), key=_by_tokens)
    for ids, entry in spelled[:MOST_ENTRIES]:
        shared = _shared(ids, before)
        bars, start = [], 0
        for piece in (*_cut(entry.tokens, 0, shared), *_cut(entry.tokens, shared, len(ids))):
            bars.append(texts.bar(start, piece, "shared" if start < shared else "held"))
            start += size_of(piece)
        saved = f", {entry.checkpoints} checkpoint{'s'[: entry.checkpoints != 1]}"
        kind = f" ({entry.kind})" if entry.kind else ""
        label = f"parked{kind}: {entry.n_tokens} tokens{saved if entry.checkpoints else ''}"
        yield Row(kind="parked", label=label, bars=tuple(bars))
        for astray in entry.holds:
            right = _shared(texts.spelled(astray.tokens), ids)
            wrong = _cut(astray.tokens, right, sum(map(size_of, astray.tokens)))
            start, bars = 0, []
            for piece in (*_cut(astray.tokens, 0, right), *wrong):
                bars.append(texts.bar(start, piece, "held" if start < right else "wrong"))
                start += size_of(piece)
            yield Row(kind="parked", label=f"its {astray.place} holds", bars=tuple(bars))
        before = ids
    if len(entries) > MOST_ENTRIES:
        yield Row(kind="parked", label=f"{len(entries) - MOST_ENTRIES} more parked", bars=())


def _by_tokens(each: tuple[tuple[int, ...], Entry]) -> tuple[int, ...]:
    return each[0]
