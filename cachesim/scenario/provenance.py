"""Whose tokens lie in a memory: every computed token traced back to the step that brought it.

    piece    {"step": 1, "at": 0, "count": 20}    what step 1 has at its tokens 0 to 19,
             {"tokens": [402, 480]}               or tokens that stand in no step's text

The text of a step is its prompt and all that it generated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
        self.texts = {record.index: text_of(record) for record in records}
        self._births: list[Origin] = [Origin(NOBODY, 0, -1)]
        self._nodes: dict[NodeId, Origin] = {}
        self._chains: dict[NodeId, tuple[Origin, ...]] = {ROOT: ()}

    def learn(self, group: Sequence[Record], end: int) -> None:
        """The births up to `end` fell while the server worked on a group of steps."""
        clean: dict[NodeId, Origin] = {}
        for record in group:
            text = self.texts[record.index]
            for at, node in enumerate(self.trace.histories.clean(text)[1:]):
                clean.setdefault(node, Origin(record.index, at, int(text[at])))
        first = len(self._births)
        for node in self.trace.nodes_of_births(np.arange(first, end)).tolist():
            origin = clean.get(node) or self._by_place(node, group)
            self._births.append(origin)
            self._nodes.setdefault(node, origin)

    def _by_place(self, node: NodeId, group: Sequence[Record]) -> Origin:
        """A token computed on wrong or shifted memory: the step that has it at this place."""
        token, at = int(self.trace.histories.token(node)), self.trace.histories.depth(node, 0) - 1
        for record in group:
            text = self.texts[record.index]
            if at < len(text) and text[at] == token:
                return Origin(record.index, at, token)
        return Origin(NOBODY, at, token)

    def born(self, birth: int, count: int) -> list[Origin]:
        """The origins of births in a row; none where no ledger was kept."""
        return [] if birth == UNKNOWN else self._births[birth : birth + count]

    def folded(self, node: NodeId) -> list[Piece] | None:
        """The tokens that a recurrent row has folded in, oldest first."""
        if node == UNKNOWN or "recurrent" not in self.trace.histories.places:
            return None
        place = self.trace.histories.places.index("recurrent")
        fresh = []
        while node not in self._chains:
            fresh.append(node)
            node = self.trace.histories.readings(node)[place].node
        chain = self._chains[node]
        if fresh:
            chain += tuple(self._origin(each) for each in reversed(fresh))
            self._chains[fresh[0]] = chain
        return pieces(chain)

    def _origin(self, node: NodeId) -> Origin:
        token = int(self.trace.histories.token(node))
        return self._nodes.get(node, Origin(NOBODY, 0, token))

    def spelled(self, tokens: Tokens) -> list[Piece]:
        """Tokens as pieces of texts, each the longest that some step has at that very place.

        Of steps that have it alike the first is named.
        """
        origins: list[Origin] = []
        while len(origins) < len(tokens):
            at = len(origins)
            shared = {step: _shared(text, tokens, at) for step, text in self.texts.items()}
            step = max(shared, key=lambda each: (shared[each], -each), default=NOBODY)
            count = shared.get(step, 0)
            if not count:
                step, count = NOBODY, 1
            origins += [Origin(step, i, int(tokens[i])) for i in range(at, at + count)]
        return pieces(origins)


def _shared(text: Tokens, tokens: Tokens, at: int) -> int:
    """How many tokens from `at` on are the same."""
    end = min(len(text), len(tokens))
    if text[at:end] == tokens[at:end]:
        return max(0, end - at)
    return next(i for i in range(at, end) if text[i] != tokens[i]) - at


def pieces(origins: Iterable[Origin]) -> list[Piece]:
    """Origins in a row, told in as few pieces as possible."""
    found: list[Piece] = []
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
