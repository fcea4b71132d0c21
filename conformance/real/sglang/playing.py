"""A sequence of requests on the simulated scheduler, in the form of the real one's vectors.

The steps are those that drive the real scheduler: requests of a group are added in order, then it
runs until all are done; tokens are forced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from cachesim.engines.sglang import pools, sessions
from cachesim.engines.sglang.build import Sizes, grid_of, make_tree
from cachesim.engines.sglang.node import Node, as_key
from cachesim.engines.sglang.observe import check_books
from cachesim.engines.sglang.request import Batch, Drafts, Limits, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.server import leaks
from cachesim.engines.sglang.tree import Evicting, Shape
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.prove.rows import read_row
from cachesim.prove.worker_side import until_error
from conformance.real.schedules import images_of
from conformance.real.sglang.drafts_worker import accepted
from conformance.real.sglang.scheduler_worker import IDLE, MOST_IDLE, MOST_STEPS

KEYS: Final = ("salt", "priority", "routing_key")


class Player:
    """A fresh scheduler, and its results for one group of requests after another."""

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        self.config, self.rules = config, rules
        self.keys: list[list[int]] = []
        self._count = 0
        self.evicted: list[list[Any]] = []
        self.storage = pools.Storage()
        self._start()

    def _start(self) -> None:
        config, rules = self.config, self.rules
        page = config.get("page", 1)
        self.kind = config["kind"]
        shape = Shape(
            page=page,
            bigrams=bool(config.get("eagle")) and "mamba" not in self.kind,
            extra_buffer=config.get("strategy") == "extra_buffer",
            grid=grid_of(page),
            window=config.get("window", 0),
            states_per_path=config.get("cap", -1),
            policy=config.get("policy", "lru"),
            host=_host(config),
        )
        sizes = Sizes(
            tokens=config["tokens"],
            window_tokens=config.get("window_tokens", 0),
            states=config.get("states", 0),
        )
        self.tree = make_tree(self.kind, shape, sizes, rules, self.storage)
        self.scheduler = Scheduler(
            self.tree,
            self.tree.pool,
            rules,
            Limits(
                chunk=config.get("chunk", 8192),
                max_prefill=config.get("max_prefill", 16384),
                most_prefill=config.get("most_prefill"),
                conservativeness=config.get("conservativeness", 1.0),
                max_running=config.get("max_running", 8),
                max_len=config.get("max_len", 4096),
                interval=config.get("interval", 256),
                ignores_eos=config.get("ignore_eos", True),
                mixes=bool(config.get("mixes"))
                and (rules.scheduler.drafts_may_mix or not config.get("eagle")),
                drafts=Drafts(**config["drafts"]) if config.get("drafts") else None,
                **overlap(config, rules),
                **scheduling(config, rules),
            ),
        )
        self.tree.on_evict = self._evicting
        self.sessions: dict[str, sessions.Session] = {}

    # -- the tree ----------------------------------------------------------------------------------

    def _nodes(self) -> list[tuple[tuple[int, ...], int, list[int]]]:
        found: list[tuple[tuple[int, ...], int, list[int]]] = []

        def walk(node: Node, path: tuple[int, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(int(each) for each in child.key)
                found.append((whole, len(child), self._extra(child)))
                walk(child, whole)

        walk(self.tree.root, ())
        return found

    def _extra(self, node: Node) -> list[int]:
        tree = self.tree
        if tree.shape.host is not None:
            found = [node.value is not None, node.host_full is not None]
            if self.tree.has_states:
                found += [node.state is not None, node.host_state is not None]
            if self.tree.has_windows:
                found += [node.window, node.host_window is not None]
            return list(map(int, found))
        states = [int(node.state is not None)] if tree.has_states else []
        return states + ([int(node.window)] if tree.has_windows else [])

    def _label(self, path: Sequence[int]) -> list[int]:
        keys = list(path)
        for number, text in enumerate(self.keys):
            if text[: len(keys)] == keys:
                return [number, len(keys)]
        return [-1, len(keys)]

    def _evicting(self, wanted: Evicting) -> Callable[[], None]:
        before = self._nodes()

        def compare() -> None:
            now = {path: [length, *extra] for path, length, extra in self._nodes()}
            for path, length, extra in before:
                rest = [length, *extra]
                if path not in now:
                    self.evicted.append([*self._label(path), *rest])
                elif now[path] != rest:
                    self.evicted.append([*self._label(path), *rest, "kept without it"])

        return compare

    # -- requests ----------------------------------------------------------------------------------

    def _priority(self, given: int | None) -> int:
        if given is None and self.config.get("prioritizes"):
            return pools.MOST_PRIORITY if self.config.get("low_first") else -pools.MOST_PRIORITY - 1
        return given or 0

    def _add(self, wanted: Mapping[str, Any]) -> Req:
        prompt, refused, stream = read_row(wanted["prompt"]), False, None
        if "session" in wanted:
            params = sessions.SessionParams.of(wanted["session"])
            session = self.sessions.setdefault(params.id, sessions.Session.of(params))
            found = session.prompt(params, np.array(prompt, np.int64))
            refused = found is None
            prompt = (sessions.STUB if found is None else found).tolist()
            if not self.rules.scheduler.sessions_keep_keys:
                wanted = {k: v for k, v in wanted.items() if k not in KEYS}
            stream = None if session.closes else session.stream
            session.closes |= params.close
        req = Req.make(
            self._count,
            np.array(prompt, np.int64),
            max(1, wanted["generate"]),
            extra_key=wanted.get("salt"),
            priority=self._priority(wanted.get("priority")),
            routing_key=wanted.get("routing_key", ""),
            lora_id=wanted.get("lora", ""),
            images=() if "session" in wanted else images_of(wanted),
            pads_apart=self.rules.scheduler.pads_images_apart,
            beyond=(self.config.get("drafts") or {}).get("tokens", 0),
        )
        self._count += 1
        req.stream, req.to_finish = stream, refused
        req.strips = bool(self.config.get("strips") and wanted.get("thinks"))
        self.scheduler.add(req)
        if "session" in wanted:
            req.in_session = True
            if not refused:
                session.join(params, wanted["rid"], req)
        reply = np.array(read_row(wanted.get("reply", "")), np.int64)
        text = np.concatenate((req.tokens[: len(prompt)], reply))
        self.keys.append(as_key(text, bigrams=self.tree.shape.bigrams).tolist())
        return req

    def play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Requests that arrive together or one after another; until all are done."""
        if "reset" in group[0]:
            for _ in range(IDLE if self.config.get("idles") else 0):
                self.scheduler.next_batch()
            self._start()
            return {"reset": True}
        try:
            return self._play(group)
        except (OptionError, UpstreamAbort) as error:
            return {"error": str(error)}

    def _play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self.evicted = []
        coming, reqs = list(group), dict[int, Req]()
        idle = 0
        wanted: dict[int, Mapping[str, Any]] = {}
        results: dict[int, dict[str, Any]] = {}
        for turn in range(MOST_STEPS):
            while coming and coming[0].get("arrives", 0) <= turn:
                req = self._add(coming[0])
                reqs[req.id], wanted[req.id] = req, coming.pop(0)
                results[req.id] = {"cached": None, "chunks": [], "branch": None}
            for req in reqs.values():
                if wanted[req.id].get("aborted") == turn and not req.finished:
                    results[req.id]["aborted"] = True
                    self.scheduler.abort(req)
            sessions.reap(self.sessions, self.scheduler.close)
            scheduler, last = self.scheduler, self.scheduler.last
            batch = scheduler.next_batch()
            if batch is not None:
                self._record(batch, results)
                scheduler.launch(batch)
            scheduler.last = batch
            if last is not None if scheduler.limits.overlaps else batch is not None:
                first = scheduler.result_queue[0]
                scheduler.take([self._run(r, wanted[r.id], first) for r in first.reqs])
            elif batch is None:
                if self.config.get("resets"):  # recordings without it had no idle pass
                    scheduler.idle()
                none = not coming and not self.scheduler.waiting
                if none and all(req.finished for req in reqs.values()):
                    return self._result(results, reqs)
                idle += int(not coming)
                if idle > MOST_IDLE:
                    return {"error": "stuck"}
                continue
            idle = 0
        return {"error": "too many steps"}

    def _run(self, req: Req, wanted: Mapping[str, Any], batch: Batch) -> list[int]:
        reply, done, count = read_row(wanted.get("reply", "")), req.num_output, 1
        if self.config.get("drafts") and not batch.extend:
            count = accepted(wanted, self.config["drafts"], req.rounds)
        return (reply[done:] + [1] * count)[:count]

    def _result(
        self, results: Mapping[int, dict[str, Any]], reqs: Mapping[int, Req]
    ) -> dict[str, Any]:
        if self.tree.rules.tree.trees != "one-per-kind":
            if leaks(self.tree, sessions.records(self.sessions)):
                return {"error": "pool memory leak detected"}
            # 0.5.9 counts slots that its own HiRadixCache lost, too
            check_books(self.tree, (), sessions.streams(self.sessions))
        pool = self.tree.pool
        free = {"tokens": pool.available}
        if isinstance(pool, pools.WindowPool):
            free["window_tokens"] = pool.windows.available
        if self.tree.states is not None:
            free["states"] = self.tree.states.available
        return {
            "requests": [results[each] | {"retracted": reqs[each].retractions} for each in reqs],
            "evicted": self.evicted,
            "tree": [[*self._label(path), length, *extra] for path, length, extra in self._nodes()],
            "free": free | self.tree.host_free(),
        }

    def _record(self, batch: Batch, results: dict[int, dict[str, Any]]) -> None:
        if not batch.extend:
            return
        for req in filter(batch.reads, batch.reqs):
            results[req.id]["chunks"].append([req.prefix, req.fill])
            if results[req.id]["cached"] is None:
                results[req.id]["cached"] = req.prefix
                window = self.kind == "window"
                results[req.id]["branch"] = req.window_branch if window else req.branch


