"""One picture of memory, as values: rows of bars over positions, coloured by who wrote them.

    request      what the prompt got: reused, processed again, new
    slot         the tokens that a slot believes to have
    attention    cells, one row for each group of owners
    window       the same, with the positions that the next token needs and does not find
    recurrent    the span that a state has folded in
    checkpoint   one row for each saved state, with its maker
    parked       conversations in memory of the host; what they share with the row above is faint
    tree         prefixes, each beginning where its parent ends; o where a request may resume
    companion    the same for the second context

`moment` is what one step, or one event of it, left behind; `story` puts the steps of a run below
each other, with an arrow from the step that made a checkpoint to the one that restored it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.report.picture_bars import Kind, Row
from cachesim.report.picture_rows import checkpoint_word, held, request
from cachesim.scenario.provenance import size_of
from cachesim.scenario.result import Run, Step
from cachesim.scenario.states import CheckpointState, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """From the row of the step that made a checkpoint to the row that it was restored into."""

    from_row: int
    to_row: int
    label: str
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Rows below each other on one scale of positions."""

    title: str
    about: str
    positions: int
    rows: tuple[Row, ...]
    steps: tuple[str, ...]  # the names of the steps, in the order of their colours
    headings: tuple[tuple[int, str], ...] = ()  # above the row with this number
    arrows: tuple[Arrow, ...] = field(default=())


def moment(run: Run, index: int, state: State) -> Picture:
    """What the server holds at one moment of a step."""
    step = run.steps[index]
    rows = (*request(run, index), *held(run, state))
    return Picture(
        title=f"Memory at step {step.name}",
        about=_told(rows),
        positions=positions_of(run),
        rows=rows,
        steps=tuple(each.name for each in run.steps),
    )


def after(run: Run, index: int) -> Picture | None:
    """What the server holds after a step; nothing where that was not watched."""
    state = _state_after(run, index)
    return None if state is None else moment(run, index, state)


def story(run: Run, *, kinds: Sequence[Kind] | None = None) -> Picture:
    """All steps below each other, and the way of a checkpoint that was restored."""
    rows: list[Row] = []
    headings: list[tuple[int, str]] = []
    arrows: list[Arrow] = []
    for index, step in enumerate(run.steps):
        state = _state_after(run, index)
        if state is None:
            continue
        headings.append((len(rows), _heading(step)))
        mine = [row for row in moment(run, index, state).rows if kinds is None or row.kind in kinds]
        found = _arrow(run, index, rows, headings, mine)
        if found is not None:
            arrows.append(found)
            at = found.to_row - len(rows)
            mine[at] = replace(mine[at], note=found.label)
        rows += mine
    names = tuple(step.name for step in run.steps)
    said = " ".join(
        f"{heading}: {_told(rows[first:last])}"
        for heading, first, last in _parts(headings, len(rows))
    )
    return Picture(
        title=f"{run.scenario} on {run.profile}, step by step",
        about=said,
        positions=positions_of(run),
        rows=tuple(rows),
        steps=names,
        headings=tuple(headings),
        arrows=tuple(arrows),
    )


def _parts(headings: Sequence[tuple[int, str]], end: int) -> Iterator[tuple[str, int, int]]:
    for (first, words), (last, _) in zip(headings, [*headings[1:], (end, "")], strict=True):
        yield words, first, last


def _heading(step: Step) -> str:
    if step.error is not None or step.cached is None:
        return f"{step.name}: {step.error or step.do}"
    answer = {"diverged": "answer WRONG", None: "not compared"}.get(step.answer, "answer right")
    return f"{step.name}: {step.prompt_tokens} tokens, {step.cached} cached, {answer}"


def _state_after(run: Run, index: int) -> State | None:
    detail = run.steps[index].detail
    if detail is None or run.detail is None:
        return None
    number = detail.at[-1] if detail.at else detail.before
    return run.detail.states[number] if number >= 0 else None


BESIDE: Final = 7
"""Hundredths of a node's end that are kept free after it, for the mark that stands there."""


def positions_of(run: Run) -> int:
    """How many positions there are to show in any of its pictures."""
    longest = [step.prompt_tokens + len(step.generated) for step in run.steps]
    for state in () if run.detail is None else run.detail.states:
        longest += [sum(map(size_of, slot.tokens)) for slot in state.slots]
        longest += [entry.n_tokens for entry in state.prompt_cache]
        for memory in (state.memory, *([state.companion] if state.companion else [])):
            longest += [
                cells.position + cells.count for part in memory.cells for cells in part.runs
            ]
            longest += [row.position + 1 for row in memory.rows]
        for node in () if state.tree is None else state.tree.nodes:
            held = max([0, *(sum(map(size_of, each.tokens)) for each in node.holds)])
            end = node.start + sum(map(size_of, node.tokens))
            longest += [end + (BESIDE * end + 99) // 100, held]
            longest.append(sum(map(size_of, node.folded or ())))
    return max(longest, default=1) or 1


# --- arrows and words ------------------------------------------------------------------------


def _arrow(
    run: Run,
    index: int,
    rows: Sequence[Row],
    headings: Sequence[tuple[int, str]],
    mine: Sequence[Row],
) -> Arrow | None:
    """From the first row above that shows the restored checkpoint to the memory it went into."""
    found = restored(run, index)
    if found is None or found.made_by is None or found.made_by >= index:
        return None
    maker = run.steps[found.made_by]
    start = headings[found.made_by][0] if found.made_by < len(headings) else 0
    word = checkpoint_word(found)
    above = [
        i
        for i, row in enumerate(rows)
        if i >= start and row.kind == "checkpoint" and row.label.startswith(f"checkpoint {word},")
    ]
    into = [i for i, row in enumerate(mine) if row.kind in {"recurrent", "window"}]
    if not above or not into:
        return None
    return Arrow(
        from_row=above[0],
        to_row=len(rows) + into[0],
        label=f"restored from {word} of {maker.name}",
        wrong=run.steps[index].answer == "diverged",
    )


def restored(run: Run, index: int) -> CheckpointState | None:
    """The checkpoint that a step was resumed from, as it lay on the shelf before."""
    step = run.steps[index]
    if step.detail is None or run.detail is None:
        return None
    for number, event in enumerate(step.events):
        if event.name() != "checkpoint-restored":
            continue
        told = event.as_dict()
        seen = step.detail.at[number - 1] if number else step.detail.before
        slots = run.detail.states[seen].slots if seen >= 0 else ()
        shelf = [
            each for slot in slots if step.slot in {None, slot.id} for each in slot.checkpoints
        ]
        return next((each for each in shelf if _is(each, told)), None)
    return None


def _is(each: CheckpointState, told: dict[str, object]) -> bool:
    names: tuple[tuple[str, Callable[[CheckpointState], int]], ...] = (
        ("n_tokens", lambda one: one.n_tokens),
        ("pos_min", lambda one: one.pos_min),
        ("pos_max", lambda one: one.pos_max),
    )
    return all(name not in told or told[name] == value(each) for name, value in names)


def _told(rows: Iterable[Row]) -> str:
    words = {"wrong": ", wrong", "missing": "", "again": "", "shared": "", "held": "", "gone": ""}
    told = []
    for row in rows:
        bars = [
            f"{bar.text}{words[bar.look]} at {bar.start} to {bar.end - 1}"
            if bar.end - bar.start > 1
            else f"{bar.text}{words[bar.look]} at {bar.start}"
            for bar in row.bars
        ]
        note = f" ({row.note})" if row.note else ""
        told.append(f"{row.label}{note}: {', '.join(bars) or 'empty'}.")
    return " ".join(told)
