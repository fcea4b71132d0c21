"""Requests and tokens a second of each engine, counts only, and how they change with length.

    python -m benchmarks traces              10,000 requests on each engine
    python -m benchmarks.traces 100000       as many as are wanted
    python -m benchmarks.traces 1000000 llama.cpp@b11549

A made trace of chats that grow, in order. The time is the processor's, a tenth of the requests at a
time: where every tenth takes as long, the cost is linear. A process of its own for each engine says
how much memory it took.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Final

from rich.console import Console
from rich.table import Table

from cachesim.traces.replay import Cell, ServerRun
from cachesim.traces.source import Source

SERVERS: Final = {
    "llama.cpp@b11549": (("ctx_size", 131_072), ("cache_ram", 64)),
    "ik_llama.cpp@8337e4cd3": (("ctx_size", 131_072), ("cache_ram", 64)),
    "mlx-lm@0.32.2": (),
    "vllm@0.33.0": (("num_gpu_blocks_override", 64_000),),
    "sglang@0.5.23": (("max_total_tokens", 1_024_000), ("page_size", 16)),
    "marconi@paper": (("capacity_bytes", 1_000_000_000), ("n", 4), ("policy", "lru")),
}
MODEL: Final = "dense"
REQUESTS: Final = 10_000
REMEMBERED: Final = 100_000
"""Blocks: more than the chats that are going on can ask for again."""


def measured(profile: str, requests: int) -> dict[str, list[float]]:
    """For each tenth of a made trace: seconds, tokens, and the most memory so far in MiB."""
    source = Source(name=f"made:{requests}", remember=REMEMBERED)
    cell = Cell(source=source, profile=profile, model=MODEL, options=SERVERS[profile])
    found: dict[str, list[float]] = {"seconds": [], "tokens": [], "memory": []}
    begun, before = time.process_time(), 0
    run = ServerRun(cell)
    for finished in run.serve(cell.requests(), more=False):
        if finished % (requests // 10) == 0:
            now, tokens = time.process_time(), run.found.prompt_tokens
            found["seconds"].append(now - begun)
            found["tokens"].append(tokens - before)
            found["memory"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            begun, before = now, tokens
    return found


def run(out: Console, *, requests: int = REQUESTS, profiles: tuple[str, ...] = ()) -> None:
    """A line for each engine."""
    table = Table(title=f"{requests:,} requests of a made trace, counts only", title_style="")
    heads = (
        "requests/s",
        "tokens/s",
        "first tenth",
        "second",
        "last",
        "MiB after 1/10",
        "half",
        "all",
    )
    table.add_column("server")
    for head in heads:
        table.add_column(head, justify="right")
    for profile in profiles or SERVERS:
        own = [sys.executable, "-m", "benchmarks.traces", "--one", profile, str(requests)]
        done = subprocess.run(own, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        seconds, memory = found["seconds"], found["memory"]
        whole = sum(seconds)
        table.add_row(
            profile,
            f"{requests / whole:,.0f}",
            f"{sum(found['tokens']) / whole:,.0f}",
            *(f"{each:.2f} s" for each in (seconds[0], seconds[1], seconds[-1])),
            *(f"{each:,.0f}" for each in (memory[0], memory[4], memory[-1])),
        )
    out.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2], int(sys.argv[3]))))
    else:
        count = int(sys.argv[1]) if sys.argv[1:] else REQUESTS
        run(Console(width=120, highlight=False), requests=count, profiles=tuple(sys.argv[2:]))
