"""Tokens reused from pools of several sizes: DynoSim, the real vLLM scheduler, and the simulated.

The requests of a trace come one after the other. Groups are those of a dense model, of one with
recurrent states, and of one with windows; DynoSim has one pool of attention blocks for all three:
its groups of layers are for servers without prefix caching.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from rich.console import Console
from rich.table import Table

from cachesim.engines.vllm.family import FAMILY
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.rows import spell
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.fleet.kv_events import Server
from cachesim.traces.fleet.serving import FleetLoop
from cachesim.traces.replay import Cell, scaled
from cachesim.traces.source import Source
from conformance.real.vllm.playing import play
from conformance.real.vllm.scheduler import SCHEDULER

RELEASE: Final = "0.33.0"
POOLS: Final = (1000, 600, 300, 150)
FULL: Final = {"kind": "full", "block": 16}
LONGEST: Final = 1000
"""Most tokens of a request: the smallest pool has room for it with two groups."""

GROUPS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "dense": [FULL],
    "hybrid": [FULL, {"kind": "mamba", "block": 16}],
    "windows": [FULL, {"kind": "window", "block": 16, "window": 40}],
}


class Worker(Protocol):
    """The process with Dynamo's wheel."""

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for its answer."""
        ...


def requests_of(source: Source) -> tuple[list[Any], list[str]]:
    """The requests as the scheduler's steps, and as lines of a Mooncake trace with blocks of 16."""
    unit, found = source.open()
    scale = source.scale
    numbers: dict[int, int] = {}
    steps, lines = [], []
    for at, (request, prompt, reply) in enumerate(scaled(found, unit, scale)):
        if len(prompt) + len(reply) > LONGEST:
            continue
        row, out = (
            [numbers.setdefault(token, len(numbers) + 1) for token in rope]
            for rope in (prompt, reply)
        )
        steps.append([{"prompt": spell(row), "generate": len(out), "reply": spell(out)}])
        entry = {
            "timestamp": 100_000 * at,  # each after the end of the one before it
            "input_length": len(row),
            "output_length": len(out),
            "hash_ids": request.blocks,
        }
        lines.append(json.dumps(entry) + "\n")
    return steps, lines


def cached(results: Sequence[Mapping[str, Any]]) -> int:
    """Tokens that the requests reused."""
    return sum(request["cached"] for result in results for request in result.get("requests", ()))


def compare_pools(out: Console, source: Source, worker: Worker) -> None:
    """Both tables."""
    steps, lines = requests_of(source)
    table = Table(title=f"tokens reused of {source.name}, vLLM {RELEASE}", title_style="")
    for head in ("groups", "blocks", "DynoSim 1.6.1", "real scheduler", "simulated"):
        table.add_column(head, justify="left" if head == "groups" else "right")
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("".join(lines))
        one_pool = {
            blocks: worker.ask({"do": "replay", "trace": str(path), "blocks": blocks})["reused"]
            for blocks in POOLS
        }
    rules = FAMILY.release(RELEASE).rules
    try:
        with SCHEDULER.start(RELEASE) as real:
            for name, groups in GROUPS.items():
                for blocks in POOLS:
                    retention = None if len(groups) == 1 else 0
                    config = {"groups": groups, "blocks": blocks, "retention": retention}
                    wanted = {"config": config, "steps": steps}
                    theirs, ours = cached(real.play(wanted)), cached(play(wanted, rules))
                    row = (one_pool[blocks], theirs, ours)
                    table.add_row(name, f"{blocks:,}", *(f"{count:,}" for count in row))
            out.print(table)
            out.print(replicas(source, real.play))
    except EnvironmentUnavailableError as error:
        out.print(f"not compared with the real scheduler: {error}")


REPLICAS: Final = (4, 16)
BLOCKS: Final = 150


def replicas(source: Source, real: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Table:
    """Reuse of a simulated fleet, and of real schedulers with the same requests."""
    title = f"requests of {source.name} with equal reuse on real schedulers"
    table = Table(title=title, title_style="")
    for head in ("router", "replicas", "requests", "equal", "tokens reused"):
        table.add_column(head, justify="left" if head == "router" else "right")
    blocks = (("num_gpu_blocks_override", BLOCKS),)
    alone = replace(source, turn=0)
    cell = Cell(source=alone, profile=f"vllm@{RELEASE}", model="dense", options=blocks)
    for router in ("round-robin", "cache-aware", "dynamo"):
        for count in REPLICAS:
            servers = [Server(number, cell.engine) for number in range(count)]
            loop = FleetLoop(Fleet.of(count, router), servers, None)
            numbers: dict[int, int] = {}
            steps: list[list[Any]] = [[] for _ in servers]
            reused: list[list[int]] = [[] for _ in servers]
            for routed in loop.in_order(cell.requests()):
                if routed.replica is None or routed.answer is None or routed.answer.cached is None:
                    continue
                row, out = (
                    spell([numbers.setdefault(token, len(numbers) + 1) for token in each])
                    for each in (routed.request.prompt, routed.request.reply)
                )
                size = len(routed.request.reply)
                steps[routed.replica].append([{"prompt": row, "generate": size, "reply": out}])
                reused[routed.replica].append(int(routed.answer.cached))
            config = {"groups": GROUPS["dense"], "blocks": BLOCKS}
            played = [real({"config": config, "steps": step}) for step in steps]
            theirs = [[one["requests"][0]["cached"] for one in each] for each in played]
            pairs = [
                pair
                for both in zip(reused, theirs, strict=True)
                for pair in zip(*both, strict=True)
            ]
            table.add_row(
                router,
                str(count),
                f"{len(pairs):,}",
                f"{sum(one == other for one, other in pairs):,}",
                f"{sum(map(sum, reused)):,}",
            )
    return table
