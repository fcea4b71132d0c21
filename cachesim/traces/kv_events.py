"""A stream of KV events, as vLLM and SGLang publish them, read as requests.

    stored [a b c] after nothing      a request of three blocks
    stored [d]     after c            it continues: a reply that filled a block
    stored [e f]   after b            another request: a b e f
    stored [g h]   after d, later     the next turn: a b c d g h

A line is one batch, `{"ts": 0.0, "events": [...]}` or the same as a list, its events with their
class's name under "type", or first in a list. The stream tells what was computed, not what was
asked for: a request that found every block is not in it, the rest of a prompt that fills no block
is not either, and where a request ends is a guess: what follows in the next batch, or fills one
block more, still belongs to it.

Each data-parallel rank publishes what its own cache stores, and hashes of two ranks are equal where
their tokens are. A block is therefore known by its rank, salt, adapter and hash together.
"""

import json
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cachesim.traces.asked import Asked, TraceError
from cachesim.typed import Json

STORED: Final = "BlockStored"
KNOWN: Final = (STORED, "BlockRemoved", "AllBlocksCleared")
FIELDS: Final = (
    *("block_hashes", "parent_block_hash", "token_ids"),
    *("block_size", "lora_id", "medium", "lora_name", "extra_keys"),
)
"""The order of a stored block's fields where events are lists."""

WHOLE: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups that keep every token."""

RANKS: Final = ("data_parallel_rank", "attn_dp_rank")
"""The keys of a batch's rank in vLLM and in SGLang; the third value where a batch is a list."""

NAMESPACE: Final = ("cache_salt", "lora_name", "lora_id")
"""Fields of a stored block that keep equal hashes apart. vLLM's hashes have a salt in them."""

Block: TypeAlias = tuple[Hashable, ...]
"""A block's namespace and its hash."""

PATIENCE: Final = 4096
"""Batches after which a request that got no block any more has ended."""


@dataclass(slots=True)
class _Open:
    """A request that may continue."""

    time: float
    batch: int  # the last one that brought a block
    rank: int
    turn: int  # the same, counting its rank's batches only
    blocks: list[int]
    output: int = 0  # blocks of the reply
    ended: bool = False


@dataclass(slots=True)
class Stream:
    """Blocks by their hashes, and the requests that are at work."""

    unit: int = 0
    rank: int | None = None  # the only one whose requests are wanted; all if None
    milliseconds: bool = False  # what its times count; upstream's count seconds
    ranks: set[int] = field(default_factory=set)  # that stored a block
    _numbers: dict[Block, int] = field(default_factory=dict)
    _parents: dict[int, int] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)  # by their last block
    _order: deque[_Open] = field(default_factory=deque)
    _batch: int = 0
    _turns: Counter[int] = field(default_factory=Counter)  # batches of each rank

    def add(self, told: Json, place: str) -> Iterator[Asked]:
        """Take in one batch; requests that have ended come out, the one that began first first."""
        time, events, rank = _batch_of(told, place)
        self._batch += 1
        self._turns[rank] += 1
        chains: dict[int, tuple[int, list[int]]] = {}  # last block -> parent of the first, blocks
        for event in events:
            name, fields = _event_of(event, place)
            if name == STORED and _is_main(fields):
                self.ranks.add(rank)
                if self.rank in {None, rank}:
                    parent, numbers = self._store(fields, rank, place)
                    before, longer = chains.pop(parent, (parent, []))
                    chains[numbers[-1]] = before, longer + numbers
        for parent, numbers in chains.values():
            self._give(time, rank, parent, numbers)
        yield from self._ended(self._batch - PATIENCE)

    def end(self) -> Iterator[Asked]:
        """All that is left."""
        yield from self._ended(self._batch + 1)

    def _store(self, fields: dict[str, Any], rank: int, place: str) -> tuple[int, list[int]]:
        hashes, size = fields.get("block_hashes"), fields.get("block_size")
        if not isinstance(hashes, list) or not hashes:
            msg = f"{place}: {STORED} without block_hashes; write a list of them"
            raise TraceError(msg)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            msg = f"{place}: block_size is {size!r}; write the tokens of a block"
            raise TraceError(msg)
        self.unit = self.unit or size
        if size != self.unit:
            msg = f"{place}: blocks of {size} tokens among blocks of {self.unit}; give each a file"
            raise TraceError(msg)
        space = (rank, *(_scalar(fields.get(key), key, place) for key in NAMESPACE))
        before = fields.get("parent_block_hash")
        parent = -1 if before is None else self._number((*space, _hash(before, place)))
        numbers = []
        for each in hashes:
            number = self._number((*space, _hash(each, place)))
            if number not in self._parents and number in self._chain(parent):
                msg = f"{place}: block {each!r} comes after itself; give it the block before it"
                raise TraceError(msg)
            self._parents.setdefault(number, parent)
            numbers.append(number)
            parent = number
        return self._parents[numbers[0]], numbers

    def _number(self, block: Block) -> int:
        return self._numbers.setdefault(block, len(self._numbers))

    def _give(self, time: float, rank: int, parent: int, numbers: list[int]) -> None:
        request, turn = self._open.pop(parent, None), self._turns[rank]
        if request is not None and (len(numbers) == 1 or turn - request.turn <= 1):
            request.output += len(numbers) == 1
            request.blocks += numbers
        else:
            if request is not None:
                request.ended = True
            request = _Open(time, self._batch, rank, turn, [*self._chain(parent), *numbers])
            self._order.append(request)
        request.batch, request.turn = self._batch, turn
        self._open[numbers[-1]] = request

    def _chain(self, number: int) -> list[int]:
        found = []
        while number >= 0:
            found.append(number)
            number = self._parents.get(number, -1)
        return found[::-1]

    def _ended(self, before: int) -> Iterator[Asked]:
        while self._order and (self._order[0].ended or self._order[0].batch < before):
            request = self._order.popleft()
            self._open.pop(request.blocks[-1], None)
            prompt = request.blocks[: len(request.blocks) - request.output]
            yield Asked(
                time=request.time * (1 if self.milliseconds else 1000),
                length=self.unit * len(prompt),
                output=self.unit * request.output,
                blocks=tuple(prompt),
                seconds=not self.milliseconds,
                rank=request.rank,
            )


