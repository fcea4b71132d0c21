"""Runs with an unpacked wheel at hand: plays workloads on SGLang's own scheduler, without a model.

One line of JSON in, one line out: a workload goes in (configuration, groups of requests with the
tokens to say), what the scheduler did comes out, in the form of the vector files. Scheduler,
policy, batches, requests, pools, allocators and trees are the release's own; stand-ins are the
configuration, the model, which says what the workload names, and whoever is only told things.
"""

import importlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cachesim.lab.real.prompts import read_row
from cachesim.lab.real.sglang import hicache_worker, stand_ins
from cachesim.lab.real.sglang.groups import Groups, Node
from cachesim.lab.real.worker_side import (
    Stopwatch,
    answer_lines,
    changed_settings,
    own_output,
    play_groups,
)

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs


class Playing(Groups):
    """The real scheduler of one configuration."""

    NAME = "rid"

    def __init__(self, core: Real, config: Json) -> None:
        self.make = core
        self.salts: list[str | None] = []
        self._depth = 0
        self._retracted: set[str] = set()  # requests that wait to come back
        super().__init__(config)

    def start(self) -> None:
        self.core = self.make(self.config)
        self.leaks, self.free = self.core.leaks, self.core.free
        if self.core.rust is not None:
            for text, salt in zip(self.keys, self.salts, strict=True):
                self.core.rust.learn(text, salt)
        for name in ("evict", "evict_for_alloc"):
            if hasattr(self.core.tree, name):
                self._watch(name)

    # -- the tree ----------------------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        inner = getattr(self.core.tree, name)

        def evict(*given: Real, **named: Real) -> Real:
            self._depth += 1
            before = self.nodes() if self._depth == 1 else None
            try:
                return inner(*given, **named)
            finally:
                self._depth -= 1
                if before is not None:
                    self.note_evicted(before)

        setattr(self.core.tree, name, evict)

    def nodes(self) -> list[Node]:
        if self.core.rust is not None:
            return [(path, size, *held) for path, size, held in self.core.rust.walk()]
        found: list[Node] = []

        def walk(node: Real, path: tuple[Real, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(child.key)
                found.append((whole, len(child.key), *self.core.held(child)))
                walk(child, whole)

        walk(self.core.root, ())
        return found

    # -- requests ----------------------------------------------------------------------------------

    def key_of(self, text: list[int]) -> list[int]:
        return text

    def add(self, prompt: Sequence[int], wanted: Json) -> Real:
        self.salts.append(wanted.get("salt"))
        if self.core.rust is not None:
            self.core.rust.learn(self.keys[-1], self.salts[-1])
        request = self.core.request(f"{len(self.keys) - 1:06}", prompt, wanted)
        self.core.scheduler._add_request_to_queue(request)
        return request

    def abort(self, request: Real) -> None:
        self.core.abort(request.rid)

    def finished(self, request: Real) -> bool:
        return bool(request.finished())

    def ended(self, name: str, request: Real) -> bool:
        """Done, or dropped: the last one that finds no memory is told to end, and never runs."""
        dropped = getattr(request, "to_finish", None) is not None
        return self.finished(request) or dropped or "aborted" in self.results[name]

    def generated(self, request: Real) -> int:
        return len(request.output_ids)

    def count_retractions(self, request: Real, entry: Json) -> None:
        if hasattr(request, "retraction_count"):
            entry["retracted"] = request.retraction_count
        elif not getattr(request, "is_retracted", False):
            self._retracted.discard(request.rid)
        elif request.rid not in self._retracted:
            entry["retracted"] += 1
            self._retracted.add(request.rid)

    def plan(self) -> Real:
        batch = self.core.plan()
        self.core.scheduler.cur_batch = batch
        return batch

    def rest(self) -> None:
        self.core.scheduler.last_batch = None

    def waits(self) -> bool:
        scheduler = self.core.scheduler
        return bool(scheduler.waiting_queue) or not scheduler.running_batch.is_empty()

    def pieces(self, batch: Real) -> Iterator[tuple[Real, int, int, Real]]:
        if not batch.forward_mode.is_extend():
            return
        decoding = batch.decoding_reqs or ()
        for request in batch.reqs:
            if request not in decoding:
                yield request, *self.core.span(request), self.core.branch(request)

    def take(self, batch: Real, tokens: list[int]) -> None:
        self.core.take(batch, tokens, extends=batch.forward_mode.is_extend())
        self.core.scheduler.last_batch = batch


TREE = (
    *("match_prefix", "cache_finished_req", "cache_unfinished_req", "checkpoint", "evict"),
    *("inc_lock_ref", "dec_lock_ref", "lock", "unlock", "free_kv_row", "on_release"),
)
"""Methods of a tree that a scheduler calls; a release has some of them."""


def seconds(core: Real, wanted: Json) -> Json:
    """Processor time for the prompts, one after another, each with a token of reply.

    Of the scheduler with everything, and of the tree's methods alone.
    """
    server, texts = core(wanted["config"]), [read_row(prompt) for prompt in wanted["prompts"]]
    clock = Stopwatch(server.tree, TREE)
    begun = time.process_time()
    for number, text in enumerate(texts):
        request = server.request(f"{number:06}", text, {"generate": 1})
        server.scheduler.waiting_queue.append(request)
        while not request.finished():
            batch = server.plan()
            server.take(batch, [1] * len(batch.reqs), extends=batch.forward_mode.is_extend())
            server.scheduler.last_batch = batch
    return {"scheduler": time.process_time() - begun, "tree": clock.seconds}


def play(core: Real, workload: Json) -> list[Json]:
    """All groups of a workload, up to the first that ends in an error."""
    hicache_worker.PAGES.clear()
    return play_groups(workload["steps"], Playing(core, workload["config"]).play)


def differences(core: Real, config: Json) -> list[list[str]]:
    """Field, as a server starts, as the scheduler has it here: of the whole configuration."""
    return changed_settings(config["server"], core(config).settings())


def main() -> None:
    """Play workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    root = Path(sys.argv[1])
    stand_ins.install(root, tree_core=sys.argv[3] if len(sys.argv) > 3 else "python")
    core = importlib.import_module("cachesim.lab.real.sglang.core_worker").core_of(root)

    def results(wanted: Json) -> list[Json]:
        if wanted.get("settings"):
            return differences(core, wanted["config"])
        return [seconds(core, wanted)] if "prompts" in wanted else play(core, wanted)

    answer_lines(answers, results)
