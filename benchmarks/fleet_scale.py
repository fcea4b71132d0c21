"""Requests a second and memory of a fleet, for each tenth of a made trace.

    python -m benchmarks.fleet_scale 1000000 16 cache-aware

A fleet in two parts runs in two processes at once; this measures one of them.
"""

import resource
import sys
import time
from pathlib import Path

from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.fleet.serving import parts_of, play_fleet
from cachesim.traces.replay import Cell
from cachesim.traces.source import Source

REMEMBERED = 100_000
"""Blocks, of which each replica remembers its share."""

BLOCKS = 2_000


def main(requests: int, replicas: int, router: str) -> None:
    """A line for each tenth of the first part's requests: seconds and memory so far."""
    source = Source(name=f"made:{requests}", scale=32, remember=REMEMBERED)
    options = (("num_gpu_blocks_override", BLOCKS),)
    fleet = Fleet.of(replicas, router, parts=2)
    cell = Cell(source=source, profile="vllm@0.33.0", model="dense", options=options, fleet=fleet)
    part, tenth = parts_of(cell)[0], max(1, requests // 20)
    begun = time.process_time()

    def tell(done: int) -> None:
        if done % tenth == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            now = pages * resource.getpagesize() / 2**20
            print(f"{done:,} {time.process_time() - begun:.0f} s {now:.0f} MiB", flush=True)

    play_fleet(part, tell)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
