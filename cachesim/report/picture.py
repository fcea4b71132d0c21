"""Pictures of memory: rows of bars over the positions of a run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from cachesim.engines.held import BlockHeld
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.recall import STOP, text_of
from cachesim.play.result import Run, Step
from cachesim.play.states import (
    CellPart,
    CellRun,
    CheckpointState,
    Entry,
    Memory,
    Piece,
    Pieces,
    SlotState,
    State,
    TreeNode,
    TreeState,
    cut,
    part_of,
    size_of,
)
from cachesim.report.chain import PLACE
from cachesim.report.texts import Bar, BarKind, Texts, texts_of
from cachesim.verify.verdict import SHOWN

Kind: TypeAlias = Literal[
    "request", "slot", "attention", "window", "recurrent", "checkpoint", "entry", "tree"
]

Mark: TypeAlias = Literal["saved", "wrong", "lacks", ""]
"""Mark at a node's end: a valid state, a wrong state, no state, or no place for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Position of a row in a tree; lines go down where a parent ends."""

    start: int  # where its parent ends
    end: int
    lines: tuple[bool, ...] = ()  # for each node above it: whether another child of it follows
    passes: tuple[int, ...] = ()  # where lines to later rows run through this one
    root: bool = False
    leads_on: bool = False  # children follow
    last: bool = True  # no sibling follows
    mark: Mark = ""
    window: bool | None = None

    @property
    def stem(self) -> str:
        """Text of the lines to later rows, and the corner to the parent."""
        lines = "".join("│  " if more else "   " for more in self.lines)
        return lines if self.root else f"{lines}{'└─ ' if self.last else '├─ '}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the picture."""

    kind: Kind
    label: str
    bars: tuple[Bar, ...]
    note: str = ""  # what happened to it in this step
    bracket: tuple[int, int] | None = None  # what a window sees
    branch: Branch | None = None  # its place in a tree


MOST_NODES: Final = 24
"""Most nodes drawn; more are counted."""

ROOT: Final = 0


def tree_rows(texts: Texts, tree: TreeState) -> Iterator[Row]:
    """The root, then each node below its parent, with its wrong content."""
    by_number = {node.number: node for node in tree.nodes}
    shown = tree.nodes[:MOST_NODES]
    children: dict[int, list[TreeNode]] = {}
    for node in shown:
        children.setdefault(node.parent, []).append(node)
    yield Row(
        kind="tree",
        label=f"{tree.name}, root: {_counted(tree)}",
        bars=(),
        branch=Branch(start=0, end=0, root=True, leads_on=bool(shown)),
    )
    for node in shown:
        found = [node]
        while found[-1].parent != ROOT:
            found.append(by_number[found[-1].parent])
        path = found[::-1]
        own = sum(map(size_of, node.tokens))
        end = node.start + own
        astray = tuple(_misplaced(texts, node, path))
        follows = [tree_node is not children[tree_node.parent][-1] for tree_node in path]
        passes = [tree_node.start for tree_node, more in zip(path, follows, strict=True) if more]
        mark: Mark = "saved" if node.saved else "lacks" if node.lacks else ""
        branch = Branch(
            start=node.start,
            end=end,
            lines=tuple(follows[:-1]),
            passes=tuple(dict.fromkeys(passes)),
            leads_on=node.number in children,
            last=not follows[-1],
            mark="wrong" if astray else mark,
            window=node.window,
        )
        yield Row(
            kind="tree", label=_label(node, end), bars=tuple(_bars(texts, node)), branch=branch
        )
        inside = (*passes, end) if branch.leads_on else passes
        lines = (*follows, branch.leads_on)
        for label, bars in astray:
            hung = replace(
                branch,
                lines=lines,
                passes=tuple(dict.fromkeys(inside)),
                root=True,
                leads_on=False,
                mark="",
                window=None,
                start=0,
                end=0,
            )
            yield Row(kind="tree", label=label, bars=bars, branch=hung)
    if len(tree.nodes) > len(shown):
        yield Row(kind="tree", label=f"{len(tree.nodes) - len(shown)} more nodes", bars=())


