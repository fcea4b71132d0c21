"""A sequence of requests on the simulated server, in the form of the real scheduler's results.

The server is the one that users run, started with the flags that a workload's configuration means;
its own calls are watched. The steps are those that drive the real scheduler: requests of a group
are added in order, then it runs until all are done; tokens and accepted drafts are a workload's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.family import Profile
from cachesim.engines.sglang import pools, sessions
from cachesim.engines.sglang.build import Kind, Sizes
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.node import Node, as_key
from cachesim.engines.sglang.observe import check_books
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.request import Batch, Drafts, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.server import Sglang, leaks
from cachesim.engines.sglang.tree import Evicting
from cachesim.errors import OptionError, UpstreamAbort, UpstreamEndless
from cachesim.model.build import build
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.prove.rows import read_row
from cachesim.prove.worker_side import until_error
from cachesim.typed import there_is
from cachesim.units import Array, Tokens, as_tokens
from conformance.real.schedules import images_of
from conformance.real.sglang.drafts_worker import accepted
from conformance.real.sglang.scheduler_worker import IDLE, MOST_IDLE, MOST_STEPS

Config = Mapping[str, Any]
Wanted = Mapping[str, Any]

MOST_TOKENS: Final = 1 << 30

LAYERS: Final[Mapping[str, tuple[LayerKind, ...]]] = {
    "full": ("attention",),
    "window": ("window", "attention"),
    "mamba": ("delta", "attention"),
    "window-mamba": ("delta", "window", "attention"),
}
"""Kind of a tree -> layers of a model with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions(SglangOptions):
    """Flags of a server whose drafter, storage and schedule are a workload's."""

    config: Config

    @property
    def drafts(self) -> Drafts | None:
        """A workload's; the tree may have pairs of tokens beside no drafter."""
        sizes = self.config.get("drafts")
        return Drafts(**sizes) if sizes else None

    def overlaps(self, rules: Rules, *, states: bool) -> bool:
        """Recordings without `serial` ran in the slots of a server with overlap, and without it."""
        can = rules.scheduler.drafts_overlap or self.speculative_algorithm == "none"
        stated = self.config.get("serial") is not None
        return stated and can and SglangOptions.overlaps(self, rules, states=states)

    def running(self, rules: Rules, *, tokens: int, states: bool) -> int:
        """A workload's: in some recordings there are fewer states than so many requests take."""
        del rules, tokens, states
        most: int = self.config.get("max_running", 8)
        return most

    def host(
        self, rules: Rules, kind: Kind, sizes: Sizes, spec: ModelSpec
    ) -> pools.HostShape | None:
        """The second tier, with the lags of a workload's storage.

        Its sizes are of pools that a workload names, perhaps not in whole pages.
        """
        windows = self.config.get("window_tokens", 0)
        sizes = replace(sizes, tokens=self.config["tokens"], window_tokens=windows)
        found = SglangOptions.host(self, rules, kind, sizes, spec)
        if found is None or found.storage is None:
            return found
        return replace(found, storage=pools.StorageShape(**self.config["host"]["storage"]))


def spec_of(config: Config) -> ModelSpec:
    """A model with a workload's kind of tree; its window counts the token itself."""
    return ModelSpec(
        name="workload", layers=LAYERS[config["kind"]], window=config.get("window", 0) + 1
    )


