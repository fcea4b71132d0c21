"""A release's own caches beside the simulated ones, on the same requests.

Of continuous batching, scheduler, cache and batch processor get the same requests, cancellations
and replies. After each batch the requests in it, block tables, references, hashes, cached and free
blocks must be the same, in the same order. OVERRIDES and PRETENDED name what is not as on a server.

Of `DynamicCache`, both get the same tokens, crops, reorders and selections. After each operation
what every layer returns, holds, counts and says of itself must be the same, as the kind of an
error.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cachesim.engines.transformers import dynamic
from cachesim.engines.transformers.cache import Geometry, PagedAttentionCache
from cachesim.engines.transformers.continuous_api import Processor
from cachesim.engines.transformers.family import FAMILY
from cachesim.engines.transformers.requests import FutureRequestState, RequestState
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import UpstreamAbort
from cachesim.prove import playing
from cachesim.prove.worker_process import JsonProcess
from cachesim.typed import Json
from conformance.real import agreement as agreeing

WORKER: Final = Path(__file__).with_name("caches_worker.py")
KINDS: Final = {"full_attention": "attention", "sliding_attention": "window"}
F16_BYTES: Final = 2


OVERRIDES: Final[Mapping[str, str]] = {
    "max_memory_percent": "decides alone whether the given blocks are refused",
    "simulator: num_blocks": "a real server takes the blocks that free memory holds",
    "simulator: max_batch_tokens": "a real server takes what free memory holds; workloads set it",
    "simulator: max_requests_per_batch": "what the release resolves its default to",
    "simulator: safety_margin": "-1 is the release's default, by scheduler",
}
"""Fields that differ, of the release's configuration and of the simulator's -> why."""

PRETENDED: Final = {
    "the device": (
        "an accelerator: fast decode path, CUDA graphs, batches that overlap",
        "a CPU, for which the release resolves all three to off",
        "not compared on an accelerator: overlapping batches may be scheduled otherwise there",
    ),
    "get_device_and_memory_breakdown": (
        "the machine's free memory",
        "4 GiB",
        "other processes would decide whether a cache is refused",
    ),
    "the model": (
        "that of the command line",
        "none: a configuration with the workload's layers, float16",
        "scheduler, cache and batch processor read shapes and tokens alone",
    ),
    "prepare_batch_update": (
        "tokens that the model samples",
        "the replies of the workload",
        "a workload does not depend on weights",
    ),
    "the generation thread": (
        "batches as fast as they are computed",
        "as many batches after a step as the workload names",
        "which batch a request is in would be chance",
    ),
}
"""Settings without a field: a server's, ours, why."""


def started(python: Path) -> JsonProcess:
    """The release's classes, in a process of its own."""
    return JsonProcess("transformers", [str(python), "-W", "ignore", str(WORKER)])


def overrides(python: Path, release: str, seed: int) -> list[playing.Override]:
    """Fields whose values in drawn workloads or in the simulator differ from a server's."""
    rows: list[Sequence[str]] = []
    with started(python) as process:
        for number in range(12):
            answer = process.order({"settings": draw(seed, number)})
            rows += answer["rows"]
    rows += agreeing.differing_defaults(FAMILY, release, answer["defaults"])
    return playing.overrides_of(rows, OVERRIDES, PRETENDED)


def compare(python: Path, release: str, seed: int, workloads: int) -> int:
    """Compare workloads; the exit status."""
    title = f"transformers {release}: batches of its own scheduler and cache, seed {seed}"
    agreement, seen = agreeing.Agreement(title=title, kinds="layers"), Counter[str]()
    with started(python) as process:
        for number in playing.watched(range(workloads)):
            workload = draw(seed, number)
            real = process.order(workload)
            simulated = list(Played(workload, seen).results())
            found = agreeing.first_difference(real, json_of(simulated))
            agreement.add(
                "+".join(sorted({KINDS[layer] for layer in workload["layers"]})),
                number,
                found,
                workloads=1,
                batches=len(real),
                agreeing=found is None,
            )
    status = agreement.show()
    told = ", ".join(f"{seen[name]:,} {name}" for name in sorted(seen))
    playing.console().print(f"among them: {told}", markup=False)
    return status


def json_of(value: Json) -> Json:
    """Tuples as lists."""
    if isinstance(value, list | tuple):
        return [json_of(each) for each in value]
    if isinstance(value, dict):
        return {name: json_of(each) for name, each in value.items()}
    return value


