"""The story of a run, step by step: the request, the memory, the rules applied."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cachesim.engines.events import Event, Tone
from cachesim.play.result import Run, SlotCount, Step
from cachesim.play.states import CellPart, Piece, TreeState, size_of
from cachesim.report.document import facts
from cachesim.report.picture import tree_rows
from cachesim.report.tables import answer_text, count
from cachesim.report.texts import texts_of

# -- token ribbons ---------------------------------------------------------------------------------

# The signs are those of `picture_text` and of the page; drawings have a look for each.
# =  cached: prefilled for an earlier request and taken from cache
# ^  cached, wrong content: memory holds something other than this token, or nothing
# ~  lost, so prefilled again
# +  prefilled
# -  removed: held before, not part of this prompt
# .  held, unchanged by this step

LETTERS: Final = {
    "=": "reused",
    "^": "wrong",
    "~": "again",
    "+": "computed",
    "-": "cut",
    ".": "quiet",
}
SIGNS_TEXT: Final = "= cached  ^ cached, wrong content  ~ lost, and prefilled again  + prefilled"
LEGEND: Final = (
    f"{SIGNS_TEXT}"
    "\n- removed  . unchanged  xN: each sign stands for N tokens"
    "\ncorrupted: computed from wrong cache contents"
)
WIDEST: Final = 58

Parts: TypeAlias = Sequence[tuple[str, int]]


def prompt_parts(step: Step) -> list[tuple[str, int]]:
    """The letters of a prompt: cached, wrong content, prefilled again, prefilled."""
    cached = step.cached or 0
    new = step.size - cached - step.missed
    return [*reused_parts(step, cached), ("~", step.missed), ("+", new)]


def reused_parts(step: Step, count: int) -> list[tuple[str, int]]:
    """Reused tokens; those with wrong content are marked.

    A recurrent state is wrong from the token on at which it diverges from the prompt; a cell is
    wrong by itself.
    """
    fault = step.explanation.fault if step.explanation else None
    if fault is None or fault.position >= count:
        return [("=", count)]
    if fault.place == "recurrent":
        return [("=", fault.position), ("^", count - fault.position)]
    return [("=", fault.position), ("^", 1), ("=", count - fault.position - 1)]


def scale_of(*ribbons: Parts, widest: int = WIDEST) -> int:
    """Number of tokens per letter at which the longest of several ribbons fits."""
    total = max((sum(size for _, size in parts) for parts in ribbons), default=0)
    return max(1, -(-total // widest))


def letters(parts: Parts, scale: int) -> list[tuple[str, str]]:
    """Each part as its letters, at least one, with their style.

    A part ends at its last token, so that ribbons below each other keep one scale.
    """
    found, start, tokens = [], 0, 0
    for letter, size in parts:
        if size <= 0:
            continue
        tokens += size
        end = max(start + 1, round(tokens / scale))
        found.append((letter * (end - start), LETTERS[letter]))
        start = end
    return found


def ribbon(parts: Parts, scale: int) -> Text:
    """Parts as letters, and the scale where it is not one to one."""
    text = Text()
    for word, style in letters(parts, scale):
        text.append(word, style=style)
    if scale > 1:
        text.append(f" x{scale}", style="quiet")
    return text


# -- the story -------------------------------------------------------------------------------------


UNDER: Final = re.compile(r", under (the root|\d+)")


def memory_facts(run: Run, index: int) -> Iterator[tuple[str, str]]:
    """Cells and rows with the steps of their tokens; nothing without details."""
    detail = run.steps[index].detail
    if run.detail is None or detail is None or not detail.at:
        return
    state = run.detail.states[detail.at[-1]]
    memory = state.memory
    for part in memory.cells:
        yield "cells", f"{part.part}: {_cells(run, part)}"
    if state.tree is not None and state.tree.nodes:
        yield "tree", "\n".join(_tree(run, state.tree))
    for row in memory.rows if state.tree is None else ():
        if row.position >= 0:
            whose = f", computed from {owners(run, row.tokens)}" if row.tokens else ""
            yield f"row {row.row}", f"state at position {row.position}{whose}"


def _tree(run: Run, tree: TreeState) -> Iterator[str]:
    """A line for each node under its parent, with the origin of its own tokens."""
    for row in tree_rows(texts_of(run), tree):
        pieces: list[Piece] = [
            {"tokens": bar.tokens} if bar.step is None else {"step": bar.step, "count": size}
            for bar in row.bars
            for size in [bar.end - bar.start]
        ]
        label = UNDER.sub("", row.label)  # the lines show it
        line = label if row.branch is None else f"{row.branch.stem}{label}"
        joint = " " if row.branch is not None and row.branch.root else "; "
        yield f"{line}{joint}{owners(run, pieces)}" if pieces else line


def _cells(run: Run, part: CellPart) -> str:
    held = [cell_run.holds for cell_run in part.runs if cell_run.holds]
    used = sum(cell_run.count for cell_run in part.runs)
    if not used:
        return f"none of {part.size}"
    return f"{used} of {part.size}: {owners(run, held)}"


def owners(run: Run, pieces: Sequence[Piece]) -> str:
    """`1 token of A, 46 of C`, in the order of positions; neighbours of one step together."""
    counts: list[tuple[str, int]] = []
    for piece in pieces:
        whose = f"of {run.steps[piece['step']].name}" if "step" in piece else "corrupted"
        before = counts.pop() if counts and counts[-1][0] == whose else (whose, 0)
        counts.append((whose, before[1] + size_of(piece)))
    return ", ".join(
        f"{count}{' token' + 's'[: count != 1] if number == 0 else ''} {whose}"
        for number, (whose, count) in enumerate(counts)
    )


SIGNS: Final[dict[Tone, str]] = {"loss": "-", "gain": "+", "warn": "!", "plain": " ", "quiet": " "}
STYLES: Final[dict[Tone, str]] = {
    "loss": "lost",
    "gain": "right",
    "warn": "wrong",
    "plain": "",
    "quiet": "quiet",
}


def event_lines(events: Iterable[Event]) -> Table:
    """Indented lines, `+ checkpoint 96[95..95] is saved, 1 of at most 32`."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(min_width=3, no_wrap=True)
    table.add_column(overflow="fold")
    for event in events:
        tone = event.loudness()
        style = "quiet" if tone == "quiet" else ""
        table.add_row(
            Text(f"  {SIGNS[tone]}", style=STYLES[tone]), Text(event.sentence, style=style)
        )
    return table


