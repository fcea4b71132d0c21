"""Whose tokens lie in a memory: every computed token traced back to the step that brought it.

    piece    {"step": 1, "at": 0, "count": 20}    what step 1 has at its tokens 0 to 19,
             {"tokens": [402, 480]}               or tokens that stand in no step's text

The text of a step is its prompt and all that it generated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.held import UNKNOWN
from cachesim.model.histories import ROOT, NodeId
from cachesim.model.trace import Traced
from cachesim.scenario.session import Record
from cachesim.units import Tokens

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Origin:
    """A token of a step's text, or of nobody's."""

    step: int
    at: int
    token: int


Piece: TypeAlias = dict[str, Any]


def text_of(record: Record) -> Tokens:
    """A step's prompt and reply."""
    return record.prompt + (() if record.reply is None else record.reply.generated)


class Provenance:
    """The origins of all births and nodes of a run that is over."""

    def __init__(self, trace: Traced, records: Sequence[Record]) -> None:
        self.trace = trace
        self._tickets = sorted(
            (int(each.ticket), each.index) for each in records if each.ticket is not None
        )
        self.texts = {record.index: text_of(record) for record in records}
        self._births = 1  # how many are traced back; nobody was born as number 0
        self._born: list[Piece] = [{"tokens": [-1]}]
        self._firsts = [0]  # the first birth of each piece
        self._nodes: dict[NodeId, list[tuple[int, Origin]]] = {}  # births of equal histories
        self._of_step: dict[tuple[NodeId, int], list[tuple[int, Origin]]] = {}
        self._spelled: dict[Tokens, list[Piece]] = {}
        self._chains: dict[tuple[NodeId, int], list[Piece]] = {}

    def maker(self, task: int) -> int | None:
        """The step whose task this was; a ticket is the number of its first task."""
        return next((index for ticket, index in reversed(self._tickets) if ticket <= task), None)

    def learn(self, group: Sequence[Record], end: int) -> None:
        """The births up to `end` fell while the server worked on a group of steps."""
        clean: dict[NodeId, Origin] = {}
        for record in group:
            text = self.texts[record.index]
            for at, node in enumerate(self.trace.histories.clean(text)[1:]):
                clean.setdefault(node, Origin(record.index, at, int(text[at])))
        origins = []
        births = np.arange(self._births, end)
        for birth, node in enumerate(self.trace.nodes_of_births(births).tolist(), self._births):
            origin = clean.get(node) or self._by_place(node, group)
            self._nodes.setdefault(node, []).append((birth, origin))
            self._of_step.setdefault((node, origin.step), []).append((birth, origin))
            origins.append(origin)
        for piece in pieces(origins):
            self._firsts.append(self._births)
            self._born.append(piece)
            self._births += size_of(piece)

    def _by_place(self, node: NodeId, group: Sequence[Record]) -> Origin:
        """A token computed on wrong or shifted memory: the step that has it at this place."""
        token, at = int(self.trace.histories.token(node)), self.trace.histories.depth(node, 0) - 1
        for record in group:
            text = self.texts[record.index]
            if at < len(text) and text[at] == token:
                return Origin(record.index, at, token)
        return Origin(NOBODY, at, token)

    def born(self, birth: int, count: int) -> list[Piece]:
        """Births in a row; nothing where no marks were kept."""
        if birth == UNKNOWN:
            return []
        at, found = bisect_right(self._firsts, birth) - 1, []
        while count > 0:
            skipped = birth - self._firsts[at]
            piece = part_of(self._born[at], skipped, skipped + count)
            found.append(piece)
            birth, count, at = birth + size_of(piece), count - size_of(piece), at + 1
        return found

    def folded(self, node: NodeId, until: int) -> list[Piece] | None:
        """The tokens that a recurrent row has folded in, oldest first.

        Equal histories are one node. Of steps that computed it, before so many births, the last is
        named, and so are its own tokens before that one.
        """
        histories = self.trace.histories
        if node == UNKNOWN or "recurrent" not in histories.places:
            return None
        place = histories.places.index("recurrent")
        fresh: list[Origin] = []
        whole: tuple[NodeId, int] | None = None
        chain: list[Piece] = []
        step = NOBODY
        while node != ROOT:
            origin = self._origin(node, step, until)
            step, key = origin.step, (node, origin.step)
            whole = whole or key
            if key in self._chains:
                chain = self._chains[key]
                break
            fresh.append(origin)
            node = histories.readings(node)[place].node
        if fresh and whole:
            chain = self._chains[whole] = pieces(reversed(fresh), after=chain)
        return chain

    def _origin(self, node: NodeId, step: int, until: int) -> Origin:
        for born in (self._of_step.get((node, step), ()), self._nodes.get(node, ())):
            at = bisect_left(born, until, key=itemgetter(0))
            if at:
                return born[at - 1][1]
        return Origin(NOBODY, 0, int(self.trace.histories.token(node)))

    def spelled(self, tokens: Tokens) -> list[Piece]:
        """Tokens as pieces of texts, each the longest that some step has at that very place.

        Of steps that have it alike the first is named.
        """
        if tokens not in self._spelled:
            self._spelled[tokens] = self._spell(tokens)
        return self._spelled[tokens]

    def _spell(self, tokens: Tokens) -> list[Piece]:
        found: list[Piece] = []
        at = 0
        while at < len(tokens):
            shared = {step: _shared(text, tokens, at) for step, text in self.texts.items()}
            step = max(shared, key=lambda each: (shared[each], -each), default=NOBODY)
            count = shared.get(step, 0)
            if count:
                found.append({"step": step, "at": at, "count": count})
            elif found and "tokens" in found[-1]:
                found[-1]["tokens"].append(int(tokens[at]))
            else:
                found.append({"tokens": [int(tokens[at])]})
            at += max(1, count)
        return found


def _shared(text: Tokens, tokens: Tokens, at: int) -> int:
    """The number of tokens from `at` on are the same."""
    end = min(len(text), len(tokens))
    if text[at:end] == tokens[at:end]:
        return max(0, end - at)
    return next(i for i in range(at, end) if text[i] != tokens[i]) - at


def size_of(piece: Piece) -> int:
    """The number of tokens a piece has."""
    return int(piece["count"]) if "count" in piece else len(piece["tokens"])


def part_of(piece: Piece, start: int, end: int) -> Piece:
    """The tokens `[start, end)` of a piece, as far as it reaches."""
    if "tokens" in piece:
        return {"tokens": piece["tokens"][start:end]}
    count = min(end, piece["count"]) - start
    return {"step": piece["step"], "at": piece["at"] + start, "count": count}


def cut(pieces: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """The tokens `[start, end)` of pieces in a row."""
    found, at = [], 0
    for piece in pieces:
        size = size_of(piece)
        first, last = max(start - at, 0), min(end - at, size)
        if first < last:
            found.append(part_of(piece, first, last))
        at += size
    return found


def pieces(origins: Iterable[Origin], after: Sequence[Piece] = ()) -> list[Piece]:
    """Origins in a row, told in as few pieces as possible, behind those that there are."""
    found: list[Piece] = deepcopy(list(after))
    for each in origins:
        last = found[-1] if found else {}
        if each.step == NOBODY:
            if "tokens" in last:
                last["tokens"].append(each.token)
            else:
                found.append({"tokens": [each.token]})
        elif last.get("step") == each.step and last["at"] + last["count"] == each.at:
            last["count"] += 1
        else:
            found.append({"step": each.step, "at": each.at, "count": 1})
    return found