def _counted(tree: TreeState) -> str:
    count = len(tree.nodes)
    saved = sum(bool(node.saved) for node in tree.nodes)
    what = "state" if tree.of == "memory" else "cache"
    text = f"{count} node{'s'[: count != 1]}"
    if not any(node.saved or node.lacks for node in tree.nodes):
        return text
    return f"{text}, {saved} {what}{'s'[: saved != 1]}"


def _label(node: TreeNode, end: int) -> str:
    parent = "the root" if node.parent == ROOT else str(node.parent)
    notes = []
    if node.saved:
        notes.append(f"{node.saved} after {end} token{'s'[: end != 1]}")
    elif node.lacks:
        notes.append(f"no {node.lacks}")
    if node.window is False:
        notes.append("window evicted")
    if node.kept != "here":
        notes.append("on the host only" if node.kept == "host" else "evicted")
    return f"node {node.number}, under {parent}{': ' if notes else ''}{', '.join(notes)}"


def _bars(texts: Texts, node: TreeNode) -> Iterator[Bar]:
    start = node.start
    for piece in node.tokens:
        if node.kept == "here":
            yield texts.bar(start, piece)
        else:
            where = "evicted, on the host" if node.kept == "host" else "evicted"
            bar = texts.bar(start, piece, "gone", also=f", {where}")
            yield replace(bar, text=f"{where}: {bar.text}")
        start += size_of(piece)


def _misplaced(
    texts: Texts, node: TreeNode, path: Sequence[TreeNode]
) -> Iterator[tuple[str, tuple[Bar, ...]]]:
    way = [token for tree_node in path for token in texts.spelled(tree_node.tokens)]
    if node.folded is not None:
        held = texts.spelled(node.folded)
        if held != tuple(way):
            yield "its state has processed", _wrong_from(texts, node.folded, way)
    for misplaced in node.holds:
        yield f"its {misplaced.place} holds", _wrong_from(texts, misplaced.tokens, way)


def _wrong_from(texts: Texts, pieces: Pieces, way: Sequence[int]) -> tuple[Bar, ...]:
    """Consecutive tokens, outlined from the first that differs from its key."""
    return _parted(texts, pieces, get_common_prefix(texts.spelled(pieces), way), "held", "wrong")


def _parted(
    texts: Texts, pieces: Sequence[Piece], at: int, before: BarKind, behind: BarKind
) -> tuple[Bar, ...]:
    """Consecutive tokens from position 0 on, of one kind up to a position and of another behind."""
    start, bars = 0, []
    for piece in (*cut(pieces, 0, at), *cut(pieces, at, sum(map(size_of, pieces)))):
        bars.append(texts.bar(start, piece, before if start < at else behind))
        start += size_of(piece)
    return tuple(bars)


RESTORED: Final = frozenset({"recurrent", "window"})
"""Kinds of rows into which a checkpoint is restored."""

MOST_CHECKPOINTS: Final = 5
MOST_ENTRIES: Final = 8
MOST_LANES: Final = 12


LABELS: Final = {"wrong": "cached, and wrong", "prefilled again": "lost, and prefilled again"}
"""Tooltip words for parts of a prompt, where the bar is too short."""


def request(run: Run, index: int) -> Iterator[Row]:
    """The prompt: cached, prefilled again as far as it was lost, prefilled."""
    step, texts = run.steps[index], texts_of(run)
    if step.detail is None or not step.detail.prompt or step.cached is None:
        return
    total, cached = step.size, min(step.cached, step.size)
    explained, due = step.explanation, cached + step.missed
    own: Piece = {"step": index, "at": 0, "count": total}
    fault = explained.fault if explained else None
    right = cached
    if fault is not None and step.answer == "diverged":
        right = min(cached, fault.position)
    segments: tuple[tuple[int, int, BarKind, str], ...] = (
        (0, right, "shared", "cached"),
        (right, cached, "wrong", "wrong"),
        (cached, due, "again", "prefilled again"),
        (due, total, "new", "prefilled"),
    )
    bars = []
    for start, end, kind, word in segments:
        for piece in cut([own], start, end):
            bar = texts.bar(start, piece, kind, also=f", {LABELS.get(word, word)}")
            bars.append(replace(bar, text=f"{end - start} {word}"))
    names = " ".join(part.name for part in step.detail.parts) if step.detail is not None else ""
    named = f": {names}" if names and len(names) <= MOST_NAMED else ""
    yield Row(kind="request", label=f"request {step.name}{named}", bars=tuple(bars))


