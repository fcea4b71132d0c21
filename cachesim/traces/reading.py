"""Trace files in three formats, recognised by the first line; a request or batch per line.

    blocks   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
    texts    {"timestamp": 0, "prompt": [[0, 0, 6758]], "reply": [[1, 0, 500]]}
    events   {"ts": 0.0, "events": [{"type": "BlockStored", "block_hashes": [17, 18], ...}]}

Blocks are as Mooncake and Bailian publish them: an id stands for its block and everything before
it, so equal ids are equal prefixes; the last block may be partly filled. Files are read line by
line, compressed ones too: a trace may be larger than memory.

Timestamps count milliseconds in Mooncake's files and in texts, seconds in Bailian's and in events.
"""

import json
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

from cachesim.engines.tokens import LONGEST, Run
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import PARQUET, readable
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.typed import Json
from cachesim.why.read.lines import OTHER, SLOT

# -- a request of a trace --------------------------------------------------------------------------


class TraceError(InputError):
    """An invalid trace; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    blocks   7        9        12           an id stands for its block and all before it
    sizes    512      512      86           silent: as many as the trace's blocks have
    """

    time: float  # milliseconds since the trace began, in any unit of the trace
    length: int  # tokens of the prompt
    output: int  # tokens of the reply
    blocks: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    runs: tuple[Run, ...] = ()  # the prompt, where its texts are known
    reply: tuple[Run, ...] = ()
    kept: tuple[tuple[int, int], ...] = ()  # prompt and reply as blocks, where the reply is known
    silent: bool = False  # the trace has no length for its reply: one token is assumed
    seconds: bool = False  # the trace's own timestamps count seconds
    rank: int = 0  # the data-parallel rank that computed it
    assumed: str = ""  # what the form does not say, as a sentence


# -- formats ---------------------------------------------------------------------------------------


MOST_TEXTS: Final = 1 << 36
MOST_RUNS: Final = 1 << 20


class Chains:
    """Numbers of runs with all that precedes them: equal numbers are equal prefixes."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int, int], int] = {}

    def of(self, runs: Iterable[Run]) -> tuple[tuple[int, int], ...]:
        """Each run as a block with its number of tokens."""
        blocks, parent, before = [], -1, 0
        for text, first, last in runs:
            key = (parent, before, text, first)
            parent = self._numbers.setdefault(key, len(self._numbers))
            before = last - first
            blocks.append((parent, before))
        return tuple(blocks)

    def request(
        self, prompt: tuple[Run, ...], reply: tuple[Run, ...], time: float, **more: Any
    ) -> TraceRequest:
        """The request of a prompt and its reply."""
        blocks = self.of(prompt)
        return TraceRequest(
            time=time,
            length=sum(size for _, size in blocks),
            output=sum(last - first for _, first, last in reply),
            blocks=tuple(block for block, _ in blocks),
            sizes=tuple(size for _, size in blocks),
            runs=prompt,
            reply=reply,
            kept=self.of(joined([*prompt, *reply])),
            **more,
        )


def request_of(
    value: dict[str, Any], time: float, chains: Chains, place: str, *, seconds: bool
) -> TraceRequest:
    """The request of a line."""
    prompt = _runs(value.get("prompt"), f"{place}: prompt")
    reply = _runs(value.get("reply", []), f"{place}: reply")
    if not prompt:
        raise TraceError(f"{place}: prompt has no tokens; write runs as [[0, 0, 120]]")
    return chains.request(prompt, reply, time, silent="reply" not in value, seconds=seconds)


def line_of(time: float, prompt: Sequence[Run], reply: Sequence[Run]) -> str:
    """The line of a request."""
    entry = {"timestamp": time, "prompt": prompt, "reply": reply}
    return json.dumps(entry, separators=(",", ":")) + "\n"


def _runs(value: object, place: str) -> tuple[Run, ...]:
    if not isinstance(value, list) or len(value) > MOST_RUNS:
        msg = f"{place} is no list of runs; write them as [[text, first, past the last], ...]"
        raise TraceError(msg)
    return joined(_run(run, place) for run in value)


def _run(run: object, place: str) -> Run:
    match run:
        case [int(text), int(first), int(last)] if not any(isinstance(n, bool) for n in run):
            if 0 <= text < MOST_TEXTS and 0 <= first < last <= LONGEST:
                return text, first, last
    msg = f"{place} has {str(run)[:60]}; write a text's number, its first token, one past its last"
    raise TraceError(msg)


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs of which no two neighbours continue each other."""
    whole: list[Run] = []
    for text, first, last in runs:
        if whole and whole[-1][0] == text and whole[-1][2] == first:
            whole[-1] = (text, whole[-1][1], last)
        else:
            whole.append((text, first, last))
    return tuple(whole)


