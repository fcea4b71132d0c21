"""With an unpacked wheel: workloads on SGLang's own scheduler, without a model.

One line of JSON in, one line out: a workload goes in (configuration, groups of requests with the
reply tokens), its results come out, in the form of the vector files. Scheduler, policy, batches,
requests, pools, allocators and trees are the release's own; stand-ins are the configuration, the
model, which says what the workload names, and callbacks that only receive.
"""

import importlib
import itertools
import logging
import random
import sys
import time
import warnings
from pathlib import Path

from cachesim.prove.rows import read_row
from cachesim.prove.worker_side import (
    Json,
    Real,
    Stopwatch,
    answer_lines,
    differences,
    own_output,
    play_groups,
)
from conformance.real.sglang import hicache_worker, stand_ins

MOST_STEPS = 20_000
MOST_IDLE = 40
IDLE = 10
"""Passes of a server that idles before it is flushed."""

NEVER = 1 << 30


class Playing:
    """The real scheduler of one configuration, and its recorded results."""

    def __init__(self, core: Real, config: Json) -> None:
        self.make, self.config = core, config
        self.known: list[list[int]] = []
        self.salts: list[str | None] = []
        self.evicted: Json = []
        self._depth = 0
        self._start()

    def _start(self) -> None:
        self.core = self.make(self.config)
        random.seed(self.config.get("seed", 0))
        if self.core.rust is not None:
            for text, salt in zip(self.known, self.salts, strict=True):
                self.core.rust.learn(text, salt)
        for name in ("evict", "evict_for_alloc"):
            if hasattr(self.core.tree, name):
                self._watch(name)

    # -- what is written down ----------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        inner = getattr(self.core.tree, name)

        def evict(*given: Real, **named: Real) -> Real:
            self._depth += 1
            before = self._nodes() if self._depth == 1 else None
            try:
                return inner(*given, **named)
            finally:
                self._depth -= 1
                if before is not None:
                    now = {path: rest for path, *rest in self._nodes()}
                    for path, *rest in before:
                        if path not in now:
                            self.evicted.append([*self._label(path), *rest])
                        elif now[path] != rest:
                            self.evicted.append([*self._label(path), *rest, "kept without it"])

        setattr(self.core.tree, name, evict)

    def _label(self, path: Json) -> list[int]:
        keys = list(path)
        pairs = bool(keys) and isinstance(keys[0], tuple)
        for number, text in enumerate(self.known):
            known = list(itertools.pairwise(text)) if pairs else text
            if known[: len(keys)] == keys:
                return [number, len(keys)]
        return [-1, len(keys)]

    def _nodes(self) -> Json:
        if self.core.rust is not None:
            return [(path, size, *held) for path, size, held in self.core.rust.walk()]
        found: Json = []

        def walk(node: Real, path: tuple[Real, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(child.key)
                found.append((whole, len(child.key), *self.core.held(child)))
                walk(child, whole)

        walk(self.core.root, ())
        return found

    # -- running -----------------------------------------------------------------------------------

    def _add(self, wanted: Json) -> Real:
        prompt = read_row(wanted["prompt"])
        request = self.core.request(f"{len(self.known):06}", prompt, wanted)
        prompt = list(request.origin_input_ids)  # with the ids of its images
        self.known.append(prompt + read_row(wanted.get("reply", "")))
        self.salts.append(request.extra_key)
        if self.core.rust is not None:
            self.core.rust.learn(self.known[-1], self.salts[-1])
        self.core.scheduler._add_request_to_queue(request)
        return request

    def play(self, group: Json) -> Json:
        """Requests that arrive together or one after another; until all are done."""
        if "reset" in group[0]:
            for _ in range(IDLE if self.config.get("idles") else 0):
                self.core.plan()
            self._start()
            return {"reset": True}
        self.evicted = []
        scheduler, coming = self.core.scheduler, list(group)
        requests: dict[str, Real] = {}
        wanted: dict[str, Json] = {}
        results: dict[str, Json] = {}
        idle = 0
        for turn in range(MOST_STEPS):
            while coming and coming[0].get("arrives", 0) <= turn:
                request = self._add(coming[0])
                requests[request.rid], wanted[request.rid] = request, coming.pop(0)
                results[request.rid] = {"cached": None, "chunks": [], "branch": None}
            for name, request in requests.items():
                if wanted[name].get("aborted", NEVER) == turn and not request.finished():
                    results[name]["aborted"] = True
                    self.core.abort(name)
            batch = self.core.plan()
            for name, request in requests.items():
                results[name]["retracted"] = request.retraction_count
            scheduler.cur_batch, last = batch, scheduler.last_batch
            if batch is not None:
                self._run(batch, results)
            scheduler.last_batch = batch
            if last is not None if self.core.overlaps else batch is not None:
                self._process(wanted)
            elif batch is None:
                if self.config.get("resets"):
                    self.core.idle()
                ended = all(
                    # aborted for lack of memory a request never runs, and is not finished
                    request.finished()
                    or getattr(request, "to_finish", None) is not None
                    or results[name].get("aborted")
                    for name, request in requests.items()
                )
                none = not coming and not scheduler.waiting_queue
                if ended and none and scheduler.running_batch.is_empty():
                    return self._result([results[name] for name in requests])
                idle += not coming
                if idle > MOST_IDLE:
                    return {"error": "stuck"}
                continue
            idle = 0
        return {"error": "too many steps"}

    def _run(self, batch: Real, results: dict[str, Json]) -> None:
        if batch.extend_num_tokens:  # as `run_batch` does
            self.core.scheduler.processed_tokens_counter += batch.extend_num_tokens
        most = self.core.loras  # `fetch_new_loras` asserts it
        if most and not self.core.validate_lora_batch({req.lora_id for req in batch.reqs}):
            raise AssertionError("len(cur_uids) <= self.max_loras_per_batch")
        extends = batch.forward_mode.is_extend()
        decoding = batch.decoding_reqs or () if extends else ()
        for request in batch.reqs:
            entry = results[request.rid]
            if extends and request not in decoding:
                start, end = self.core.span(request)
                entry["chunks"].append([start, end])
                if entry["cached"] is None:
                    entry["cached"], entry["branch"] = start, self.core.branch(request)
        self.core.launch(batch)

    def _process(self, wanted: dict[str, Json]) -> None:
        """Process the first result of the queue, with the requests' next tokens."""
        batch, _ = self.core.scheduler.result_queue.popleft()
        extends = batch.forward_mode.is_extend()
        runs = [self.core.run_of(req, wanted[req.rid], extends=extends) for req in batch.reqs]
        self.core.take(batch, runs, extends=extends)

    def _result(self, requests: list[Json]) -> Json:
        if self.core.leaks():
            return {"error": "pool memory leak detected"}
        return {
            "requests": requests,
            "evicted": self.evicted,
            "tree": [[*self._label(path), *rest] for path, *rest in self._nodes()],
            "free": self.core.free(),
        }


TREE = (
    "match_prefix", "cache_finished_req", "cache_unfinished_req", "checkpoint", "evict",
    "inc_lock_ref", "dec_lock_ref", "lock", "unlock", "free_kv_row", "on_release",
)  # fmt: skip
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
            server.take(batch, [[1]] * len(batch.reqs), extends=batch.forward_mode.is_extend())
            server.scheduler.last_batch = batch
    return {"scheduler": time.process_time() - begun, "tree": clock.seconds}


def play(core: Real, workload: Json) -> list[Json]:
    """All groups of a workload, up to the first that ends in an error."""
    hicache_worker.PAGES.clear()
    return play_groups(workload["steps"], Playing(core, workload["config"]).play)


def core_with(tree_core: str) -> Real:
    """The release's own scheduler, with its tree core in Python or in Rust."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    root = Path(sys.argv[1])
    stand_ins.install(root, tree_core=tree_core)
    return importlib.import_module("conformance.real.sglang.core_worker").core_of(root)


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    core = core_with(sys.argv[3] if len(sys.argv) > 3 else "python")

    def results(wanted: Json) -> list[Json]:
        if wanted.get("settings"):
            config = wanted["config"]
            return differences(config["server"], core(config).settings())
        return [seconds(core, wanted)] if "prompts" in wanted else play(core, wanted)

    answer_lines(answers, results)
