"""Published figures on Mooncake's conversation trace, and what is found here.

    python -m conformance.published FOLDER

FOLDER has `conversation_trace.jsonl` of the Mooncake repository. Two yardsticks: how traces are
read, by a block cache of a few lines that knows no engine, against the column of the llmtrafficlens
package; and what engines reuse, against what the real servers' own classes reused of the same
requests. Marconi's own claim is a direction: its tuned policy reuses more than the least recently
used. Takes about ten minutes.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cachesim.traces.reading import TraceRequest, open_trace
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source

NAME: Final = "conversation_trace.jsonl"
K: Final = 1024
SIZES: Final = (16 * K, 64 * K, 256 * K, K * K, 4 * K * K, 16 * K * K, 1 << 40)
COLUMN: Final = (3.6, 4.5, 4.5, 5.6, 18.8, 35.6, 39.8)
"""llmtrafficlens: tokens reused in the last half, in %, at each size of the cache."""

PAGES: Final = {"page_size": 16, "context_length": 16000}
REAL: Final[tuple[tuple[float, str, str, dict[str, Any], dict[str, Any]], ...]] = (
    (0.3729, "vllm@0.33.0", "dense", {"num_gpu_blocks_override": 400000}, {}),
    (0.1406, "vllm@0.33.0", "dense", {"num_gpu_blocks_override": 5860}, {}),
    (0.3192, "sglang@0.5.23", "dense", {**PAGES, "max_total_tokens": 16000000}, {"first": 3000}),
    (0.1422, "sglang@0.5.23", "dense", {**PAGES, "max_total_tokens": 93760},
     {"first": 3000, "replies": 1}),
    (0.2586, "sglang@0.5.23", "hybrid",
     {**PAGES, "max_total_tokens": 16000000, "max_mamba_cache_size": 60000}, {"first": 3000}),
)  # fmt: skip
"""Reuse of the real classes; SGLang's with replies of one token."""

MARCONI: Final = {"n": 4, "capacity_bytes": 6_144_655_360}


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure, and what is found here."""

    what: str
    published: str
    found: str
    holds: bool


def least_recent(
    requests: Iterable[TraceRequest], unit: int, size: int, *, tail_first: bool
) -> float:
    """The share that blocks of the last half's requests find in a cache of `size` tokens, in %."""
    cache: OrderedDict[int, None] = OrderedDict()
    rows: list[tuple[int, int]] = []
    for request in requests:
        known = 0
        while known < len(request.blocks) and request.blocks[known] in cache:
            known += 1
        rows.append((min(known * unit, request.length), request.length))
        for block in reversed(request.blocks) if tail_first else request.blocks:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) * unit > size:
            cache.popitem(last=False)
    late = rows[len(rows) // 2 :]
    return 100 * sum(hit for hit, _ in late) / sum(length for _, length in late)


def column(path: Path) -> Iterator[Figure]:
    """Each size of the column; the package does not say in which order blocks are touched."""
    for size, published in zip(SIZES, COLUMN, strict=True):
        found = []
        for tail_first in (True, False):
            unit, requests = open_trace(path)
            found.append(round(least_recent(requests, unit, size, tail_first=tail_first), 1))
        name = "without limit" if size == SIZES[-1] else f"{size // K:,}K tokens"
        told = " or ".join(str(fromkey) for fromkey in dict.fromkeys(found))
        yield Figure(f"block cache, {name}", str(published), told, published in found)


def rates(path: Path) -> Iterator[Figure]:
    """Reuse of the engines."""
    for published, profile, model, options, reading in REAL:
        source = Source(name=str(path), scale=32, **reading)
        cell = Cell(source=source, profile=profile, model=model, options=tuple(options.items()))
        found = round(play(cell)["rate"], 4)
        size = {name: value for name, value in options.items() if name not in PAGES}
        told = ", ".join(f"{name}={value}" for name, value in (size | reading).items())
        yield Figure(f"{profile}, {model}, {told}", str(published), str(found), found == published)


def direction(path: Path) -> Iterator[Figure]:
    """Marconi's tuned policy against the least recently used."""
    found = [
        play(
            Cell(
                source=Source(name=str(path), scale=32),
                profile="marconi@paper",
                options=(*MARCONI.items(), ("policy", policy)),
            )
        )["rate"]
        for policy in ("tuned", "lru")
    ]
    told = f"{found[0]:.4f} and {found[1]:.4f}"
    yield Figure("marconi: tuned above least recently used", "above", told, found[0] > found[1])


def main(arguments: list[str]) -> int:
    """Every figure on a line; 1 where one is not found."""
    if len(arguments) != 1 or not (Path(arguments[0]) / NAME).exists():
        sys.stderr.write(
            f"name the folder that has {NAME}: python -m conformance.published FOLDER\n"
        )
        return 2
    path, held = Path(arguments[0]) / NAME, True
    for part in (column, rates, direction):
        for figure in part(path):
            held = held and figure.holds
            mark = "as published" if figure.holds else "OTHERWISE"
            told = f"{figure.what}: {figure.published}, here {figure.found}: {mark}\n"
            sys.stdout.write(told)
            sys.stdout.flush()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
