"""One sequence of requests on the simulated scheduler, told as the real one's vectors are.

The steps are those that drive the real scheduler: requests of a group are added in order, then it
runs until all are done; tokens are forced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from cachesim.engines.sglang.build import Sizes, grid_of, make_tree
from cachesim.engines.sglang.node import Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.scheduler import Batch, Limits, Scheduler
from cachesim.engines.sglang.tree import Shape
from cachesim.errors import UpstreamAbort
from cachesim.real.token_rows import unspell

MOST_STEPS: Final = 20_000
MOST_IDLE: Final = 5


class Player:
    """A fresh scheduler, and what it does with one group of requests after another."""

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        page = config.get("page", 1)
        self.kind = config["kind"]
        shape = Shape(
            page=page,
            bigrams=bool(config.get("eagle")),
            extra_buffer=config.get("strategy") == "extra_buffer",
            grid=grid_of(page),
            window=config.get("window", 0),
            states_per_path=config.get("cap", -1),
            policy=config.get("policy", "lru"),
        )
        sizes = Sizes(
            tokens=config["tokens"],
            window_tokens=config.get("window_tokens", 0),
            states=config.get("states", 0),
        )
        self.tree = make_tree(self.kind, shape, sizes, rules)
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
                ignores_eos=True,
            ),
        )
        self.tree.on_evict = self._evicting
        self.known: list[list[int]] = []
        self.evicted: list[list[Any]] = []

    # -- the tree ----------------------------------------------------------------------------------

    def _nodes(self) -> list[tuple[tuple[int, ...], int, list[int]]]:
        """All nodes: the tokens that lead to them, their length, and what they hold."""
        found: list[tuple[tuple[int, ...], int, list[int]]] = []

        def walk(node: Node, path: tuple[int, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(int(each) for each in child.key)
                found.append((whole, len(child), self._extra(child)))
                walk(child, whole)

        walk(self.tree.root, ())
        return found

    def _extra(self, node: Node) -> list[int]:
        if self.kind == "mamba":
            return [int(node.state is not None)]
        return [int(node.window)] if self.kind == "window" else []

    def _label(self, path: Sequence[int]) -> list[int]:
        tokens = list(path)
        for number, text in enumerate(self.known):
            if text[: len(tokens)] == tokens:
                return [number, len(tokens)]
        return [-1, len(tokens)]

    def _evicting(self) -> Callable[[], None]:
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

    def _add(self, wanted: Mapping[str, Any]) -> Req:
        prompt = unspell(wanted["prompt"])
        req = Req.make(
            len(self.known),
            np.array(prompt, np.int64),
            max(1, wanted["generate"]),
            extra_key=wanted.get("salt"),
        )
        self.known.append(prompt + unspell(wanted.get("reply", "")))
        self.scheduler.waiting.append(req)
        return req

    def play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Requests that arrive together; until all are done."""
        try:
            return self._play(group)
        except UpstreamAbort as error:
            return {"error": str(error)}

    def _play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self.evicted = []
        reqs = [self._add(wanted) for wanted in group]
        replies = {
            req.id: unspell(each.get("reply", "")) for req, each in zip(reqs, group, strict=True)
        }
        told: dict[int, dict[str, Any]] = {
            req.id: {"cached": None, "chunks": [], "branch": None} for req in reqs
        }
        steps = idle = 0
        while True:
            batch = self.scheduler.next_batch()
            if batch is None:
                if all(req.finished for req in reqs) and not self.scheduler.waiting:
                    self.scheduler.last = None
                    break
                idle += 1
                if idle > MOST_IDLE:
                    return {"error": "stuck"}
                self.scheduler.last = None
                continue
            idle, steps = 0, steps + 1
            if steps > MOST_STEPS:
                return {"error": "too many steps"}
            self._tell(batch, told)
            tokens = []
            for req in batch.reqs:
                reply, done = replies[req.id], req.num_output
                tokens.append(reply[done] if done < len(reply) else 1)
            self.scheduler.take(batch, tokens)
        return {
            "requests": [told[req.id] | {"retracted": req.retractions} for req in reqs],
            "evicted": self.evicted,
            "tree": [[*self._label(path), length, *extra] for path, length, extra in self._nodes()],
            "free": self._free(),
        }

    def _tell(self, batch: Batch, told: dict[int, dict[str, Any]]) -> None:
        if not batch.extend:
            return
        for req in batch.reqs:
            told[req.id]["chunks"].append([req.prefix, req.fill])
            if told[req.id]["cached"] is None:
                told[req.id]["cached"] = req.prefix
                window = self.kind == "window"
                told[req.id]["branch"] = req.window_branch if window else req.branch

    def _free(self) -> dict[str, int]:
        pool = self.tree.pool
        free = {"tokens": pool.available}
        if isinstance(pool, WindowPool):
            free["window_tokens"] = pool.windows.available
        if self.tree.states is not None:
            free["states"] = self.tree.states.available
        return free


def play(workload: Mapping[str, Any], rules: Rules) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    player = Player(workload["config"], rules)
    results: list[dict[str, Any]] = []
    for group in workload["steps"]:
        results.append(player.play(group))
        if "error" in results[-1]:
            break
    return results
