"""Operations per second of the memory layer, bookkeeping alone: the network writes one number.

Growth is the exponent of time from 4,096 to 65,536 cells: 1 is linear, 2 would be quadratic. The
best of some runs counts, because a machine is never slow by itself.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import OK, Context
from cachesim.engines.llamacpp.memory.rules import B11434
from conformance.real.vectors.memory import counter_context

CELLS: Final = (4096, 65536)
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "attention": {"kind": "kv", "layers": {"kv": 4}},
    "window pair": {
        "kind": "iswa",
        "swa_cells": 1536,
        "n_swa": 1024,
        "swa_type": "standard",
        "layers": {"kv": 2, "swa": 2},
    },
    "recurrent": {"kind": "recurrent", "n_rs_seq": 0, "layers": {"recurrent": 4}},
    "hybrid": {"kind": "hybrid", "n_rs_seq": 0, "layers": {"kv": 1, "recurrent": 3}},
}
RUNS: Final = 5

Operation = Callable[[Context, int], None]
"""Something done to a context whose sequence 0 holds so many tokens, and undone."""


def filled(kind: str, cells: int) -> tuple[Context, int]:
    """A context with three quarters of its cells in use by sequence 0."""
    memory = {"n_seq_max": 4, "unified": True, "cells": cells, **KINDS[kind]}
    context = counter_context(memory, B11434)
    context.n_ubatch = 512
    n = cells // 4 * 3
    for start in range(0, n, 2048):
        tokens = (0,) * min(2048, n - start)
        require(context.decode(Batch.of(tokens, start=start)) == OK)
    return context, n


def require(done: object) -> None:
    """Stop measuring something that does not work."""
    if not done:
        raise RuntimeError("an operation of the benchmark was refused")


def decode_one(context: Context, n: int) -> None:
    """One token more."""
    require(context.decode(Batch.of((0,), start=context.seq_pos_max(0) + 1)) == OK)
    del n


def cut_and_append(context: Context, n: int) -> None:
    """Take the last 16 tokens back and decode them again."""
    end = context.seq_pos_max(0) + 1
    require(context.seq_rm(0, end - 16, -1))
    require(context.decode(Batch.of((0,) * 16, start=end - 16)) == OK)
    del n


def share_and_drop(context: Context, n: int) -> None:
    """Give everything to another sequence, and take it away again."""
    context.seq_cp(0, 1, -1, -1)
    require(context.seq_rm(1, -1, -1))
    del n


def shift_and_back(context: Context, n: int) -> None:
    """Move half of the positions on and back, and turn the keys."""
    context.seq_add(0, n // 2, -1, 5)
    context.seq_add(0, n // 2, -1, -5)
    context.memory.update()


def save_and_load(context: Context, n: int) -> None:
    """Save a sequence and restore it in place."""
    require(context.state_seq_set_data(context.state_seq_get_data(0), 0) > 0)
    del n


def check(context: Context, n: int) -> None:
    """Compare all books."""
    context.check_integrity()
    del n


OPERATIONS: Final[Mapping[str, tuple[Operation, tuple[str, ...]]]] = {
    "decode 1 token": (decode_one, ("attention", "window pair", "recurrent", "hybrid")),
    "cut 16 tokens, decode them": (cut_and_append, ("attention", "window pair")),
    "seq_cp all, seq_rm all": (share_and_drop, ("attention", "window pair", "hybrid")),
    "seq_add half, and back": (shift_and_back, ("attention",)),
    "save, load": (save_and_load, ("attention", "window pair", "recurrent", "hybrid")),
    "check_integrity": (check, ("attention", "hybrid")),
}


def seconds(operation: Operation, context: Context, n: int) -> float:
    """Best time of one operation; short ones are repeated within a run."""
    operation(context, n)
    begin = time.perf_counter()
    operation(context, n)
    times = max(1, min(50, int(0.01 / max(time.perf_counter() - begin, 1e-9))))
    best = math.inf
    for _ in range(RUNS):
        begin = time.perf_counter()
        for _ in range(times):
            operation(context, n)
        best = min(best, (time.perf_counter() - begin) / times)
    return best


def run(out: Console) -> None:
    """Print the table."""
    table = Table(title="memory of llama.cpp b11434, operations per second", title_style="")
    table.add_column("operation")
    table.add_column("memory")
    for cells in CELLS:
        table.add_column(f"{cells:,} cells", justify="right")
    table.add_column("growth", justify="right")
    for name, (operation, kinds) in OPERATIONS.items():
        for kind in kinds:
            spent = [seconds(operation, *filled(kind, cells)) for cells in CELLS]
            growth = math.log(spent[1] / spent[0]) / math.log(CELLS[1] / CELLS[0])
            table.add_row(name, kind, *(f"{1 / t:,.0f}" for t in spent), f"{growth:.2f}")
    out.print(table)