def options_of(config: Config, rules: Rules) -> SglangOptions:
    """The flags that a workload's configuration means."""
    tokens, drafts = config["tokens"], config.get("drafts")
    given: dict[str, Any] = {
        "page_size": config.get("page", 1),
        "max_total_tokens": tokens,
        "swa_full_tokens_ratio": (config.get("window_tokens", 0) + 0.5) / tokens,
        "max_mamba_cache_size": config.get("states", 0),
        "context_length": config.get("max_len", 4096),
        "chunked_prefill_size": config.get("chunk", 8192),
        "max_prefill_tokens": config.get("max_prefill", 16384),
        "prefill_max_requests": config.get("most_prefill"),
        "schedule_conservativeness": config.get("conservativeness", 1.0),
        "max_running_requests": config.get("requested") or config.get("max_running", 8),
        "enable_mixed_chunk": bool(config.get("mixes")),
        "disable_overlap_schedule": bool(config.get("serial")),
        "mamba_radix_cache_strategy": config.get("strategy", "no_buffer"),
        "mamba_track_interval": config.get("interval", 256),
        "mamba_max_states_per_path": config.get("cap", -1),
        "radix_eviction_policy": config.get("policy", "lru"),
        "speculative_algorithm": "EAGLE" if config.get("eagle") or drafts else "none",
        "strip_thinking_cache": bool(config.get("strips")),
        "enable_streaming_session": bool(config.get("streams")),
        "schedule_policy": config.get("schedule", "fcfs"),
        "random_seed": config.get("seed", 0),
        "lora": "weights",
        "max_loras_per_batch": config.get("loras", 0),
    }
    if config.get("prioritizes"):
        old = rules.tree.trees == "one-per-kind"  # without the last two flags
        given |= {
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": bool(config.get("low_first")),
            "priority_scheduling_preemption_threshold": config.get("threshold", 10),
            "disable_priority_preemption": bool(config.get("keeps_running")) and not old,
            "retraction_policy": "length" if old else config.get("retraction", "length"),
        }
    if host := config.get("host"):
        given |= {
            "enable_hierarchical_cache": True,
            "hicache_ratio": host["ratio"],
            "hicache_write_policy": host["policy"],
            "hicache_copy_steps": host.get("lag", 0),
            "hicache_storage_backend": "none" if host.get("storage") is None else "file",
        }
    return WorkloadOptions(config=config, **given)


class Proposals(Sequence[Tokens]):
    """The drafts of a request: as many true ones in each round as a workload accepts."""

    def __init__(self, server: "Played", req: Req) -> None:
        self.server, self.req = server, req

    def __len__(self) -> int:
        return MOST_STEPS

    def __getitem__(self, _: Any) -> Any:  # noqa: ANN401 - a round, or a slice of them
        req, queue = self.req, self.server.scheduler.result_queue
        rounds = req.rounds + sum(req in each.reqs and not each.extend for each in queue)
        count = accepted(self.server.wanted[req.id], self.server.config["drafts"], rounds)
        return as_tokens([self.server.token(req, more) for more in range(count - 1)])


class Unreset(Scheduler):
    """The scheduler of recordings in which no pass was idle."""

    __slots__ = ()

    def idle(self) -> None:
        """Do nothing."""