MOST_NAMED: Final = 32
"""Letters of the part names in a request's label."""


def held(run: Run, state: State, index: int | None = None) -> tuple[Row, ...]:
    """Slots, cells, states, checkpoints, prompt-cache entries, and those of the companion.

    With a step's number, tokens that it prefilled are drawn so, and again those that were lost.
    """
    texts = texts_of(run)
    believed = {slot.id: texts.spelled(slot.tokens) for slot in state.slots}
    rows = [
        Row(
            kind="slot",
            label=f"slot {slot.id} thinks it holds",
            bars=tuple(texts.bars(slot.tokens)),
        )
        for slot in state.slots
        if slot.tokens or len(state.slots) == 1
    ]
    drawn = None if state.tree is None else state.tree.of
    if drawn != "memory":
        rows += _memory(texts, state.memory, believed, "")
    for slot in state.slots:
        rows += _shelf(texts, slot, several=len(state.slots) > 1)
    if state.tree is not None:
        rows += tree_rows(texts, state.tree)
    if drawn != "entries":
        rows += _entries(texts, state.prompt_cache)
    if state.companion is not None:
        rows += _memory(texts, state.companion, believed, "companion: ")
    return tuple(rows if index is None else (_since(run, index, row) for row in rows))


def _since(run: Run, index: int, row: Row) -> Row:
    """A row with the tokens that the step prefilled; those after the cached ones may be lost."""
    step, detail = run.steps[index], run.steps[index].detail
    first_lost, due = step.cached or 0, (step.cached or 0) + step.missed
    prompt = () if detail is None else detail.prompt
    bars: list[Bar] = []
    for bar in row.bars:
        if bar.step != index or bar.kind not in {"held", "shared"}:
            bars.append(bar)
            continue
        size = bar.end - bar.start
        at, until = (min(max(place - bar.start, 0), size) for place in (first_lost, due))
        if bar.tokens[at:until] != tuple(prompt[bar.start + at : bar.start + until]):
            until = at
        named = "again" if 2 * (until - at) >= size else "new"
        segments: tuple[tuple[int, int, BarKind], ...] = (
            (0, at, "new"),
            (at, until, "again"),
            (until, size, "new"),
        )
        for first, end, kind in segments:
            if first < end:
                part = _cut_bar(bar, first, end, kind)
                bars.append(part if kind == named else replace(part, text=""))
    return replace(row, bars=tuple(bars))


def _cut_bar(bar: Bar, first: int, end: int, kind: BarKind) -> Bar:
    colours, at = [], 0
    for count, colour in bar.colours:
        size = min(at + count, end) - max(at, first)
        colours += [(size, colour)] if size > 0 else []
        at += count
    return replace(
        bar,
        start=bar.start + first,
        end=bar.start + end,
        kind=kind,
        tokens=bar.tokens[first:end],
        words=bar.words[first:end],
        colours=tuple(colours),
    )


def _memory(
    texts: Texts, memory: Memory, believed: dict[int, tuple[int, ...]], prefix: str
) -> Iterator[Row]:
    for part in memory.cells:
        kind: Kind = "window" if part.part == "window" else "attention"
        if part.blocks:
            yield from _chains(texts, part, kind, prefix)
            continue
        owned = groupby(sorted(part.runs, key=lambda run: run.slots), key=lambda run: run.slots)
        for owners, found in owned:
            label = f"{prefix}{part.part}{_owner(owners, len(believed))}"
            runs = sorted(found, key=lambda run: (run.position, run.cell))
            truths = [believed[owner] for owner in owners if owner in believed]
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
    traced = {state.position for state in memory.rows if state.tokens is not None}
    for row in memory.rows:
        if row.tokens is None and row.position in traced:
            continue  # the state of another layer at the same position
        truths = [believed[slot] for slot in row.slots if slot in believed]
        label = f"{prefix}recurrent state at {row.position}{_owner(row.slots, len(believed))}"
        bars_of = _folded(texts, row.tokens or (), truths[0] if truths else ())
        if row.tokens is None:
            bars_of = (_unknown(row.position + 1),)
        yield Row(kind="recurrent", label=label, bars=bars_of)


