"""Groups of requests on the simulated scheduler, in the form of the real one's vectors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cachesim.engines.sglang.build import Sizes, grid_of, make_tree
from cachesim.engines.sglang.node import Node, as_key
from cachesim.engines.sglang.pools import HostShape, Storage, StorageShape, WindowPool, host_size
from cachesim.engines.sglang.request import Batch, Limits, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.server import check_books, leaks
from cachesim.engines.sglang.tree import Shape
from cachesim.errors import UpstreamAbort
from cachesim.lab.real.sglang import groups
from cachesim.lab.real.sglang.groups import Groups
from cachesim.lab.real.worker_side import until_error


class Player(Groups):
    """The simulated scheduler."""

    NAME = "id"

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        self.rules = rules
        self._count = 0
        self.storage = Storage()
        super().__init__(config)

    def start(self) -> None:
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
                max_running=config.get("max_running", 8),
                max_len=config.get("max_len", 4096),
                interval=config.get("interval", 256),
                ignores_eos=config.get("ignore_eos", True),
                mixes=bool(config.get("mixes"))
                and (rules.scheduler.drafts_may_mix or not config.get("eagle")),
            ),
        )
        self.tree.on_evict = self._evicting
        self.plan, self.take = self.scheduler.next_batch, self.scheduler.take
        self.abort = self.scheduler.abort

    def play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Results of a group; where the release would end, its error."""
        try:
            return super().play(group)
        except UpstreamAbort as error:
            return {"error": str(error)}

    # -- the tree ----------------------------------------------------------------------------------

    def nodes(self) -> list[groups.Node]:
        found: list[groups.Node] = []

        def walk(node: Node, path: tuple[int, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(int(each) for each in child.key)
                found.append((whole, len(child), *self._flags(child)))
                walk(child, whole)

        walk(self.tree.root, ())
        return found

    def _flags(self, node: Node) -> list[int]:
        tree = self.tree
        if tree.shape.host is not None:
            return self._tiers(node)
        states = [int(node.state is not None)] if tree.has_states else []
        return states + ([int(node.window)] if tree.has_windows else [])

    def _tiers(self, node: Node) -> list[int]:
        found = [node.value is not None, node.host_full is not None]
        if self.tree.has_states:
            found += [node.state is not None, node.host_state is not None]
        if self.tree.has_windows:
            found += [node.window, node.host_window is not None]
        return list(map(int, found))

    def key_of(self, text: list[int]) -> list[int]:
        key: list[int] = as_key(np.array(text, np.int64), bigrams=self.tree.shape.bigrams).tolist()
        return key

    def _evicting(self) -> Callable[[], None]:
        before = self.nodes()
        return lambda: self.note_evicted(before)

    def leaks(self) -> bool:
        if self.tree.rules.tree.trees == "one-per-kind":
            return False  # 0.5.9 counts slots that its own HiRadixCache lost, too
        lost = leaks(self.tree)
        if not lost:
            check_books(self.tree, ())
        return bool(lost)

    def free(self) -> dict[str, int]:
        pool = self.tree.pool
        free = {"tokens": pool.available}
        if isinstance(pool, WindowPool):
            free["window_tokens"] = pool.windows.available
        if self.tree.states is not None:
            free["states"] = self.tree.states.available
        return free | self.tree.host_free()

    # -- requests ----------------------------------------------------------------------------------

    def add(self, prompt: Sequence[int], wanted: Mapping[str, Any]) -> Req:
        req = Req.make(
            self._count,
            np.array(prompt, np.int64),
            max(1, wanted["generate"]),
            extra_key=wanted.get("salt"),
            priority=wanted.get("priority") or 0,
        )
        self._count += 1
        self.scheduler.add(req)
        return req

    def finished(self, request: Req) -> bool:
        return request.finished

    def generated(self, request: Req) -> int:
        return request.num_output

    def count_retractions(self, request: Req, entry: dict[str, Any]) -> None:
        entry["retracted"] = request.retractions

    def rest(self) -> None:
        self.scheduler.last = None

    def waits(self) -> bool:
        return bool(self.scheduler.waiting)

    def pieces(self, batch: Batch) -> Iterator[tuple[Req, int, int, int | None]]:
        for req in filter(batch.reads, batch.reqs) if batch.extend else ():
            branch = req.window_branch if self.kind == "window" else req.branch
            yield req, req.prefix, req.fill, branch


def _host(config: Mapping[str, Any]) -> HostShape | None:
    wanted, page = config.get("host"), config.get("page", 1)
    if wanted is None:
        return None
    storage = wanted.get("storage")
    return HostShape(
        tokens=host_size(config["tokens"], wanted["ratio"], page),
        window_tokens=host_size(config.get("window_tokens", 0), wanted["ratio"], page),
        states=host_size(config.get("states", 0), wanted["ratio"], 1),
        policy=wanted["policy"],
        lag=wanted.get("lag", 0),
        storage=StorageShape(**storage) if storage is not None else None,
    )


def play(workload: Mapping[str, Any], rules: Rules) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    return until_error(workload["steps"], Player(workload["config"], rules).play)