def overlap(config: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Limits of the schedule: whether it overlaps, and a request's slots for tracked states.

    Recordings without `serial` ran in the slots of a server with overlap, and without it.
    """
    serial, old = config.get("serial"), rules.scheduler.drafts_track_in_one_slot
    one = bool(config.get("drafts")) if old else bool(serial)
    can = rules.scheduler.drafts_overlap or not config.get("eagle")
    can = can and (config.get("strategy") == "extra_buffer" or "mamba" not in config["kind"])
    return {"overlaps": serial is False and can, "track_slots": 1 if one else 2}


def scheduling(config: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Limits of policies and priorities."""
    on, keeps = bool(config.get("prioritizes")), bool(config.get("keeps_running"))
    is_old = rules.tree.trees == "one-per-kind"
    return {
        "loras": config.get("loras", 0),
        "policy": config.get("schedule", "fcfs"),
        "seed": config.get("seed", 0),
        "prioritizes": on,
        "preempts": on and (is_old or not keeps),
        "low_first": bool(config.get("low_first")),
        "threshold": config.get("threshold", 10),
        "retracts_by_priority": config.get("retraction") == "priority" and not is_old,
    }


def _host(config: Mapping[str, Any]) -> pools.HostShape | None:
    wanted, page = config.get("host"), config.get("page", 1)
    if wanted is None:
        return None
    storage = wanted.get("storage")
    return pools.HostShape(
        tokens=pools.host_size(config["tokens"], wanted["ratio"], page),
        window_tokens=pools.host_size(config.get("window_tokens", 0), wanted["ratio"], page),
        states=pools.host_size(config.get("states", 0), wanted["ratio"], 1),
        policy=wanted["policy"],
        lag=wanted.get("lag", 0),
        storage=pools.StorageShape(**storage) if storage is not None else None,
    )


def play(workload: Mapping[str, Any], rules: Rules, *, like: object = None) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    del like
    return until_error(map(Player(workload["config"], rules).play, workload["steps"]))