def _chains(texts: Texts, part: CellPart, kind: Kind, prefix: str) -> Iterator[Row]:
    """The cached blocks as chains of hashes, a row from one fork to the next.

    A hash covers its parent's. Blocks with the same hash are not merged; the first one drawn has
    the children.
    """
    found: dict[int, BlockHeld] = {}
    for block in part.blocks:
        found.setdefault(block.hash, block)
    below: dict[int | None, list[BlockHeld]] = {}
    for block in sorted(
        part.blocks, key=lambda block_held: (block_held.position, block_held.block)
    ):
        parent = found.get(block.parent)
        below.setdefault(None if parent is None else parent.block, []).append(block)
    count, most = len(part.blocks), max(block.count for block in part.blocks)
    label = f"{prefix}{part.part}: {count} cached block{'s'[: count != 1]} of {most} tokens"
    joined = any(block.parent < 0 for block in part.blocks)
    root = Branch(start=0, end=0, root=True, leads_on=joined)
    yield Row(kind=kind, label=f"{label}, by hash", bars=(), branch=root)
    open_: list[tuple[BlockHeld, tuple[tuple[int, bool], ...], bool]] = [
        (block_held, (), i == 0) for i, block_held in enumerate(reversed(below.get(None, [])))
    ]
    rows = 0
    while open_ and rows < MOST_NODES:
        rows += 1
        first, above, last = open_.pop()
        chain = [first]
        while len(below.get(chain[-1].block, ())) == 1:
            chain += below[chain[-1].block]
        children = below.get(chain[-1].block, [])
        start, end = first.position, chain[-1].position + chain[-1].count
        orphan = first.parent >= 0 and first.parent not in found
        own = (*above, (start, not last))
        branch = Branch(
            start=start,
            end=end,
            lines=tuple(more for _, more in above),
            passes=tuple(dict.fromkeys(at for at, more in own if more)),
            root=orphan,
            leads_on=bool(children) and not orphan,
            last=last,
        )
        names = [f"#{block_held.hash}" for block_held in chain]
        if len(names) > MOST_HASHES:
            names[MOST_HASHES - 2 : -1] = ["..."]
        also = f", under #{first.parent}" if first.parent in found else ""
        also = f", parent #{first.parent} not cached" if orphan else also
        also = ", the same hash again" if found[first.hash] is not first else also
        bars = tuple(bar for block_held in chain for bar in _block(texts, part, block_held))
        yield Row(kind=kind, label=f"{' → '.join(names)}{also}", bars=bars, branch=branch)
        open_ += [(child, own, i == 0) for i, child in enumerate(reversed(children))]
    if open_:
        yield Row(kind=kind, label=f"{prefix}{part.part}: more chains", bars=())


MOST_HASHES: Final = 4
"""Hashes that the label of a chain names."""


def _block(texts: Texts, part: CellPart, block: BlockHeld) -> Iterator[Bar]:
    """A block's tokens; the first bar names it."""
    words = f"#{block.hash} block {block.block}"
    under = f" under #{block.parent}" if block.parent >= 0 else ", the first of its chain"
    for run in part.runs:
        first = max(run.cell, block.cell)
        end = min(run.cell + run.count, block.cell + block.count)
        if first < end:
            piece = part_of(run.holds, first - run.cell, end - run.cell)
            also = f", block {block.block}, hash #{block.hash}{under}"
            bar = texts.bar(run.position + first - run.cell, piece, also=also)
            yield replace(bar, text=words)
            words = ""