def is_batch(told: object) -> bool:
    """Whether a line is one of such a stream."""
    if isinstance(told, list):
        return len(told) > 1 and isinstance(told[1], list)
    return isinstance(told, dict) and "events" in told


def _batch_of(told: Json, place: str) -> tuple[float, list[Json], int]:
    """A batch's time, events and rank; the rank is 0 where a server has one cache."""
    if isinstance(told, dict):
        ranks = [told[key] for key in RANKS if told.get(key) is not None]
        told = [told.get("ts"), told.get("events"), *ranks]
    match told:
        case [int(time) | float(time), list(events), *ranks] if not isinstance(time, bool):
            if 0 <= time < 1 << 40:
                return float(time), events, _rank(ranks[0] if ranks else None, place)
    msg = f'{place}: no batch of events; write {{"ts": 0.0, "events": [...]}}'
    raise TraceError(msg)


def _rank(told: object, place: str) -> int:
    if told is None:
        return 0
    if isinstance(told, bool) or not isinstance(told, int) or not 0 <= told < 1 << 32:
        msg = f"{place}: a batch's data_parallel_rank is {str(told)[:40]}; write a whole number"
        raise TraceError(msg)
    return told


def _event_of(told: Json, place: str) -> tuple[str, dict[str, Json]]:
    match told:
        case {"type": str(name)} if name in KNOWN:
            return name, told
        case [str(name), *values] if name in KNOWN:
            return name, dict(zip(FIELDS, values, strict=False))
    known = ", ".join(KNOWN)
    msg = f"{place}: {json.dumps(told)[:60]} is no event; there are {known}"
    raise TraceError(msg)


def _hash(told: object, place: str) -> int | str:
    if isinstance(told, bool) or not isinstance(told, int | str):
        msg = f"{place}: a block's hash is {str(told)[:40]}; write a number or a text"
        raise TraceError(msg)
    return told


def _scalar(told: object, key: str, place: str) -> Hashable:
    if told is not None and not isinstance(told, int | str):
        msg = f"{place}: {key} is {str(told)[:40]}; write a text or a number, or leave it out"
        raise TraceError(msg)
    return told


def _is_main(fields: dict[str, Any]) -> bool:
    """Attention's own blocks on the GPU: not a window's, a state's, or those of another tier."""
    kind, medium = fields.get("kv_cache_spec_kind"), fields.get("medium")
    if medium is not None and str(medium).upper() != "GPU":
        return False
    return str(kind) in WHOLE if kind else fields.get("group_idx") in (None, 0)


def requests_of(lines: Iterable[tuple[Any, str]], stream: Stream) -> Iterator[Asked]:
    """The requests of a stream, line by line."""
    for told, place in lines:
        yield from stream.add(told, place)
    yield from stream.end()
