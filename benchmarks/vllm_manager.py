"""Requests of 2,000 tokens a second through the cache manager, beside vLLM's own in the same run.

Twenty shared prefixes of 1,500 tokens in turn, each request with 500 tokens of its own: look up,
allocate, cache and free, ids included; no model, one core, processor time. The best of some runs
counts, because a machine is never slow by itself.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.request import Prefixes, Request
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.rows import spell
from conformance.real.vllm.playing import Driver
from conformance.real.vllm.scheduler import SCHEDULER

RELEASE: Final = "0.33.0"
REQUESTS: Final = 300
RUNS: Final = 7
BLOCKS: Final = 4000
FULL: Final = {"kind": "full", "block": 16}
GROUPS: Final = {
    "full16": [FULL],
    "full16+mamba16": [FULL, {"kind": "mamba", "block": 16}],
    "full16+window16": [FULL, {"kind": "window", "block": 16, "window": 40}],
}


def prompts() -> list[list[int]]:
    """The load, request by request."""
    shared = [list(range(10_000 * k, 10_000 * k + 1500)) for k in range(1, 21)]
    own = range(10**7, 10**7 + 500 * REQUESTS, 500)
    return [shared[i % 20] + list(range(first, first + 500)) for i, first in enumerate(own)]


def simulated(config: dict[str, Any], load: Sequence[Sequence[int]]) -> float:
    """Seconds for the load on the simulated manager."""
    manager = Driver(config, FAMILY.release(RELEASE).rules).server.manager
    prefixes = Prefixes(manager.sizes.hash_block)
    begun = time.process_time()
    for number, prompt in enumerate(load):
        request = Request.make(number, prefixes, prompt, max_tokens=1)
        hit = manager.get_computed_blocks(request)
        left = request.num_tokens - hit.length
        manager.allocate_slots(request, left, num_local_hit=hit.length, hit=hit.blocks)
        manager.free(request)
        manager.new_step_starts()
    return time.process_time() - begun


def run(out: Console) -> None:
    """The table."""
    load = prompts()
    try:
        with SCHEDULER.start(RELEASE) as real:
            table = Table(
                title=f"requests of 2,000 tokens a second, vllm {RELEASE}", title_style=""
            )
            for head in ("groups", "real manager", "simulated", "times"):
                table.add_column(head, justify="left" if head == "groups" else "right")
            for name, groups in GROUPS.items():
                retention = None if len(groups) == 1 else 0
                config = {"groups": groups, "blocks": BLOCKS, "retention": retention}
                wanted = {"config": config, "prompts": [spell(each) for each in load]}
                pairs = [
                    (real.play(wanted)[0]["seconds"], simulated(config, load)) for _ in range(RUNS)
                ]
                theirs, ours = (REQUESTS / min(column) for column in zip(*pairs, strict=True))
                table.add_row(name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}")
    except EnvironmentUnavailableError as error:
        out.print(f"not measured: {error}")
        return
    out.print(table)