def _unknown(count: int) -> Bar:
    tip = f"processed {count} tokens; which ones is not recorded"
    return Bar(start=0, end=count, step=None, kind="held", text="tokens not recorded", tip=tip)


def _owner(owners: Sequence[int], slots: int) -> str:
    if slots < 2 or not owners:
        return ""
    word = "slot" if len(owners) == 1 else "slots"
    return f", {word} {' and '.join(map(str, owners))}"


def _lanes(runs: Sequence[CellRun]) -> list[list[CellRun]]:
    """Runs of cells in the fewest rows without overlaps."""
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
            start=at[0],
            end=at[-1] + 1,
            step=None,
            kind="missing",
            text="missing",
            tip=f"{where}: the next token needs this, and memory does not have it",
        )


def _folded(texts: Texts, pieces: Sequence[Piece], truth: Sequence[int]) -> tuple[Bar, ...]:
    held = texts.spelled(pieces)
    right = get_common_prefix(held, truth)
    if not truth or right in {len(held), len(truth)}:
        return tuple(texts.bars(pieces))
    return _parted(texts, pieces, right, "held", "wrong")


def _shelf(texts: Texts, slot: SlotState, *, several: bool) -> Iterator[Row]:
    shelf = slot.checkpoints[-MOST_CHECKPOINTS:]
    if len(slot.checkpoints) > len(shelf):
        label = f"{len(slot.checkpoints) - len(shelf)} older checkpoints"
        yield Row(kind="checkpoint", label=label, bars=())
    for state in shelf:
        owner = f", slot {slot.id}" if several else ""
        yield Row(
            kind="checkpoint",
            label=f"{_checkpoint_label(texts.steps, state)}{owner}",
            bars=_state(texts, state),
        )


def _checkpoint_label(steps: Sequence[Step], state: CheckpointState) -> str:
    made = "" if state.made_by is None else f", made by {steps[state.made_by].name}"
    return f"checkpoint {checkpoint_word(state)}{made}"


def checkpoint_word(each: CheckpointState) -> str:
    """A checkpoint with its tokens and positions."""
    return f"{each.n_tokens}[{each.pos_min}..{each.pos_max}]"


def _state(texts: Texts, each: CheckpointState) -> tuple[Bar, ...]:
    if each.row is not None:
        return tuple(texts.bars(each.row))
    if each.cells:
        return tuple(texts.bar(run.position, run.holds) for run in each.cells)
    return (_unknown(each.n_tokens),)