class Played(Sglang):
    """A server whose model and drafter answer what a workload names."""

    def __init__(self, config: Config, rules: Rules, *, like: Sglang | None = None) -> None:
        """`like`: the server of a scenario, with whose flags and model this one starts."""
        self.config = config
        self.on_batch: Callable[[Batch], None] = lambda _: None
        self.wanted: dict[int, Wanted] = {}
        self.replies: dict[int, list[int]] = {}
        options, spec = options_of(config, rules), spec_of(config)
        if like is not None:
            options, spec = like.options, like.network.spec
        self._asked = rules, options
        named = (release.name for release in reversed(FAMILY.releases) if release.rules == rules)
        profile = Profile(FAMILY.name, next(named, FAMILY.releases[-1].name))
        super().__init__(profile, network=build(spec, "counts"), options={})

    def _open(self, rules: Rules, options: SglangOptions, store: base.ByteStore | None) -> None:
        super()._open(*self._asked, store)

    def _start(self) -> None:
        super()._start()
        scheduler: Any = self.scheduler
        wanted = self.config.get("ignore_eos", True)  # of the requests
        scheduler.limits = replace(scheduler.limits, ignores_eos=wanted)
        if not self.config.get("resets"):
            scheduler.__class__ = Unreset

    def longest(self) -> int:
        """No limit: on the real side, too, requests are queued past the check of their lengths."""
        return MOST_TOKENS

    def restart(self) -> None:
        """Start again beside the same storage."""
        for _ in range(IDLE if self.config.get("idles") else 0):
            self.scheduler.next_batch()
        self._sessions = {}
        self._start()

    def passes(self) -> bool:
        """A pass of the scheduler; True if a batch ran, or its result was processed.

        A server without requests steps no more; copies and transfers go on in its passes.
        """
        self._worked = False
        if self.scheduler.busy:
            with suppress(UpstreamEndless):  # a transfer may be slower than any of a server's
                self.step()
        else:
            sessions.reap(self._sessions, self.scheduler.close)
            self.scheduler.last = self.scheduler.next_batch()
            self.scheduler.idle()
        return self._worked

    def submit_wanted(self, wanted: Wanted) -> Req:
        """Submit a request of a workload."""
        number = int(self._jobs.ticket())
        self.wanted[number], self.replies[number] = wanted, read_row(wanted.get("reply", ""))
        adapter = {"name": wanted.get("lora"), "path": wanted.get("lora")}
        options = {
            "extra_key": wanted.get("salt"),
            "priority": wanted.get("priority"),
            "routing_key": wanted.get("routing_key"),
            "require_reasoning": bool(wanted.get("thinks"))
            if self.options.strip_thinking_cache
            else None,
            "lora": adapter | {"weights": self.options.adapters[0]} if wanted.get("lora") else None,
            sessions.FIELD: wanted.get("session"),
            "rid": wanted.get("rid"),
        }
        ticket = self.submit(
            base.Request(
                prompt=as_tokens(read_row(wanted["prompt"])),
                predict=max(1, wanted["generate"]),
                images=() if "session" in wanted else images_of(wanted),
                options={name: value for name, value in options.items() if value is not None},
            )
        )
        req = there_is(self._jobs[ticket].req)
        drafts: Any = Proposals(self, req) if self.options.drafts else None
        req.drafts = drafts
        return req

    def token(self, req: Req, more: int) -> int:
        """A token of the reply, behind those that are sampled."""
        return [*self.replies[req.id][req.sampled - req.num_prompt + more :], 1][0]

    def _begin(self, batch: Batch) -> None:
        super()._begin(batch)
        self._worked = True
        self.on_batch(batch)

    def _take(self) -> None:
        super()._take()
        self._worked = True

    def _sample(self, req: Req, row: Array, more: int) -> int:
        return self.token(req, more)

    def records(self) -> Sequence[Req]:
        """The records of sessions."""
        return sessions.records(self._sessions)

    def check_books(self) -> None:
        """Check the tree's counts of a server that is idle."""
        check_books(self.tree, (), sessions.streams(self._sessions))


