"""KV events, audited: the blocks that a router tracks by them, and contradictions.

    stored a      stored b, after a   removed a              stored b, after a
    believes a    believes a, b       b without its parent   b was gone, or is computed twice

A router knows a server's blocks by the events alone. Where an event is missing, or says what cannot
be, it takes blocks for held that are gone, and sends requests to where nothing is reused.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cachesim.engines.words import counted
from cachesim.traces import reading
from cachesim.typed import Json

FINDINGS: Final[Mapping[str, str]] = {
    "lost": "batches are missing: their numbers leave a gap",
    "late": "batches come after a later one, by their numbers or times",
    "unknown": "blocks are removed that were not stored before: a stored event is missing",
    "orphan": "blocks are stored after a parent that is not held",
    "again": (
        "blocks are stored again without a removal in between: they were gone while a router took "
        "them for held, or two requests computed them at once"
    ),
    "unreachable": "blocks are held at the end without their parent: no request can reach them",
}
"""Findings in a stream, worst first, each with its meaning."""

EXAMPLES: Final = 5
"""Most findings of a kind that are named."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where the stream does not fit."""

    kind: str
    place: str
    rank: int
    block: str = ""

    @property
    def sentence(self) -> str:
        """The place in words."""
        what = f"block {self.block}, " if self.block else ""
        return f"{what}rank {self.rank}, {self.place}"


@dataclass(slots=True)
class _Tier:
    """The blocks that a rank holds in one medium, of one group of layers."""

    held: dict[reading.Block, reading.Block | None] = field(default_factory=dict)  # with its parent
    names: dict[Hashable, list[reading.Block]] = field(default_factory=dict)  # by their hash alone


@dataclass(slots=True)
class Audit:
    """The account of a stream."""

    batches: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    most: int = 0  # blocks that a router took for held at once
    found: Counter[str] = field(default_factory=Counter)
    examples: list[Finding] = field(default_factory=list)
    _tiers: dict[tuple[int, str, Hashable], _Tier] = field(default_factory=dict)
    _last: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    _held: int = 0

    @classmethod
    def of(cls, lines: Iterable[reading.Line]) -> "Audit":
        """The audit of a stream's lines."""
        audit = cls()
        for value, place in lines:
            audit.add(value, place)
        audit.end()
        return audit

    @property
    def consistent(self) -> bool:
        """True if nothing was found."""
        return not self.found

    def add(self, value: Json, place: str) -> None:
        time, events, rank = reading.batch_of(value, place)
        self.batches += 1
        self._order(value, time, rank, place)
        for event in events:
            name, fields = reading.event_of(event, place)
            medium = str(fields.get("medium") or "GPU").upper()
            if name == reading.STORED:
                self._store(fields, rank, medium, place)
            elif name == REMOVED:
                self._remove(fields, rank, medium, place)
            else:
                self.cleared += 1
                for key in [key for key in self._tiers if key[0] == rank]:
                    self._held -= len(self._tiers.pop(key).held)

    def _order(self, value: Json, time: float, rank: int, place: str) -> None:
        number = value.get("seq") if isinstance(value, dict) else None
        number = number if isinstance(number, int) and not isinstance(number, bool) else None
        before, last = self._last.get(rank, (time, None))
        if time < before or (number is not None and last is not None and number <= last):
            self._find("late", place, rank)
            return
        if number is not None and last is not None and number > last + 1:
            self._find("lost", place, rank, many=number - last - 1)
        self._last[rank] = time, last if number is None else number

    def _store(self, fields: dict[str, Any], rank: int, medium: str, place: str) -> None:
        tier = self._tiers.setdefault((rank, medium, fields.get("group_idx")), _Tier())
        space = reading.namespace_of(fields, rank, place)
        before = fields.get("parent_block_hash")
        parent = None if before is None else (*space, reading.hash_of(before, place))
        if parent is not None and parent not in tier.held:
            self._find("orphan", place, rank, block=str(before))
        for block_hash in _hashes(fields):
            block: reading.Block = (*space, reading.hash_of(block_hash, place))
            self.stored += 1
            if block in tier.held:
                self._find("again", place, rank, block=str(block_hash))
                self._held -= 1
                self._part(tier, block)
            tier.held[block] = parent
            tier.names.setdefault(block[-1], []).append(block)
            self._held += 1
            parent = block
        self.most = max(self.most, self._held)

    def _remove(self, fields: dict[str, Any], rank: int, medium: str, place: str) -> None:
        """A removal has no salt: any block of this hash is meant."""
        tier = self._tiers.setdefault((rank, medium, fields.get("group_idx")), _Tier())
        for block_hash in _hashes(fields):
            self.removed += 1
            name = reading.hash_of(block_hash, place)
            named = tier.names.get(name)
            if named is None:
                self._find("unknown", place, rank, block=str(block_hash))
                continue
            self._part(tier, named[0])
            self._held -= 1

    def _part(self, tier: _Tier, block: reading.Block) -> None:
        del tier.held[block]
        named = tier.names[block[-1]]
        named.remove(block)
        if not named:
            del tier.names[block[-1]]

    def _find(self, kind: str, place: str, rank: int, *, block: str = "", many: int = 1) -> None:
        self.found[kind] += many
        if sum(example.kind == kind for example in self.examples) < EXAMPLES:
            self.examples.append(Finding(kind, place, rank, block))

    def end(self) -> None:
        """Look at what is held after the last batch."""
        for (rank, _, _), tier in self._tiers.items():
            for block, parent in tier.held.items():
                if parent is not None and parent not in tier.held:
                    self._find("unreachable", "at the end", rank, block=str(block[-1]))

    def sentences(self) -> Sequence[str]:
        """The audit in words."""
        ranks = len({rank for rank, _, _ in self._tiers}) or 1
        counts = (
            f"{self.batches:,} batches of {counted(ranks, 'rank')}: "
            f"{self.stored:,} blocks stored, {self.removed:,} removed, "
            f"cleared {self.cleared:,} times; at most {self.most:,} held at once, "
            f"{self._held:,} at the end."
        )
        lines = [counts]
        if self.consistent:
            return [
                *lines,
                "The stream is consistent: each removed block and each parent was held.",
            ]
        for kind, meaning in FINDINGS.items():
            if self.found[kind]:
                lines.append(f"{self.found[kind]:,} {meaning}")
                lines += [f"  {e.sentence}" for e in self.examples if e.kind == kind]
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The audit as plain data."""
        return {
            "format": 1,
            "consistent": self.consistent,
            "batches": self.batches,
            "stored": self.stored,
            "removed": self.removed,
            "cleared": self.cleared,
            "most_held": self.most,
            "held": self._held,
            "found": {kind: self.found[kind] for kind in FINDINGS if self.found[kind]},
            "examples": [asdict(example) for example in self.examples],
        }


REMOVED: Final = "BlockRemoved"


def _hashes(fields: Mapping[str, Any]) -> list[Any]:
    hashes = fields.get("block_hashes")
    return hashes if isinstance(hashes, list) else []


def is_events(path: Path) -> bool:
    """True for a file that begins with a batch of KV events."""
    try:
        head = next(reading.text_lines(path, str(path)), None) if path.is_file() else None
        return head is not None and reading.is_batch(json.loads(head[0]))
    except (ValueError, RecursionError):
        return False