STORED: Final = "BlockStored"
KNOWN: Final = (STORED, "BlockRemoved", "AllBlocksCleared")
FIELDS: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys",
)  # fmt: skip
"""The order of a stored block's fields, for events encoded as lists."""

WHOLE: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups that keep every token."""

RANKS: Final = ("data_parallel_rank", "attn_dp_rank")
"""The keys of a batch's rank in vLLM and in SGLang; the third value where a batch is a list."""

NAMESPACE: Final = ("cache_salt", "lora_name", "lora_id")
"""Fields of a stored block that separate equal hashes; vLLM's hashes include a salt."""

Block: TypeAlias = tuple[Hashable, ...]
"""A block's namespace and its hash."""

PATIENCE: Final = 4096
"""Number of batches without a block after which a request has ended."""


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
    """Blocks by their hashes, and the running requests."""

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

    def add(self, value: Json, place: str) -> Iterator[TraceRequest]:
        """Add a batch; return ended requests, sorted by their start."""
        time, events, rank = batch_of(value, place)
        self._batch += 1
        self._turns[rank] += 1
        chains: dict[int, tuple[int, list[int]]] = {}  # last block -> parent of the first, blocks
        for event in events:
            name, fields = event_of(event, place)
            if name == STORED and _is_main(fields):
                self.ranks.add(rank)
                if self.rank in {None, rank}:
                    parent, numbers = self._store(fields, rank, place)
                    before, longer = chains.pop(parent, (parent, []))
                    chains[numbers[-1]] = before, longer + numbers
        for parent, numbers in chains.values():
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
        yield from self._ended(self._batch - PATIENCE)

    def end(self) -> Iterator[TraceRequest]:
        """Return the remaining requests."""
        yield from self._ended(self._batch + 1)

    def _store(self, fields: dict[str, Any], rank: int, place: str) -> tuple[int, list[int]]:
        hashes, size = fields.get("block_hashes"), fields.get("block_size")
        if not isinstance(hashes, list) or not hashes:
            raise TraceError(f"{place}: {STORED} without block_hashes; write a list of them")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise TraceError(f"{place}: block_size is {size!r}; write the tokens of a block")
        self.unit = self.unit or size
        if size != self.unit:
            msg = f"{place}: blocks of {size} tokens among blocks of {self.unit}; give each a file"
            raise TraceError(msg)
        space = namespace_of(fields, rank, place)
        before = fields.get("parent_block_hash")
        parent = -1 if before is None else self._number((*space, hash_of(before, place)))
        numbers = []
        for block_hash in hashes:
            number = self._number((*space, hash_of(block_hash, place)))
            if number not in self._parents and number in self._chain(parent):
                msg = (
                    f"{place}: block {block_hash!r} comes after itself; give it the block before it"
                )
                raise TraceError(msg)
            self._parents.setdefault(number, parent)
            numbers.append(number)
            parent = number
        return self._parents[numbers[0]], numbers

    def _number(self, block: Block) -> int:
        return self._numbers.setdefault(block, len(self._numbers))

    def _chain(self, number: int) -> list[int]:
        chain = []
        while number >= 0:
            chain.append(number)
            number = self._parents.get(number, -1)
        return chain[::-1]

    def _ended(self, before: int) -> Iterator[TraceRequest]:
        while self._order and (self._order[0].ended or self._order[0].batch < before):
            request = self._order.popleft()
            self._open.pop(request.blocks[-1], None)
            prompt = request.blocks[: len(request.blocks) - request.output]
            yield TraceRequest(
                time=request.time * (1 if self.milliseconds else 1000),
                length=self.unit * len(prompt),
                output=self.unit * request.output,
                blocks=tuple(prompt),
                seconds=not self.milliseconds,
                rank=request.rank,
            )