MOST_CHECKPOINTS: Final = 8


def story(run: Run, *, only: int | None = None) -> RenderableType:
    """A whole run, or one step of it."""
    parts: list[RenderableType] = [Text(LEGEND, style="quiet")]
    folded, scale = routine(run), scale_of_run(run)
    for index, step in enumerate(run.steps):
        if only not in {None, index}:
            continue
        parts += [Text(), step_before(run, index)]
        shown = [event for event in step.events if event.loudness() != "quiet"]
        parts.append(event_lines(event for event in shown if event.name() not in folded))
        names = [event.name() for event in shown if event.name() in folded]
        if names:
            parts.append(Padding(Text(f"routine: {', '.join(names)}", style="quiet"), (0, 0, 0, 4)))
        parts.append(step_after(run, index, scale))
    return Group(*parts)


def routine(run: Run) -> frozenset[str]:
    """Names of the routine events of every request of a run; none for one request."""
    named = [
        {event.name() for event in step.events if event.loudness() == "plain"}
        for step in run.steps
        if step.do == "complete" and step.error is None
    ]
    return frozenset(set[str].intersection(*named)) if len(named) > 1 else frozenset()


def step_before(run: Run, index: int) -> RenderableType:
    """Heading and prompt of a step."""
    step = run.steps[index]
    text = Text(f"{index + 1}. {step.name}", style="name")
    prompt = f"a prompt of {count(step.prompt_tokens)} tokens"
    heading = step.do if step.do != "complete" else prompt
    return text.append(f"  {heading}", style="")


def step_after(run: Run, index: int, scale: int) -> RenderableType:
    """Result of a step; `scale` tokens per letter of its ribbons."""
    table = facts(narrowest=13)
    for word, fact in _facts(run, index, scale):
        table.add_row(f"   {word}", fact)
    step = run.steps[index]
    if step.error is None:
        return Group(table)
    return Group(Text(f"   {step.finding.title}", style="wrong"), table)


BEFORE: Final = frozenset({"server", "match", "rule", "ideal", "consumed", "gone", "together"})
"""Statements about the reuse; the others are about the answer."""


def _facts(run: Run, index: int, scale: int) -> Iterator[tuple[str, RenderableType]]:
    step = run.steps[index]
    prompt: Parts = prompt_parts(step) if step.explanation else []
    slots = [(slot, _slot_parts(run, index, slot)) for slot in step.slots]
    if prompt:
        yield "prompt", ribbon(prompt, scale)
    yield from ((fact.word, fact.sentence) for fact in step.facts if fact.word in BEFORE)
    for slot, parts in slots:
        shown = ribbon(parts, scale) if slot.n_tokens or parts else Text("empty", "quiet")
        yield f"slot {slot.id}", shown
    yield from memory_facts(run, index)
    if step.checkpoints:
        shelf = [str(checkpoint) for checkpoint in step.checkpoints[-MOST_CHECKPOINTS:]]
        more = len(step.checkpoints) > MOST_CHECKPOINTS
        yield "checkpoints", " ".join(["...", *shelf] if more else shelf)
    if step.prompt_cache:
        yield "prompt cache", _entries_text(step.prompt_cache)
    if step.answer is not None:
        yield "answer", answer_text(step.answer)
    yield from (
        (statement.word, statement.sentence)
        for statement in step.statements
        if statement.word not in BEFORE
    )


def scale_of_run(run: Run) -> int:
    """Common scale of all ribbons of a run."""
    return scale_of(*(parts for i in range(len(run.steps)) for parts in _ribbons(run, i)))


def _ribbons(run: Run, index: int) -> Iterator[Parts]:
    step = run.steps[index]
    if step.explanation:
        yield prompt_parts(step)
    yield from (_slot_parts(run, index, slot) for slot in step.slots)


def _entries_text(entries: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{entry['n_tokens']} tokens"
        + (f" with {entry['checkpoints']} checkpoint" if entry["checkpoints"] else "")
        + "s"[: entry["checkpoints"] > 1]
        for entry in entries
    )


def _slot_parts(run: Run, index: int, slot: SlotCount) -> list[tuple[str, int]]:
    step = run.steps[index]
    earlier = run.steps[index - 1].slots if index else ()
    before = next((slot_count.n_tokens for slot_count in earlier if slot_count.id == slot.id), 0)
    if slot.id != step.slot or step.cached is None:
        return [(".", slot.n_tokens)] if slot.n_tokens else []
    kept = min(step.cached, slot.n_tokens)
    cut = max(0, before - kept)
    again = min(step.missed, slot.n_tokens - kept)
    new = slot.n_tokens - kept - again
    return [*reused_parts(step, kept), ("~", again), ("+", new), ("-", cut)]