def draw(seed: int, number: int) -> Json:
    """A small cache, and conversations that grow, branch, repeat and are cancelled."""
    rng = random.Random(f"{seed}/{number}")
    full, window = "full_attention", "sliding_attention"
    layers = rng.choice(
        ([full], [full] * 2, [full] * 3, [window], [full, window], [window, full, window, window])
    )
    page = rng.choice((4, 5, 8))
    known: list[list[int]] = [[]]
    steps: list[Json] = []
    replies: list[list[int]] = []
    few = rng.choice((2, 50))
    for _ in range(rng.randint(2, 14)):
        add: list[Json] = []
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            base = rng.choice(known[-8:])
            cut = rng.choice((len(base), rng.randint(0, len(base))))
            prompt = base[:cut] + [rng.randrange(few) for _ in range(rng.randint(1, 3 * page))]
            most = rng.choice((1, 2, rng.randint(1, 3 * page)))
            reply = [rng.randrange(few) for _ in range(most)]
            add.append([len(replies), prompt, most])
            known.append(prompt + reply)
            replies.append(prompt + reply)
        cancel = [rng.randrange(len(replies))] if replies and rng.random() < 0.15 else []
        steps.append({"add": add, "cancel": cancel, "batches": rng.choice((0, 1, 3, 8))})
    steps.append({"add": [], "cancel": [], "batches": 60})
    return {
        "layers": layers,
        "window": rng.choice((page, page + 3, 3 * page)),
        "head_dim": rng.choice((2, 8, 16)),
        "page": page,
        "num_blocks": rng.choice((6, 10, 16, 40, 200)),
        "max_batch_tokens": rng.choice((4, 16, 64, 256)),
        "max_requests": rng.choice((1, 3, 1024)),
        "sharing": rng.random() < 0.85,
        "scheduler": rng.choice(("fifo", "prefill_first")),
        "margin": rng.choice((None, 0.0, 0.3, 0.6)),
        "steps": steps,
        "replies": replies,
    }


class Played:
    """A workload on the simulated processor."""

    def __init__(self, workload: Json, seen: Counter[str]) -> None:
        self.workload, self.seen = workload, seen
        geometry = Geometry(
            layers=tuple(KINDS[layer] for layer in workload["layers"]),
            window=workload["window"],
            token_bytes=2 * F16_BYTES * workload["head_dim"],
            page=workload["page"],
            num_blocks=workload["num_blocks"],
            sharing=workload["sharing"],
        )
        margin = workload["margin"]
        self.cache = PagedAttentionCache(geometry, lambda event: self.seen.update([event.name()]))
        self.scheduler = Scheduler(
            self.cache,
            kind=workload["scheduler"],
            margin=-1.0 if margin is None else margin,
            most_requests=min(workload["max_requests"], workload["max_batch_tokens"]),
        )
        self.processor = Processor(
            self.cache,
            self.scheduler,
            rules=FAMILY.releases[-1].rules,
            max_batch_tokens=workload["max_batch_tokens"],
        )
        self.scheduler.on_lookup = lambda _, matched: self.seen.update(matches=int(matched > 0))
        self.processor.on_set_back = lambda *_: self.seen.update(["requests set back"])

    def results(self) -> Iterator[Json]:
        """Results of each batch, in the form of the worker's."""
        cancels: list[int] = []
        for step in self.workload["steps"]:
            for number, prompt, most in step["add"]:
                self.scheduler.add_waiting_request(
                    RequestState(id=number, initial=list(prompt), most=most)
                )
            cancels += step["cancel"]
            for _ in range(step["batches"]):
                for number in cancels:
                    self.scheduler.cancel(number)
                cancels = []
                result = self._batch()
                yield result
                if "raised" in result:
                    return

    def _batch(self) -> Json:
        try:
            pending = self.scheduler.has_pending_requests()
            batch = self.processor.prepare_next_batch() if pending else []
        except UpstreamAbort as error:
            self.seen["ended by an error"] += 1
            return {"raised": error.why}
        if not batch:
            stuck = self.scheduler.has_pending_requests()
            self.seen["batches of nothing while requests wait"] += stuck
            return {"idle": stuck, **content_of(self.cache, self.scheduler)}
        taken = taken_of(batch)
        replies = self.workload["replies"]
        tokens = [
            replies[each.state.id][len(each.state.initial) + len(each.state.generated)]
            for each in batch
            if each.has_new_token
        ]
        self.processor.update_batch(batch, tokens)
        return {"batch": taken, **content_of(self.cache, self.scheduler)}