class Calls:
    """What a server's own calls decide, in the form of the real scheduler's results."""

    def __init__(self, server: Played) -> None:
        self.server = server
        self.keys: list[list[int]] = []
        self.evicted: list[list[Any]] = []
        self.results: dict[int, dict[str, Any]] = {}

    def formed(self, batch: Batch) -> None:
        """Note the chunks of a batch that runs."""
        for req in filter(batch.reads, batch.reqs) if batch.extend else ():
            entry = self.results[req.id]
            entry["chunks"].append([req.prefix, req.fill])
            if entry["cached"] is None:
                entry["cached"] = req.prefix
                window = self.server.kind == "window"
                entry["branch"] = req.window_branch if window else req.branch

    def learn(self, req: Req) -> None:
        """Begin the results of a request, and label its text."""
        self.results[req.id] = {"cached": None, "chunks": [], "branch": None}
        reply = np.array(self.server.replies[req.id], np.int64)
        text = np.concatenate((req.tokens[: req.num_prompt], reply))
        self.keys.append(as_key(text, bigrams=self.server.tree.shape.bigrams).tolist())

    def _nodes(self) -> list[tuple[tuple[int, ...], int, list[int]]]:
        found: list[tuple[tuple[int, ...], int, list[int]]] = []

        def walk(node: Node, path: tuple[int, ...]) -> None:
            for child in node.children.values():
                whole = path + tuple(int(each) for each in child.key)
                found.append((whole, len(child), self._extra(child)))
                walk(child, whole)

        walk(self.server.tree.root, ())
        return found

    def _extra(self, node: Node) -> list[int]:
        tree = self.server.tree
        if tree.shape.host is not None:
            found = [node.value is not None, node.host_full is not None]
            if tree.has_states:
                found += [node.state is not None, node.host_state is not None]
            if tree.has_windows:
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

    def evicting(self, wanted: Evicting) -> Callable[[], None]:
        """Note what goes or changes in an eviction."""
        del wanted
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

    def result(self, reqs: Sequence[Req]) -> dict[str, Any]:
        """The results of a group whose requests are done."""
        server, tree = self.server, self.server.tree
        if tree.rules.tree.trees != "one-per-kind":
            if leaks(tree, server.records()):
                return {"error": "pool memory leak detected"}
            # 0.5.9 counts slots that its own HiRadixCache lost, too
            server.check_books()
        free = {"tokens": tree.pool.available}
        if isinstance(tree.pool, pools.WindowPool):
            free["window_tokens"] = tree.pool.windows.available
        if tree.states is not None:
            free["states"] = tree.states.available
        return {
            "requests": [self.results[req.id] | {"retracted": req.retractions} for req in reqs],
            "evicted": self.evicted,
            "tree": [[*self._label(path), length, *extra] for path, length, extra in self._nodes()],
            "free": free | tree.host_free(),
        }


class Driver:
    """A server of a workload, and its results for one group of requests after another."""

    def __init__(self, config: Config, rules: Rules, *, like: Sglang | None = None) -> None:
        self.server = Played(config, rules, like=like)
        self.calls = Calls(self.server)
        self.begin()

    def begin(self) -> None:
        """Watch a server that has started, perhaps again."""
        self.server.on_batch = self.calls.formed
        self.server.tree.on_evict = self.calls.evicting

    def play(self, group: Sequence[Wanted]) -> dict[str, Any]:
        """Requests that arrive together or one after another; until all are done."""
        if "reset" in group[0]:
            self.server.restart()
            self.begin()
            return {"reset": True}
        try:
            return self._play(group)
        except (OptionError, UpstreamAbort) as error:
            return {"error": str(error)}

    def _play(self, group: Sequence[Wanted]) -> dict[str, Any]:
        server, calls = self.server, self.calls
        calls.evicted, calls.results = [], {}
        reqs: list[Req] = []
        idle = 0
        for turn in range(MOST_STEPS):
            while len(reqs) < len(group) and group[len(reqs)].get("arrives", 0) <= turn:
                reqs.append(server.submit_wanted(group[len(reqs)]))
                calls.learn(reqs[-1])
            for req, wanted in zip(reqs, group, strict=False):
                if wanted.get("aborted") == turn and not req.finished:
                    calls.results[req.id]["aborted"] = True
                    server.cancel(Ticket(req.id))
            if server.passes():
                idle = 0
                continue
            come = len(reqs) == len(group)
            if come and not server.scheduler.waiting and all(req.finished for req in reqs):
                return calls.result(reqs)
            idle += come
            if idle > MOST_IDLE:
                return {"error": "stuck"}
        return {"error": "too many steps"}


def play(
    workload: Mapping[str, Any],
    rules: Rules,
    *,
    kind: type[Driver] = Driver,
    like: Sglang | None = None,
) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    driver = kind(workload["config"], rules, like=like)
    return until_error(map(driver.play, workload["steps"]))
