"""Choices of the real routers beside those of the simulated ones, on the same requests and events.

    trace ──> simulated servers ──> the simulated router ──> its choice
                      └── requests, events, loads ──> the real router ──> its choice

Dynamo's selection core runs in a process of its own and hears events over ZeroMQ; SGLang's router
is an HTTP server on loopback, and its workers are stand-ins that answer when the simulated server
has. A choice is equal if the real router takes one of the replicas that ours holds for best.

    python -m benchmarks fleet
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks import fleet_pools
from benchmarks.fleet_router import Loopback
from cachesim.prove.environment import Environment, EnvironmentUnavailableError
from cachesim.traces.fleet.cache_aware import Approximate, CacheAware
from cachesim.traces.fleet.dynamo import Dynamo, KvRouter
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.fleet.kv_events import Server
from cachesim.traces.fleet.router import Arrival, Replica, prefix_keys
from cachesim.traces.fleet.serving import FleetLoop
from cachesim.traces.replay import Cell
from cachesim.traces.source import Source

DYNAMO: Final = Environment(
    name="routers-dynamo-1.6.1", requirements=("ai-dynamo-runtime==1.6.1", "pyzmq", "msgspec")
)
SGLANG: Final = Environment(name="routers-sglang-0.3.2", requirements=("sglang-router==0.3.2",))

REPLICAS: Final = (4, 16)
REQUESTS: Final = 600
POOL_REQUESTS: Final = 300
TURN: Final = 400  # milliseconds: as long as some requests are at work at once


class Numbers:
    """Small numbers for tokens, whose own do not fit into 32 bits."""

    def __init__(self, first: int) -> None:
        self._given: dict[int, int] = {}
        self._first = first

    def of(self, tokens: Sequence[int]) -> list[int]:
        given, first = self._given, self._first
        return [given.setdefault(token, len(given) + first) for token in tokens]


# -- Dynamo ----------------------------------------------------------------------------------------


class BesideDynamo(KvRouter):
    """The simulated router, with the real selection core at its side."""

    def __init__(self, replicas: Sequence[Replica], worker: "Worker") -> None:
        super().__init__(replicas, Dynamo())
        self.worker, self.counts = worker, Counter[str]()
        self.numbers = Numbers(1)
        self.blocks: dict[int, tuple[int | None, list[int]]] = {}  # key -> parent, tokens
        self.unit = replicas[0].unit
        worker.ask({"do": "start", "replicas": len(replicas), "block": self.unit})

    def choose(self, arrival: Arrival) -> int:
        keys, unit = arrival.keys(self.unit), self.unit
        text = arrival.prompt.copy()
        text += arrival.reply
        tokens, parent = self.numbers.of(list(text)), None
        for at, key in enumerate(prefix_keys(text, unit)):
            self.blocks[key] = parent, tokens[at * unit : (at + 1) * unit]
            parent = key
        best = self.cheapest(arrival)
        overlaps = [self.index.overlap(replica.number, keys) for replica in self.replicas]
        found = self.worker.ask(
            {
                "do": "select",
                "request": arrival.number,
                "tokens": tokens[: len(arrival.prompt)],
                "overlaps": overlaps,
            }
        )
        chosen = int(found["replica"])
        self.counts["requests"] += 1
        self.counts["equal"] += chosen in best
        self.counts["of equal cost"] += len(best) > 1
        self.counts["overlaps equal"] += found["overlaps"] == overlaps
        self.book(arrival, chosen)
        return chosen

    def prefilled(self, arrival: Arrival, replica: int) -> None:
        super().prefilled(arrival, replica)
        self.worker.ask({"do": "prefilled", "request": arrival.number})

    def finished(self, arrival: Arrival, replica: int) -> None:
        super().finished(arrival, replica)
        self.worker.ask({"do": "finished", "request": arrival.number})

    def stored(self, replica: int, keys: Sequence[int], time: float) -> None:
        super().stored(replica, keys, time)
        told = [(key, *self.blocks[key]) for key in keys]
        self.worker.ask({"do": "stored", "replica": replica, "blocks": told})

    def removed(self, replica: int, keys: Sequence[int], time: float) -> None:
        super().removed(replica, keys, time)
        self.worker.ask({"do": "removed", "replica": replica, "blocks": list(keys)})


class Worker:
    """The process with the real selection core: a line in, a line out."""

    def __init__(self, python: Path) -> None:
        script = Path(__file__).with_name("fleet_dynamo_worker.py")
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "DYN_LOG": "error"},
        )

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for its answer."""
        into, out = self._process.stdin, self._process.stdout
        if into is not None and out is not None:
            into.write(json.dumps(order) + "\n")
            into.flush()
        for line in out or ():
            if line.startswith("{"):  # the release writes its own lines there, too
                found: dict[str, Any] = json.loads(line)
                if "error" in found:
                    raise EnvironmentUnavailableError(found["error"])
                return found
        raise EnvironmentUnavailableError("the process with dynamo's selection core has ended")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def worker() -> Iterator[Worker]:
    """A worker in dynamo's environment."""
    started = Worker(DYNAMO.ready())
    try:
        yield started
    finally:
        started.close()


