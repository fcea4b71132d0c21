"""Histories: which tokens went into a memory, in what order, and what they read on the way."""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from cachesim.model.arithmetic import Place
from cachesim.model.plain import Growing
from cachesim.units import Integers, Pos, Token, Tokens

NodeId: TypeAlias = int

ROOT: Final[NodeId] = 0
"""The history of no token at all; also what a fresh row and a fresh cell hold."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A cell that does not belong to the history it was seen with; ROOT where one is missing."""

    position: Pos
    node: NodeId
    above: NodeId = ROOT  # the cell just above it, which did not go on from it
    extra: bool = False  # beside another cell of this position, or beside the reader's own


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of a token in a place: the history it went on from, and the first stray."""

    node: NodeId
    stray: Stray | None = None


class Histories:
    """The table of all nodes; it only grows, and equal histories are one."""

    def __init__(self, places: tuple[Place, ...], chunk: int = 0) -> None:
        self.places = places
        self._chunk = chunk  # positions of a window that is a chunk; 0: windows slide
        self._ids: dict[tuple[Token, tuple[Reading, ...]], NodeId] = {}
        self._nodes: list[tuple[Token, tuple[Reading, ...]]] = [(Token(-1), ())]
        self._parents = Growing((len(places),), "int64")
        self._parents.append(np.zeros((1, len(places)), np.int64))
        self._depths = [(0,) * len(places)]

    def node(self, token: Token, readings: tuple[Reading, ...]) -> NodeId:
        """The number of a token that read this, new or known."""
        key = (token, readings)
        known = self._ids.get(key)
        if known is not None:
            return known
        fresh = len(self._nodes)
        self._nodes.append(key)
        self._parents.append(np.array([[reading.node for reading in readings]]))
        self._depths.append(
            tuple(self._depths[reading.node][i] + 1 for i, reading in enumerate(readings))
        )
        self._ids[key] = fresh
        return fresh

    def settle(self) -> None:
        """After an interruption: a node that is only half written down is forgotten."""
        whole = 1 + len(self._ids)
        del self._nodes[whole:], self._depths[whole:]
        self._parents.count = whole

    def clean(self, tokens: Tokens) -> list[NodeId]:
        """The nodes of a cold run: of no token, of the first one, and so on."""
        nodes = [ROOT]
        for at, token in enumerate(tokens):
            readings = (self.read(place, nodes, at) for place in range(len(self.places)))
            nodes.append(self.node(token, tuple(map(Reading, readings))))
        return nodes

    def begin(self, place: int, at: int) -> int:
        """The first position of a history that goes on at `at`: 0, or that of its chunk."""
        chunked = self._chunk and self.places[place] == "window"
        return at // self._chunk * self._chunk if chunked else 0

    def read(self, place: int, clean: list[NodeId], at: int) -> NodeId:
        """The node read by the token at `at` of a cold run; ROOT for the first of a chunk."""
        return ROOT if self.begin(place, at) == at else clean[at]

    def token(self, node: NodeId) -> Token:
        """The last token of a history; -1 for that of none."""
        return self._nodes[node][0]

    def readings(self, node: NodeId) -> tuple[Reading, ...]:
        """The readings of a node's token, place by place."""
        return self._nodes[node][1]

    def tokens(self, node: NodeId, place: int = 0) -> Tokens:
        """The history of a node as one place has it, oldest token first."""
        backwards = []
        while node != ROOT:
            token, readings = self._nodes[node]
            backwards.append(token)
            node = readings[place].node
        return tuple(reversed(backwards))

    def depth(self, node: NodeId, place: int) -> int:
        """The number of tokens of that history."""
        return self._depths[node][place]

    def parents(self, nodes: Integers, place: int) -> Integers:
        """The node each one went on from in a place."""
        parents: Integers = self._parents.data[nodes, place]
        return parents