def taken_of(batch: Sequence[FutureRequestState]) -> Json:
    """Number, start, length of each chunk of a batch, and whether it samples."""
    return [[each.state.id, each.start, each.query, each.has_new_token] for each in batch]


def content_of(cache: PagedAttentionCache, scheduler: Scheduler) -> Json:
    """Tables, references, hashes and free blocks of every allocator."""
    pool = cache.pool
    return {
        "active": [[each, int(state.status)] for each, state in scheduler.active.items()],
        "waiting": list(scheduler.order),
        "sectors": list(pool.free_sectors),
        "allocators": [
            {
                "tables": sorted([name, table[:]] for name, table in allocator.tables.items()),
                "shared": sorted(allocator.ledger.shared.items()),
                "hashes": sorted(allocator.ledger.block_to_hash.items()),
                "cached": list(allocator.ledger.cached),
                "free": [
                    [root, tree[:]] for root, tree in pool.free[allocator.index].trees.items()
                ],
            }
            for allocator in cache.allocators.values()
        ],
    }


# -- layers --------------------------------------------------------------------------------------

ROWS: Final = ("reorder", "select", "repeat")


def compare_layers(python: Path, release: str, seed: int, scripts: int) -> int:
    """Compare scripts; the exit status."""
    title = f"transformers {release}: layers of its own DynamicCache, seed {seed}"
    agreement = agreeing.Agreement(title=title, kinds="layers")
    with started(python) as process:
        for number in playing.watched(range(scripts)):
            script = draw_layers(seed, number)
            real, simulated = process.order(script), layers_played(script, release)
            found = agreeing.first_difference(real, simulated)
            agreement.add(
                "+".join(sorted(set(script["kinds"]))) if len(script["kinds"]) == 1 else "several",
                number,
                found,
                scripts=1,
                operations=len(real),
                errors=sum(isinstance(each[0], str) for each in real),
                agreeing=found is None,
            )
    return agreement.show()


def draw_layers(seed: int, number: int) -> Json:
    """Layers of one kind or of several, and operations on a batch."""
    rng = random.Random(f"layers {seed}/{number}")
    names = list(dynamic.KINDS)
    kinds = [names[number % len(names)]] if number % 3 else rng.choices(names, k=3)
    alone = {"conv", "linear_attention"}.intersection(kinds)  # which refuse to select
    moves = ("reorder", "reorder") if alone and rng.random() < 0.8 else ROWS
    window = rng.choice((3, 5, 8))
    rows, steps = rng.choice((1, 2, 3)), []
    token = iter(range(1, 1 << 20))
    for _ in range(rng.randint(4, 16)):
        name = rng.choice(("feed", "feed", "feed", "crop", "crop", "record", *moves, "reset"))
        order = [rng.randrange(rows) for _ in range(rng.choice((rows, rng.randint(1, 4))))]
        given: Json = None
        if name == "feed":
            count = rng.choice((1, 1, 2, 3, window, 2 * window))
            given = [[next(token) for _ in range(count)] for _ in range(rows)]
        elif name == "crop":
            given = rng.choice((-1, -1, -2, -3, -window, -rng.randint(0, 3 * window), 0, 2, 5))
        elif name in ("reorder", "select"):
            given, rows = order, len(order)
        elif name == "repeat":
            given = rng.choice((1, 2))
            rows *= given
        elif name == "reset":
            rows = rng.choice((rows, rows, 1, 2))
        steps.append([name, given])
    return {
        "kinds": kinds,
        "window": window,
        "kernel": dynamic.KERNEL,
        "fold": dynamic.FOLD,
        "modulus": dynamic.MODULUS,
        "steps": steps,
    }


def layers_played(script: Json, release: str) -> list[Json]:
    """Return value of each step on the simulated cache, with the layers after it."""
    rules = FAMILY.release(release).rules.layers
    cache = dynamic.DynamicCache(rules, script["kinds"], script["window"])
    found: list[Json] = []
    for name, given in script["steps"]:
        result: Json = None
        try:
            if name == "feed":
                result = cache.feed(given)
            else:
                cache.call(name, *([] if given is None else [given]))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            result = type(error).__name__
        found.append([result, cache.content()])
    return found