def _entries(texts: Texts, entries: Sequence[Entry]) -> Iterator[Row]:
    """Conversations in order of their tokens, so that shared beginnings stand below each other."""
    before: tuple[int, ...] = ()
    spelled = sorted(((texts.spelled(entry.tokens), entry) for entry in entries), key=itemgetter(0))
    for ids, entry in spelled[:MOST_ENTRIES]:
        same = get_common_prefix(ids, before)
        bars = _parted(texts, entry.tokens, same, "shared", "held")
        saved = f", {entry.checkpoints} checkpoint{'s'[: entry.checkpoints != 1]}"
        kind = f" ({entry.kind})" if entry.kind else ""
        label = (
            f"prompt-cache entry{kind}: {entry.n_tokens} tokens{saved if entry.checkpoints else ''}"
        )
        yield Row(kind="entry", label=label, bars=bars)
        for astray in entry.holds:
            wrong = _wrong_from(texts, astray.tokens, ids)
            yield Row(kind="entry", label=f"its {astray.place} holds", bars=wrong)
        before = ids
    if len(entries) > MOST_ENTRIES:
        yield Row(kind="entry", label=f"{len(entries) - MOST_ENTRIES} more entries", bars=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Arrow from the step that saved a checkpoint to the memory it was restored to."""

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
    """Picture of the server's memory at a moment of a step."""
    step = run.steps[index]
    rows = (*request(run, index), *held(run, state, index))
    return Picture(
        title=f"Memory at step {step.name}",
        about=_description(rows),
        positions=positions_of(run),
        rows=rows,
        steps=tuple(step.name for step in run.steps),
    )


def after(run: Run, index: int) -> Picture | None:
    """Picture of the server's memory after a step; None without details."""
    state = _state_after(run, index)
    return None if state is None else moment(run, index, state)


def story(run: Run, *, kinds: Sequence[Kind] | None = None) -> Picture:
    """All steps in rows, with arrows of restored checkpoints."""
    rows: list[Row] = []
    headings: list[tuple[int, str]] = []
    arrows: list[Arrow] = []
    for index, step in enumerate(run.steps):
        state = _state_after(run, index)
        if state is None:
            continue
        headings.append((len(rows), _heading(step, words=texts_of(run).words)))
        mine = [row for row in moment(run, index, state).rows if kinds is None or row.kind in kinds]
        found = _arrow(run, index, rows, headings, mine)
        if found is not None:
            arrows.append(found)
            at = found.to_row - len(rows)
            mine[at] = replace(mine[at], note=found.label)
        rows += mine
    names = tuple(step.name for step in run.steps)
    about = " ".join(
        f"{heading}: {_description(rows[first:last])}"
        for (first, heading), (last, _) in pairwise((*headings, (len(rows), "")))
    )
    return Picture(
        title=f"{run.scenario} on {run.profile}, step by step",
        about=about,
        positions=positions_of(run),
        rows=tuple(rows),
        steps=names,
        headings=tuple(headings),
        arrows=tuple(arrows),
    )


def decisive(picture: Picture) -> Picture:
    """The requests, the restored checkpoint at every step, and the memory resumed from it.

    With a wrong answer only the checkpoint that it came from; without one restored, all rows.
    """
    arrows = [arrow for arrow in picture.arrows if arrow.wrong] or picture.arrows
    ends = {arrow.to_row for arrow in arrows}
    names = {picture.rows[arrow.from_row].label for arrow in arrows}
    kept = [
        i
        for i, row in enumerate(picture.rows)
        if row.kind == "request" or i in ends or row.label in names or not names
    ]
    number = {old: new for new, old in enumerate(kept)}
    return replace(
        picture,
        rows=tuple(picture.rows[i] for i in kept),
        headings=tuple((number[at], text) for at, text in picture.headings if at in number),
        arrows=tuple(
            replace(arrow, from_row=number[arrow.from_row], to_row=number[arrow.to_row])
            for arrow in arrows
        ),
    )


def short(run: Run, index: int, drawn: Sequence[Sequence[Row]]) -> dict[int, list[int]]:
    """State -> its rows that matter to a step; `drawn` are the rows of every state."""
    source, detail = restored_label(run, index), run.steps[index].detail
    shown = set() if source is None or detail is None else {detail.before, *detail.at} - {-1}
    return {number: deciding(drawn[number], source or "") for number in shown}


def restored_label(run: Run, index: int) -> str | None:
    """How the rows of the checkpoint begin that a step resumed from; None without one."""
    found = restored(run, index)
    return None if found is None else f"{_checkpoint_label(run.steps, found)},"


def deciding(rows: Sequence[Row], source: str) -> list[int]:
    """Places of the request, the memory, and the checkpoint that it resumed from."""
    memory = [i for i, row in enumerate(rows) if row.kind in RESTORED][:1]
    others = (row.kind == "request" or f"{row.label},".startswith(source) for row in rows)
    return sorted({*memory, *(i for i, matters in enumerate(others) if matters)})


def clip(row: Row, positions: int) -> Row:
    """The first positions of a row; its label has the number of tokens."""
    end = max((bar.end for bar in row.bars), default=0)
    if end <= positions:
        return row
    bars = (
        _cut_bar(bar, 0, min(bar.end, positions) - bar.start, bar.kind)
        for bar in row.bars
        if bar.start < positions
    )
    return replace(row, bars=tuple(bars), label=f"{row.label}, {positions} of {end} tokens")


def _heading(step: Step, *, words: bool) -> str:
    if step.error is not None or step.cached is None:
        return f"{step.name}: {step.error or step.do}"
    shown = "not compared" if step.answer is None else SHOWN[step.answer]
    answer = shown if step.answer is None else f"answer {shown}"
    row = None if step.detail is None or not words else next(iter(step.detail.logits), None)
    if row is not None and row.cached != STOP:
        reply = text_of((row.cached,))
        answer = f"reply {reply}, {shown}"
        if row.cached != row.cold:
            return f"{step.name}: reply {reply} is WRONG, uncached run: {text_of((row.cold,))}"
    return f"{step.name}: {step.prompt_tokens} tokens, {step.cached} cached, {answer}"


def _state_after(run: Run, index: int) -> State | None:
    detail = run.steps[index].detail
    if detail is None or run.detail is None:
        return None
    number = detail.at[-1] if detail.at else detail.before
    return run.detail.states[number] if number >= 0 else None


BESIDE: Final = 7
"""Hundredths of the width kept free behind a node for its mark."""


MOST_WORDS: Final = 24
"""Positions up to which words are drawn; beside shorter requests, a longer one is clipped."""


def positions_of(run: Run) -> int:
    """Number of positions in the widest picture of a run."""
    longest = [step.size + len(step.generated) for step in run.steps]
    for state in () if run.detail is None else run.detail.states:
        longest += [sum(map(size_of, slot.tokens)) for slot in state.slots]
        longest += [entry.n_tokens for entry in state.prompt_cache]
        for memory in (state.memory, *([state.companion] if state.companion else [])):
            longest += [
                cells.position + cells.count for part in memory.cells for cells in part.runs
            ]
            longest += [row.position + 1 for row in memory.rows]
        for node in () if state.tree is None else state.tree.nodes:
            held = max([0, *(sum(map(size_of, misplaced.tokens)) for misplaced in node.holds)])
            end = node.start + sum(map(size_of, node.tokens))
            longest += [end + (BESIDE * end + 99) // 100, held]
            longest.append(sum(map(size_of, node.folded or ())))
    whole = max(longest, default=1) or 1
    if texts_of(run).words and whole > MOST_WORDS:
        return max((length for length in longest if length < MOST_WORDS), default=whole)
    return whole


# --- arrows and words ------------------------------------------------------------------------


def _arrow(
    run: Run,
    index: int,
    rows: Sequence[Row],
    headings: Sequence[tuple[int, str]],
    mine: Sequence[Row],
) -> Arrow | None:
    """Draw an arrow from the nearest row above with the restored checkpoint to its memory."""
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
    into = [i for i, row in enumerate(mine) if row.kind in RESTORED]
    if not above or not into:
        return None
    return Arrow(
        from_row=above[0],
        to_row=len(rows) + into[0],
        label=f"restored from {word} of {maker.name}",
        wrong=run.steps[index].answer == "diverged",
    )


def restored(run: Run, index: int) -> CheckpointState | None:
    """The checkpoint that a step resumed from, as it was before."""
    step = run.steps[index]
    if step.detail is None or run.detail is None or not step.cached:  # 0: a reset followed
        return None
    for number, event in enumerate(step.events):
        if event.name() != "checkpoint-restored":
            continue
        wanted = event.as_dict()
        seen = step.detail.at[number - 1] if number else step.detail.before
        slots = run.detail.states[seen].slots if seen >= 0 else ()
        shelf = [
            checkpoint
            for slot in slots
            if step.slot in {None, slot.id}
            for checkpoint in slot.checkpoints
        ]
        return next((state for state in shelf if _matches(state, wanted)), None)
    return None


def _matches(each: CheckpointState, wanted: dict[str, object]) -> bool:
    return all(wanted.get(name, getattr(each, name)) == getattr(each, name) for name in PLACE)


def _description(rows: Iterable[Row]) -> str:
    parts = []
    for row in rows:
        bars = [
            f"{bar.text}{', wrong' if bar.kind == 'wrong' else ''} at {bar.start}"
            + (f" to {bar.end - 1}" if bar.end - bar.start > 1 else "")
            for bar in row.bars
            if bar.text
        ]
        note = f" ({row.note})" if row.note else ""
        parts.append(f"{row.label}{note}: {', '.join(bars) or 'empty'}.")
    return " ".join(parts)
