"""The rows of a picture of memory: what a request got, and each place that holds tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from cachesim.engines.tokens import get_common_prefix
from cachesim.report.picture_bars import Bar, Kind, Look, Row, Texts
from cachesim.report.picture_tree import tree_rows
from cachesim.scenario.provenance import Piece, cut, part_of, size_of
from cachesim.scenario.result import Run
from cachesim.scenario.states import CellRun, CheckpointState, Entry, Memory, SlotState, State

MOST_CHECKPOINTS: Final = 5
MOST_ENTRIES: Final = 8
MOST_LANES: Final = 12


TOLD: Final = {"wrong": "reused, and wrong", "reprocessed": "matched, but reprocessed"}
"""What a tip says more of a part of the prompt than its bar."""


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
        (right, cached, "wrong", "wrong"),
        (cached, equal, "again", "reprocessed"),
        (equal, total, "held", "new"),
    ):
        for piece in cut([own], start, end):
            bar = texts.bar(start, piece, _as_look(look), also=f", {TOLD.get(word, word)}")
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
    drawn = None if state.tree is None else state.tree.of
    if drawn != "memory":
        rows += _memory(texts, state.memory, believed, "")
    for slot in state.slots:
        rows += _shelf(texts, slot, several=len(state.slots) > 1)
    if state.tree is not None:
        rows += tree_rows(texts, state.tree)
    if drawn != "entries":
        rows += _parked(texts, state.prompt_cache)
    if state.companion is not None:
        rows += _memory(texts, state.companion, believed, "companion: ")
    return tuple(rows)


def _slots(texts: Texts, slots: Sequence[SlotState]) -> Iterator[Row]:
    for slot in slots:
        if slot.tokens or len(slots) == 1:
            bars = tuple(texts.bars(slot.tokens))
            yield Row(kind="slot", label=f"slot {slot.id} thinks it holds", bars=bars)


def _memory(
    texts: Texts, memory: Memory, believed: dict[int, tuple[int, ...]], prefix: str
) -> Iterator[Row]:
    for part in memory.cells:
        kind: Kind = "window" if part.part == "window" else "attention"
        owned = groupby(sorted(part.runs, key=lambda run: run.slots), key=lambda run: run.slots)
        for owners, found in owned:
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
    held = texts.spelled(pieces)
    right = get_common_prefix(held, truth)
    if not truth or right in {len(held), len(truth)}:
        return tuple(texts.bars(pieces))
    start, bars = 0, []
    for piece in (*cut(pieces, 0, right), *cut(pieces, right, len(held))):
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
        same = get_common_prefix(ids, before)
        bars, start = [], 0
        for piece in (*cut(entry.tokens, 0, same), *cut(entry.tokens, same, len(ids))):
            bars.append(texts.bar(start, piece, "shared" if start < same else "held"))
            start += size_of(piece)
        saved = f", {entry.checkpoints} checkpoint{'s'[: entry.checkpoints != 1]}"
        kind = f" ({entry.kind})" if entry.kind else ""
        label = f"parked{kind}: {entry.n_tokens} tokens{saved if entry.checkpoints else ''}"
        yield Row(kind="parked", label=label, bars=tuple(bars))
        for astray in entry.holds:
            right = get_common_prefix(texts.spelled(astray.tokens), ids)
            wrong = cut(astray.tokens, right, sum(map(size_of, astray.tokens)))
            start, bars = 0, []
            for piece in (*cut(astray.tokens, 0, right), *wrong):
                bars.append(texts.bar(start, piece, "held" if start < right else "wrong"))
                start += size_of(piece)
            yield Row(kind="parked", label=f"its {astray.place} holds", bars=tuple(bars))
        before = ids
    if len(entries) > MOST_ENTRIES:
        yield Row(kind="parked", label=f"{len(entries) - MOST_ENTRIES} more parked", bars=())


def _by_tokens(each: tuple[tuple[int, ...], Entry]) -> tuple[int, ...]:
    return each[0]