# -- SGLang's router -------------------------------------------------------------------------------

RULES: Final = CacheAware(
    balance_abs_threshold=3, eviction_interval_secs=3600, max_tree_size=1 << 40
)
"""Loads that part sooner than 64 requests, so that both branches are taken; nothing is evicted."""


class BesideSglang(Approximate):
    """The simulated router, with the real HTTP router at its side; it decides."""

    def __init__(self, replicas: Sequence[Replica], router: Loopback) -> None:
        super().__init__(replicas, RULES)
        self.real, self.counts = router, Counter[str]()
        self.numbers = Numbers(0x10000)  # characters of four bytes each

    def choose(self, arrival: Arrival) -> int:
        loads = [replica.load for replica in self.replicas]
        matched, _ = self.tree.peek(arrival.prompt)
        mine = super().choose(arrival)
        text = "".join(map(chr, self.numbers.of(list(arrival.prompt))))
        real = self.real.send(arrival.number, text)
        self.counts["requests"] += 1
        self.counts["equal"] += real == mine
        self.counts["known prefix"] += matched / len(arrival.prompt) > RULES.cache_threshold
        self.counts["loads apart"] += max(loads) - min(loads) > RULES.balance_abs_threshold
        if real != mine:
            self.tree.insert(arrival.prompt, real)
        return real

    def finished(self, arrival: Arrival, replica: int) -> None:
        super().finished(arrival, replica)
        self.real.release(arrival.number)


Beside: TypeAlias = BesideDynamo | BesideSglang

# -- the table -------------------------------------------------------------------------------------


def source() -> Source:
    """The first requests of a trace that `CACHESIM_TRACE` names, or a made one."""
    return Source(
        name=os.environ.get("CACHESIM_TRACE", f"made:{REQUESTS}"), first=REQUESTS, turn=TURN
    )


def play(replicas: int, beside: Callable[[list[Server]], Beside]) -> Counter[str]:
    """The trace on simulated servers, each choice made twice."""
    cell = Cell(source=source(), profile="vllm@0.33.0", model="dense")
    cell = Cell(
        source=cell.source,
        profile=cell.profile,
        model=cell.model,
        options=(("num_gpu_blocks_override", 300),),
    )
    servers = [Server(number, cell.engine) for number in range(replicas)]
    loop = FleetLoop(Fleet.of(replicas, "random"), servers, None)
    router = beside(servers)
    loop.router = router
    for server in servers:
        server.listen(router)
    for _ in loop.on_time(cell.requests(), TURN):
        pass
    return router.counts


def run(out: Console) -> None:
    """The table."""
    table = Table(title=f"router choices on {source().name}", title_style="")
    for head in ("router", "replicas", "requests", "equal", "of them"):
        table.add_column(head, justify="left" if head in {"router", "of them"} else "right")
    for name, start in (("dynamo 1.6.1", with_dynamo), ("sglang-router 0.3.2", with_sglang)):
        for replicas in REPLICAS:
            try:
                counts = start(replicas)
            except (EnvironmentUnavailableError, OSError) as error:
                why = str(error) or type(error).__name__
                out.print(f"{name}, {replicas} replicas: not compared: {why}")
                continue
            rest = {key: n for key, n in counts.items() if key not in {"requests", "equal"}}
            table.add_row(
                name,
                str(replicas),
                f"{counts['requests']:,}",
                f"{counts['equal']:,}",
                ", ".join(f"{n:,} {key}" for key, n in rest.items()),
            )
    out.print(table)
    try:
        with worker() as real:
            fleet_pools.compare_pools(out, replace(source(), first=POOL_REQUESTS), real)
    except EnvironmentUnavailableError as error:
        out.print(f"DynoSim: not compared: {error}")


def with_dynamo(replicas: int) -> Counter[str]:
    """Counts beside Dynamo's selection core."""
    with worker() as real:
        return play(replicas, lambda servers: BesideDynamo(servers, real))


def with_sglang(replicas: int) -> Counter[str]:
    """Counts beside SGLang's router."""
    rules = {
        "cache_threshold": RULES.cache_threshold,
        "balance_abs_threshold": RULES.balance_abs_threshold,
        "balance_rel_threshold": RULES.balance_rel_threshold,
        "eviction_interval_secs": RULES.eviction_interval_secs,
        "max_tree_size": RULES.max_tree_size,
    }
    with Loopback(SGLANG.ready(), replicas, rules) as real:
        return play(replicas, lambda servers: BesideSglang(servers, real))
