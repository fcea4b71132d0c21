"""A memory in the words of the worked examples: runs in, dumps of cells out."""

from collections.abc import Sequence
from typing import Any

from cachesim.engines.llamacpp.memory.attention import AttentionCache, visible_cells
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.memory.context import Context, PlannedFailure
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import B9509, B11434, MemoryRules
from cachesim.typed import there_is
from conformance.real.vectors.memory import counter_context, named_parts

BOTH = (B9509, B11434)
NAMES = ("b9509", "b11434")


def runs(text: str) -> Batch:
    """`0:0+3, 0,1:3+1` without blanks inside: ids, first position, count."""
    seqs: list[tuple[int, ...]] = []
    positions: list[int] = []
    for part in text.split(" "):
        ids, span = part.split(":")
        start, count = map(int, span.split("+"))
        seqs += [tuple(map(int, ids.split(",")))] * count
        positions += range(start, start + count)
    return Batch(tokens=(0,) * len(seqs), positions=tuple(positions), seqs=tuple(seqs))


class Bench:
    """One memory of a given kind, its context, and short words for both."""

    def __init__(self, rules: MemoryRules, kind: str, **memory: Any) -> None:
        layers = {"kv": 0 if kind == "recurrent" else 1}
        if "iswa" in kind:
            layers["swa"] = 1
        if kind in {"recurrent", "hybrid", "hybrid-iswa"}:
            layers["recurrent"] = 1
            memory.setdefault("n_rs_seq", 0)
        defaults = {"kind": kind, "n_seq_max": 1, "unified": True, "layers": layers}
        self.context: Context = counter_context({**defaults, **memory}, rules)
        self.parts = named_parts(self.context.memory)

    def decode(self, n_ubatch: int, text: str, **options: Any) -> int:
        self.context.n_ubatch = n_ubatch
        self.context.all_outputs = options.get("all_outputs", False)
        fail = options.get("fail")
        failure = None if fail is None else PlannedFailure(ubatch=fail[0], code=fail[1])
        ret = self.context.decode(runs(text), fail=failure)
        self.context.check_integrity()
        return ret

    def rm(self, seq: int, p0: int, p1: int) -> bool:
        removed = self.context.seq_rm(seq, p0, p1)
        self.context.check_integrity()
        return removed

    def pos(self, seq: int) -> list[int]:
        return [self.context.seq_pos_min(seq), self.context.seq_pos_max(seq)]

    def save(self, seq: int, *, partial: bool = False) -> Blob:
        return self.context.state_write(seq, partial=partial)

    def load(self, blob: Blob, seq: int, *, partial: bool = False) -> bool:
        consumed = self.context.state_read(blob, seq, partial=partial)
        self.context.check_integrity()
        return consumed is not None

    # --- attention

    @property
    def kv(self) -> AttentionCache:
        return self.parts.caches["kv"]

    @property
    def swa(self) -> AttentionCache:
        return self.parts.caches["swa"]

    def head(self, name: str = "kv", stream: int = 0) -> int:
        return self.parts.caches[name].streams.heads[stream]

    def used(self, name: str = "kv", stream: int = 0) -> int:
        return self.parts.caches[name].streams.cells[stream].used

    def dump(self, name: str = "kv", stream: int = 0, *, ids: bool = True) -> str:
        """`5{0,1}~-3`: position, ids, pending shift; `.` is empty, trailing ones left out."""
        cells = self.parts.caches[name].streams.cells[stream]
        words = []
        for i in range(cells.size):
            if cells.pos[i] < 0:
                words.append(".")
                continue
            owners = ",".join(map(str, cells.seqs_of(i)))
            word = f"{cells.pos[i]}{{{owners}}}" if ids else str(cells.pos[i])
            words.append(word + (f"~{cells.shift[i]}" if cells.shift[i] else ""))
        while words and words[-1] == ".":
            words.pop()
        return " ".join(words)

    def ubatches(self) -> list[list[str]]:
        """The ubatches of the last decode: ids@position per token."""
        return [
            [
                f"{','.join(map(str, ids))}@{pos}"
                for ids, pos in zip(ubatch.seqs, ubatch.positions, strict=True)
            ]
            for ubatch, _ in self.context.reached
        ]

    def sets(self) -> list[tuple[int, int]]:
        """Sets and tokens per set of each ubatch."""
        return [(ubatch.n_seqs, ubatch.n_seq_tokens) for ubatch, _ in self.context.reached]

    def mask(self, name: str, text: str, *, causal: bool = True) -> list[str]:
        """The cells that cached tokens would see, `1` or `.` per cell."""
        self.context.n_ubatch = 512
        batch = runs(text)
        assert batch.positions is not None
        assert batch.seqs is not None
        cache = self.parts.caches[name]
        split = self.context.allocr.init(batch, Nothing())
        ubatch = split.simple(512)  # type: ignore[union-attr]
        assert ubatch is not None
        seen = visible_cells(cache.streams, cache.mask, ubatch, causal=causal)
        return [
            "".join("1" if i in row else "." for i in range(cache.streams.size)) for row in seen
        ]

    # --- recurrent

    @property
    def recurrent(self) -> RecurrentMemory:
        assert self.parts.recurrent is not None
        return self.parts.recurrent

    def planes(self, cell: int) -> list[int]:
        memory = self.recurrent
        rows: Sequence[int] = memory.planes.rows[memory.layers[0]][:, 0].tolist()
        return list(rows[cell :: memory.size])

    def state(self, seq: int) -> int:
        """Tokens absorbed in the live state of a sequence."""
        return self.planes(self.recurrent.cells.tail[seq])[0]

    def sources(self) -> tuple[int, ...]:
        """The rows that the last ubatch read."""
        store = there_is(self.context.reached[-1][1])
        assert store.recurrent is not None
        return store.recurrent.window.sources


class Nothing:
    """A memory that holds nothing, for building batches at will."""

    def seq_pos_min(self, seq: int) -> int:
        return -1

    def seq_pos_max(self, seq: int) -> int:
        return -1
