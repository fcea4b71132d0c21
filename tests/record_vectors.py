"""Records what SGLang's own scheduler does with random workloads, as `tests/vectors` keeps it.

`python -m tests.record_vectors 0.5.23 FILE` plays two sorts of workloads on the real scheduler; the
simulated one has no part in it. Some are drawn: those with a host tier first of all. Others are
neighbours: one workload on servers whose pools differ by a token or a page, so that every bound is
met exactly by one of them. Of neighbours that do the same the first is kept.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.rules import Rules
from cachesim.real.sglang.scheduler import SCHEDULER
from cachesim.real.sglang.workloads import KINDS, draw
from cachesim.real.worker_process import WorkerProcess

SEED: Final = 37
DRAWN: Final = {
    **dict.fromkeys(("host", "host-parts", "host-back", "storage"), 20),
    **dict.fromkeys(("pressure", "few-states", "aborts", "arrivals", "policy"), 6),
}
"""Workloads of each kind."""

VARIED: Final = {
    **dict.fromkeys(("full", "pairs", "window", "few-states", "pressure", "arrivals"), 1),
    **dict.fromkeys(("host", "host-parts", "host-back", "storage"), 3),
}
"""Models that a kind is varied for, each with the first workload that is drawn for it."""

STEPS: Final = 14
"""Neighbours of each workload, in each of its pools."""


def bases(kind: str, models: int, rules: Rules) -> list[dict[str, Any]]:
    """The first workload of each of so many models, those with most parts first."""
    found: dict[str, dict[str, Any]] = {}
    for turn in range(40):
        drawn = draw(SEED + 1, KINDS.index(kind) + turn * len(KINDS), rules)
        found.setdefault(drawn["config"]["kind"], drawn)
    return [found[model] for model in sorted(found, key=len, reverse=True)[:models]]


def neighbours(base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A workload on servers with one pool made smaller, step by step."""
    config = base["config"]
    page = config["page"]
    for pool, unit in (("tokens", page), ("window_tokens", page), ("states", 1)):
        for step in range(1, STEPS + 1):
            size = config.get(pool, 0) - step * unit
            if size > 0:
                yield base | {
                    "id": f"{base['id']}-{pool}-{size}",
                    "config": config | {pool: size},
                }


def recorded(real: WorkerProcess, rules: Rules) -> Iterator[dict[str, Any]]:
    """Workloads with what the real scheduler did; those in which it raises are left out."""
    for kind, count in DRAWN.items():
        for turn in range(count):
            workload = draw(SEED, KINDS.index(kind) + turn * len(KINDS), rules)
            results = real.play(workload)
            if not any("error" in each for each in results):
                yield {**workload, "results": results}
    for kind, models in VARIED.items():
        for base in bases(kind, models, rules):
            seen = list[Any]()
            for workload in neighbours(base):
                results = real.play(workload)
                whole = any("error" in each for each in results)
                if not whole and results not in seen:
                    seen.append(results)
                    yield {**workload, "results": results}


def main(release: str, path: Path) -> None:
    """Play and write."""
    with SCHEDULER.start(release) as real:
        lines = [
            json.dumps({"version": release, **line}, separators=(",", ":")) + "\n"
            for line in recorded(real, FAMILY.release(release).rules)
        ]
    path.write_bytes(gzip.compress("".join(lines).encode(), 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
