"""Requests of 2,000 tokens a second through scheduler and tree, beside SGLang's own in one run.

Twenty shared prefixes of 1,500 tokens in turn, each request with 500 tokens of its own and a token
of reply; no model, one core, processor time. The real scheduler runs with PyTorch's CPU build, on
which it allocates pages in Python. The best of some runs counts, because a machine is never slow by
itself.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.vllm_manager import REQUESTS, RUNS, prompts
from cachesim.engines.sglang.family import FAMILY
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.rows import spell
from cachesim.prove.worker_side import Stopwatch
from conformance.real.sglang.playing import Driver
from conformance.real.sglang.scheduler import SCHEDULER

TREE: Final = (
    *("match", "match_tokens", "cache_finished", "cache_unfinished"),
    *("evict", "lock", "unlock"),
)
POOL: Final = {"tokens": 64_000, "max_running": 8}
STATES: Final = {"kind": "mamba", "states": 400, "interval": 256}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "full": {"kind": "full"},
    "full, pages of 16": {"kind": "full", "page": 16},
    "window": {"kind": "window", "window": 40, "window_tokens": 64_000},
    "no_buffer": {**STATES, "strategy": "no_buffer"},
    "extra_buffer": {**STATES, "strategy": "extra_buffer"},
}


def simulated(config: dict[str, Any], release: str, load: Sequence[list[int]]) -> dict[str, float]:
    """Seconds for the load on the simulated scheduler, and in its tree alone."""
    server = Driver(config, FAMILY.release(release).rules).server
    server.tree.on_evict = None  # nobody writes down what went, as in the real process
    clock = Stopwatch(server.tree, TREE)
    begun = time.process_time()
    for prompt in load:
        req = server.ask({"prompt": spell(prompt), "generate": 1, "reply": "1"})
        while not req.finished:
            server.passes()
    return {"scheduler": time.process_time() - begun, "tree": clock.seconds}


def run(out: Console) -> None:
    """The tables, one for each release."""
    load = prompts()
    texts = [spell(each) for each in load]
    for release in FAMILY.real():
        title = f"requests of 2,000 tokens a second, sglang {release}"
        table = Table(title=title, title_style="")
        table.add_column("model")
        for what in ("scheduler", "tree"):
            for head in (f"real {what}", "simulated", "times"):
                table.add_column(head, justify="right")
        try:
            with SCHEDULER.start(release) as real:
                for name, config in CONFIGS.items():
                    wanted = {**POOL, **config}
                    asked = {"config": wanted, "prompts": texts}
                    pairs = [
                        (real.play(asked)[0], simulated(wanted, release, load)) for _ in range(RUNS)
                    ]
                    cells = []
                    for what in ("scheduler", "tree"):
                        theirs = REQUESTS / min(one[what] for one, _ in pairs)
                        ours = REQUESTS / min(other[what] for _, other in pairs)
                        cells += [f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"]
                    table.add_row(name, *cells)
        except EnvironmentUnavailableError as error:
            out.print(f"not measured: {error}")
            return
        out.print(table)