def is_batch(value: object) -> bool:
    """True for a line of KV events."""
    if isinstance(value, list):
        return len(value) > 1 and isinstance(value[1], list)
    return isinstance(value, dict) and "events" in value


def batch_of(value: Json, place: str) -> tuple[float, list[Json], int]:
    """A batch's time, events and rank; the rank is 0 on a server with one cache."""
    if isinstance(value, dict):
        ranks = [value[key] for key in RANKS if value.get(key) is not None]
        value = [value.get("ts"), value.get("events"), *ranks]
    match value:
        case [int(time) | float(time), list(events), *ranks] if not isinstance(time, bool):
            if 0 <= time < 1 << 40:
                return float(time), events, _rank(ranks[0] if ranks else None, place)
    raise TraceError(f'{place}: no batch of events; write {{"ts": 0.0, "events": [...]}}')


def _rank(value: object, place: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        msg = f"{place}: a batch's data_parallel_rank is {str(value)[:40]}; write a whole number"
        raise TraceError(msg)
    return value


def event_of(value: Json, place: str) -> tuple[str, dict[str, Json]]:
    """An event's name and its fields."""
    match value:
        case {"type": str(name)} if name in KNOWN:
            return name, value
        case [str(name), *values] if name in KNOWN:
            return name, dict(zip(FIELDS, values, strict=False))
    known = ", ".join(KNOWN)
    raise TraceError(f"{place}: {json.dumps(value)[:60]} is no event; there are {known}")


def namespace_of(fields: dict[str, Any], rank: int, place: str) -> Block:
    """The fields that distinguish a block from others with its hash."""
    return (rank, *(_scalar(fields.get(key), key, place) for key in NAMESPACE))


def hash_of(value: object, place: str) -> int | str:
    """A block's hash."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TraceError(f"{place}: a block's hash is {str(value)[:40]}; write a number or a text")
    return value


def _scalar(value: object, key: str, place: str) -> Hashable:
    if value is not None and not isinstance(value, int | str):
        msg = f"{place}: {key} is {str(value)[:40]}; write a text or a number, or leave it out"
        raise TraceError(msg)
    return value


def _is_main(fields: dict[str, Any]) -> bool:
    """True for attention's own blocks on the GPU: not a window's, a state's, or another tier's."""
    kind, medium = fields.get("kv_cache_spec_kind"), fields.get("medium")
    if medium is not None and str(medium).upper() != "GPU":
        return False
    return str(kind) in WHOLE if kind else fields.get("group_idx") in (None, 0)


def requests_of(lines: Iterable[tuple[Any, str]], stream: Stream) -> Iterator[TraceRequest]:
    """The requests of a stream, line by line."""
    for value, place in lines:
        yield from stream.add(value, place)
    yield from stream.end()


UNITS: Final = {"Mooncake": 512, "Bailian": 16}
"""Tokens per id, by publisher of such files."""

CHATS: Final = frozenset({"chat_id", "parent_chat_id"})
"""Keys of Bailian's lines only."""

Line: TypeAlias = tuple[Json, str]
"""A value of a file, with its place."""

Clock: TypeAlias = Literal["s", "ms"]
"""Unit of timestamps."""

MOST_TOKENS: Final = 1 << 24
MOST_ID: Final = 1 << 36
MOST_CHARACTERS: Final = 1 << 26
"""Most characters of a line, which bounds files without line ends."""

MOST_WHOLE: Final = 1 << 28
"""Most characters of a JSON document of many lines."""


def open_trace(
    path: Path,
    unit: int = 0,
    *,
    name: str = "",
    clock: Clock | None = None,
    rank: int | None = None,
) -> tuple[int, Iterator[TraceRequest]]:
    """A trace's block size, given or inferred from its first request, and its requests; 1: exact
    runs.

    `name` replaces the path in messages, `clock` what the form's timestamps count in. Of a stream
    of events, `rank` keeps the requests of one data-parallel rank.
    """
    name = name or str(path)
    lines = lines_of(path, name)
    head = next(lines, None)
    if head is None:
        raise TraceError(f"{name}: no request in it; write one JSON object a line")
    lines = chain([head], lines)
    if is_batch(head[0]):
        stream = Stream(rank=rank, milliseconds=clock == "ms")
        requests = requests_of(lines, stream)
        first = next(requests, None)
        if first is None:
            ranks = ", ".join(map(str, sorted(stream.ranks)))
            here = f" of rank {stream.rank} (there are {ranks or 'none'})" if stream.ranks else ""
            msg = f"{name}: no block{here} is stored in these events, so there is no request"
            raise TraceError(msg)
        return stream.unit, chain([first], requests)
    if rank is not None:
        raise TraceError(f"{name}: --rank is {rank}, and only KV events name ranks; leave it out")
    if isinstance(head[0], dict) and "prompt" in head[0]:
        chains, seconds = Chains(), clock == "s"
        return 1, (
            request_of(
                _object(t, p), time_of_line(t, p, seconds=seconds), chains, p, seconds=seconds
            )
            for t, p in lines
        )
    chats = isinstance(head[0], dict) and bool(head[0].keys() & CHATS)
    unit = unit or _unit_of(_read(*head), name, chats=chats)
    seconds = clock == "s" if clock else chats or unit == UNITS["Bailian"]
    requests = (_read(value, place, seconds=seconds) for value, place in lines)
    return unit, _fitting(requests, unit, name)


def _unit_of(first: TraceRequest, name: str, *, chats: bool) -> int:
    """The block size for which the first request has as many blocks as ids."""
    units = [unit for unit in UNITS.values() if -(-first.length // unit) == len(first.blocks)]
    if chats and UNITS["Bailian"] in units:
        return UNITS["Bailian"]
    if len(units) != 1:
        known = ", ".join(f"{unit} ({who})" for who, unit in UNITS.items())
        fit = "fit each" if units else "fit none"
        raise TraceError(
            f"{name}:1: {counted(first.length, 'token')} in "
            f"{counted(len(first.blocks), 'block')} {fit} of the known "
            f"block sizes, {known}; write the tokens of a block with --unit"
        )
    return units[0]


def lines_of(path: Path, name: str) -> Iterator[Line]:
    """The values of a file with their places: JSON Lines, one JSON document, or Parquet.

    Of a folder, those of its files by name.
    """
    if path.is_dir():
        for file in sorted(file for file in path.iterdir() if file.is_file()):
            yield from lines_of(file, str(file))
        return
    if (rows := parquet_rows(path, name)) is not None:
        yield from rows
        return
    lines = text_lines(path, name)
    head = next(((text, place) for text, place in lines if text.strip()), None)
    if head is None:
        return
    text, place = head
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _document(text, lines, place, name)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield from ((item, f"{name}[{at}]") for at, item in enumerate(value))
    else:
        yield value, place
    yield from ((json_of(text, place), place) for text, place in lines if text.strip())


def _document(head: str, lines: Iterator[tuple[str, str]], place: str, name: str) -> Json:
    """A JSON document of many lines; a first line that begins none is no JSON."""
    if head.strip() not in {"{", "["} and not head.rstrip().endswith(("{", "[", ",")):
        return json_of(head, place)
    parts, length = [head], len(head)
    for text, _ in lines:
        parts.append(text)
        length += len(text)
        if length > MOST_WHOLE:
            msg = f"{name}: more than {MOST_WHOLE:,} characters; write one object a line"
            raise TraceError(msg)
    try:
        return json.loads("".join(parts))
    except (ValueError, RecursionError):
        return json_of(head, place)


def text_lines(path: Path, name: str, errors: str = "strict") -> Iterator[tuple[str, str]]:
    """The lines of a file with their places."""
    try:
        with (
            readable(name, TraceError),
            _opened(path, name) as file,
            TextIOWrapper(file, encoding="utf-8-sig", errors=errors) as lines,
        ):
            cut = iter(partial(lines.readline, MOST_CHARACTERS), "")
            for number, line in enumerate(cut, 1):
                place = f"{name}:{number}"
                if len(line) >= MOST_CHARACTERS:
                    msg = f"{place}: more than {MOST_CHARACTERS:,} characters; write a request each"
                    raise TraceError(msg)
                yield line, place
    except InputError as error:  # of what unpacks it
        raise TraceError(str(error)) from None


def parquet_rows(path: Path, name: str) -> Iterator[Line] | None:
    """The rows of a Parquet file; None if it is none."""
    with readable(name, TraceError), path.open("rb") as file:
        if file.read(len(PARQUET)) != PARQUET:
            return None
    if find_spec("pyarrow") is None:
        msg = f"{name}: is Parquet, which needs pyarrow: pip install 'cachesim[parquet]'"
        raise TraceError(msg)
    return _rows(path, name)


def _rows(path: Path, name: str) -> Iterator[Line]:
    parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{name}: row {number}"
    except (arrow.ArrowException, OSError) as error:
        raise TraceError(f"{name}: is Parquet, and cut or damaged: {str(error)[:80]}") from None


def _opened(path: Path, name: str) -> BinaryIO:
    file = path.open("rb")
    return unpacked(name, cast("BinaryIO", file), file.peek(HEAD_BYTES))


FROM_LOG: Final = (
    "`cachesim why FILE --trace TRACE` writes the requests of a log or a recording as a trace"
)


def json_of(line: str, place: str) -> Json:
    """The value of a line of JSON Lines."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        is_log = OTHER.search(line) is not None or SLOT.search(line) is not None
        wanted = f"; {FROM_LOG}" if is_log else "; write one object a line"
        raise TraceError(f"{place}: not JSON: {line.strip()[:60]!r}{wanted}") from None


def _object(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{place}: not an object; write one with input_length, output_length and hash_ids"
        raise TraceError(msg)
    return value


def _read(line: object, place: str, *, seconds: bool = False) -> TraceRequest:
    value = _object(line, place)
    if "hash_ids" not in value:
        keys = ", ".join(list(value)[:6]) or "none"
        wanted = "write input_length, output_length and hash_ids, prompt_token_ids, or messages"
        wanted = FROM_LOG if "segments" in value or "request" in value else wanted
        raise TraceError(f"{place}: no known form of a trace: {wanted}; the keys are {keys}")
    blocks = value["hash_ids"]
    if not isinstance(blocks, list) or not blocks:
        raise TraceError(f"{place}: hash_ids must be a list of whole numbers, one for each block")
    output = value.get("output_length")
    silent = output is None
    return TraceRequest(
        time=time_of_line(value, place, seconds=seconds),
        length=whole(value.get("input_length"), 1, MOST_TOKENS, f"{place}: input_length"),
        output=1 if silent else whole(output, 0, MOST_TOKENS, f"{place}: output_length"),
        blocks=tuple(whole(block, 0, MOST_ID, f"{place}: hash_ids") for block in blocks),
        silent=silent,
        seconds=seconds,
    )


def time_of_line(value: dict[str, Any], place: str, *, seconds: bool = False) -> float:
    """The milliseconds of a line's timestamp."""
    unit = "seconds" if seconds else "milliseconds"
    return time_of(value.get("timestamp", 0), f"{place}: timestamp", unit) * (
        1000 if seconds else 1
    )


def time_of(time: object, place: str, unit: str = "seconds") -> float:
    """A number of seconds or milliseconds."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1 << 50:
        raise TraceError(f"{place} is {str(time)[:40]}; write {unit}, or leave it out")
    return float(time)


def whole(value: object, low: int, high: int, place: str) -> int:
    """A whole number between two limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        msg = f"{place} has {str(value)[:40]}; write a whole number from {low} to {high}"
        raise TraceError(msg)
    return value


def _fitting(requests: Iterable[TraceRequest], unit: int, name: str) -> Iterator[TraceRequest]:
    for number, request in enumerate(requests, 1):
        if -(-request.length // unit) != len(request.blocks):
            raise TraceError(
                f"{name}: request {number} has {request.length} tokens "
                f"in {len(request.blocks)} blocks; with {unit} tokens a block "
                f"it needs {-(-request.length // unit)}"
            )
        yield request
