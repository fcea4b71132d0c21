"""Groups of requests on the simulated server, in the form of the real scheduler's results.

The server is the one that users run, started with the flags that a workload's configuration means;
its own calls are watched. As on the real side, stand-ins are the model, its sampler and drafter,
the store, and the numbers of adapters' loads: a workload names what they answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from cachesim.engines import base
from cachesim.engines.adapters import LoadedAdapters, LoRARequest
from cachesim.engines.base import Ticket
from cachesim.engines.family import Profile
from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.connector import Connector
from cachesim.engines.vllm.coordinator import Hit
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.options import DENSE, VllmOptions
from cachesim.engines.vllm.request import Chunk, Request, Step, Transfers
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.scheduler import Stored
from cachesim.engines.vllm.server import Drafter, Vllm
from cachesim.errors import UpstreamAbort, UpstreamEndless
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.prove.rows import read_row, spell
from cachesim.prove.worker_side import until_error
from cachesim.typed import there_is
from cachesim.units import Array, Tokens, as_tokens
from conformance.real.schedules import images_of
from conformance.real.vllm.groups import MOST_STEPS, WRONG_DRAFT, Entry, Loads, Wanted
from conformance.real.vllm.models import LONGEST

Config = Mapping[str, Any]

LAYERS: Final = 3
"""Layers of a group, as on the real side: with the drafter's own one more there is one group."""


def kind_of(group: Config) -> LayerKind:
    """The kind of a group's layers; those with states are known by where they export them."""
    if group["kind"] != "mamba":
        return "attention" if group["kind"] == "full" else "window"
    if group.get("mode") == "all" or group.get("checkpoint_alignment") == 1:
        return "ssm"
    return "delta" if group.get("checkpoint_alignment") else "conv"


def spec_of(config: Config) -> ModelSpec:
    """The model with a workload's groups of layers."""
    groups = config["groups"]
    if config.get("compressed"):
        window = max(group.get("window", 0) for group in groups)
        return preset("swa", compressed=True, window=window)
    numbers = config.get("layers") or [at for at in range(len(groups)) for _ in range(LAYERS)]
    local = {key: group[key] for group in groups for key in ("window", "chunk") if group.get(key)}
    kinds = [kind_of(groups[number]) for number in numbers]
    if config.get("further", {}).get("disable_hybrid_kv_cache_manager") and local:
        kinds = ["window" if layer % 2 else "attention" for layer in range(len(kinds))]
    return ModelSpec(
        name="workload",
        layers=tuple(kinds),
        window=next(iter(local.values()), 0),
        chunked="chunk" in local,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions(VllmOptions):
    """Flags of a server whose pool and kernels are a workload's."""

    wanted: tuple[GroupSpec, ...]  # its groups
    recorded: bool = False  # the groups of a recording, of which some no start makes

    def fitted(self, groups: Sequence[GroupSpec], rules: Rules) -> VllmOptions:
        """These flags: the real scheduler, too, has a workload's pool in place of the one that its
        start measures, and `max_model_len` is compared with the latter.
        """
        return self

    def groups(self, spec: ModelSpec, rules: Rules) -> tuple[GroupSpec, ...]:
        """The groups of a start, but for where kernels export states: a workload's, as there."""
        if self.recorded:
            return self.wanted
        found = VllmOptions.groups(self, spec, rules)
        plain = [replace(each, checkpoint_alignment=0, layers=()) for each in found]
        if plain != [replace(each, checkpoint_alignment=0) for each in self.wanted]:
            raise ValueError(f"the server's groups are {plain}, not {self.wanted}")
        return tuple(
            replace(group, checkpoint_alignment=wanted.checkpoint_alignment)
            for group, wanted in zip(found, self.wanted, strict=True)
        )


def options_of(config: Config, rules: Rules, *, recorded: bool) -> WorkloadOptions:
    """The flags that a workload's configuration means."""
    groups, further = config["groups"], config.get("further", {})
    sizes = {group["kind"]: group["block"] for group in reversed(groups)}
    local = next((sizes[kind] for kind in ("window", "chunked") if kind in sizes), 0)
    block = sizes.get("full") or local or sizes["mamba"]
    modes = [group.get("mode", "align") for group in groups if group["kind"] == "mamba"]
    if config.get("compressed"):
        block, local = VllmOptions().block_size, 0
    given: dict[str, Any] = {
        "wanted": tuple(GroupSpec(**group) for group in groups),
        "recorded": recorded,
        "block_size": block,
        "window_block_size": local if "full" in sizes and local != block else 0,
        "mamba_block_size": sizes.get("mamba", 0) if modes[:1] == ["all"] else 0,
        "drafter_block_size": config.get("drafter_block") or 0,
        "mamba_chunk_size": config.get("scan_size", 0),
        "num_gpu_blocks_override": config["blocks"],
        "prefix_match_unit": config.get("hash_block") or 0,
        "max_model_len": config.get("max_len", LONGEST),
        "max_num_batched_tokens": config.get("budget", 8192),
        "max_num_scheduled_tokens": config.get("scheduled") or 0,
        "max_num_seqs": config.get("max_seqs", 16),
        "enable_prefix_caching": config.get("caching", True),
        "scheduler_reserve_full_isl": config.get("reserve_full", True),
        "scheduling_policy": config.get("policy", "fcfs"),
        "async_scheduling": bool(config.get("overlaps")),
        "prefix_cache_retention_interval": DENSE,
        **further,
    }
    if modes and modes[0] != "none":
        given["mamba_cache_mode"] = modes[0]
    if rules.retention.interval and config.get("retention") is not None:
        given["prefix_cache_retention_interval"] = config["retention"]
    if config.get("drafts") or config.get("eagle"):
        mtp = modes or config.get("compressed")
        method = config.get("method") or ("mtp" if mtp else "eagle")
        given |= {
            "speculative_method": method if config.get("eagle") else "ngram",
            "num_speculative_tokens": config.get("drafts", 0),
            "disable_lookahead_block_hashes": not config.get("lookahead_hashes"),
        }
    if config.get("store"):
        given |= {
            "connector": "store",
            "kv_load_failure_policy": "recompute" if config.get("recomputes") else "fail",
        }
    if config.get("loras"):
        given |= {"lora": "weights", "max_loras": config["loras"]}
    if offload := config.get("offload"):
        given |= {
            "kv_offloading_size": 1.0,
            "host_chunks_override": offload["chunks"],
            "blocks_per_chunk": offload["factor"],
            "eviction_policy": offload["policy"],
            "store_threshold": offload["threshold"],
            "offload_prompt_only": offload["prompt_only"],
            "copy_steps": offload["steps"],
        }
    return WorkloadOptions(**given)


@dataclass(frozen=True, slots=True)
class Drafts(Drafter):
    """The drafter of a workload: the true continuation, as many tokens of it as a request says."""

    server: "Played"

    def propose(
        self, request: Request, forced: Tokens | None, given: tuple[Tokens, ...] | None, turn: int
    ) -> list[int]:
        del forced, given, turn
        drafts, done = self.options.drafts, request.num_output
        counts = self.server.wanted[request.id].get("propose") or [drafts]
        reply = self.server.replies[request.id]
        proposal = reply[done : done + drafts] + [WRONG_DRAFT] * drafts
        return proposal[: counts[done % len(counts)]]


@dataclass(slots=True)
class Store:
    """The store of a workload: each request names what it has, and the steps of its loads."""

    server: "Played"
    loads: Loads = field(default_factory=Loads)
    queries: Counter[int] = field(default_factory=Counter)
    failing: dict[int, int] = field(default_factory=dict)
    held: frozenset[int] = frozenset()

    @property
    def steps_ahead(self) -> int:
        return self.loads.ahead

    @steps_ahead.setter
    def steps_ahead(self, steps: int) -> None:
        self.loads.ahead = steps

    @property
    def loading(self) -> Mapping[int, int]:
        """Steps left of each load."""
        return self.loads.loading

    @property
    def in_transit(self) -> bool:
        """True while a transfer has not ended."""
        return bool(self.loads.loading or self.loads.sending)

    def find(self, request: Request, local: int) -> Stored:
        """Tokens beyond the hit, in whole blocks but from a prefill server."""
        size, wanted = self.server.manager.sizes.scheduler_block, self.server.wanted[request.id]
        self.queries[request.id] += 1
        stored: int | Sequence[int] = wanted.get("stored", 0)
        if not isinstance(stored, int):
            stored = stored[min(self.queries[request.id], len(stored)) - 1]
        most = min(stored, request.num_tokens - wanted.get("leaves", 1))
        found = max(0, (most if "leaves" in wanted else most // size * size) - local)
        if request.id in self.loads.asked:
            return 0, False
        if "leaves" in wanted and not found:
            self.loads.asked.add(request.id)
        return found, bool(found) and "loads" in wanted

    def promise(self, request: Request, local: int, tokens: int) -> None:
        """Begin a load."""
        manager = self.server.manager
        group = manager.groups[0]
        span = range(local // group.block, (local + tokens) // group.block)
        wanted, tables = self.server.wanted[request.id], manager.tables_of(request)
        self.loads.begin(request.id, wanted, tables, span, group.kind)

    def sends(self, request: Request) -> bool:
        """True if a finished request's blocks are sent before they are freed."""
        wanted = self.server.wanted[request.id]
        if request.status != "finished" or "sends" not in wanted:
            return False
        self.loads.sending[request.id] = wanted["sends"]
        return True

    def load(self, step: Step) -> None:
        """Do nothing: blocks have no content."""

    save = load

    def get_finished(self) -> Transfers:
        """The transfers that end with this step."""
        *names, invalid = self.loads.next()
        received, sent, failed = (tuple(map(self.server.made, name)) for name in names)
        return Transfers(received=received, sent=sent, failed=failed, invalid=frozenset(invalid))


class Loaded(LoadedAdapters):
    """Adapters whose loads have the numbers that a workload names."""

    number = 0

    def loaded(self, lora: LoRARequest) -> LoRARequest:
        """The adapter, with the number that is set."""
        return replace(lora, load=self.number)


class Played(Vllm):
    """A server whose model, drafter and store answer what a workload names."""

    def __init__(
        self, config: Config, rules: Rules, *, like: Vllm | None = None, recorded: bool = False
    ) -> None:
        """`like`: the server of a scenario, with whose flags and model this one starts."""
        self.config = config
        options: VllmOptions = options_of(config, rules, recorded=recorded)
        spec = spec_of(config)
        if like is not None:
            spec, store = like.network.spec, "store" if config.get("store") else "none"
            options = replace(like.options, connector=store)
        self._asked = rules, options
        self.wanted: dict[int, Wanted] = {}
        self.replies: dict[int, list[int]] = {}
        self.turns = Counter[int]()  # steps with drafts, by request
        named = (release.name for release in reversed(FAMILY.releases) if release.rules == rules)
        profile = Profile(FAMILY.name, next(named, FAMILY.releases[-1].name))
        super().__init__(profile, network=build(spec, "counts"), options={})

    def _open(self, rules: Rules, options: VllmOptions, store: base.ByteStore | None) -> None:
        super()._open(*self._asked, store)

    def _set_up(self) -> None:
        super()._set_up()
        self.runner.computes = False  # of a store's blocks, too, there is no content
        self.drafter = Drafts(self.options, self)
        self._loads = self.loads = Loaded()
        self.scheduler.requires_delivery = bool(self.config.get("delivers"))
        if self.config.get("store"):
            store = Store(self)
            self.connector = cast("Connector", store)
            self.scheduler.external, self.scheduler.delays_free = store.find, store.sends

    def submit_wanted(self, wanted: Wanted) -> Ticket:
        """Submit a request of a workload."""
        number = int(self._jobs.ticket())
        name, path, self.loads.number = wanted.get("lora", ("", "", 0))
        reply = read_row(wanted.get("reply", ""))
        self.wanted[number], self.replies[number] = wanted, reply
        file = {"weights": self.options.adapters[0]} if name else {}
        lora = {"lora": {"name": name, "path": path} | file} if name else {}
        more = {"cache_salt": wanted.get("salt"), "priority": wanted.get("priority")}
        return self.submit(
            base.Request(
                prompt=as_tokens(read_row(wanted["prompt"])),
                predict=max(1, wanted["generate"]),
                cache_prompt="skips_cache" not in wanted,
                images=images_of(wanted),
                options={name: value for name, value in (more | lora).items() if value},
            )
        )

    def made(self, number: int) -> Request:
        """A request that was submitted."""
        return there_is(self._jobs[number].request)

    def _sample(self, chunk: Chunk, logits: Array) -> list[int]:
        """The next tokens of the reply: one, and as many more as the request accepts drafts."""
        number, done, accept = chunk.request.id, chunk.request.num_output, 0
        if chunk.drafts:
            accepts = self.wanted[number].get("accept") or [0]
            accept = min(accepts[self.turns[number] % len(accepts)], len(chunk.drafts))
            self.turns[number] += 1
        return self.replies[number][done : done + accept + 1]


class Calls:
    """What a server's own calls decide, in the form of the real scheduler's results."""

    def __init__(self, server: Vllm) -> None:
        self.server = server
        scheduler, manager = server.scheduler, server.manager
        apart = server.connector is not None and server.offloading is None
        apart &= server.rules.scheduler.store_hit == "longest-group"
        several = bool(manager.coordinator.mamba) and len(manager.groups) > 1
        self.junctions = server.rules.retention.keeps_junction and not (apart and several)
        self.labels: dict[int, tuple[int, int]] = {}
        self.requests: dict[int, Request] = {}
        self.results: dict[int, Entry] = {}
        self.evicted: list[list[int]] = []
        self.jobs: list[list[Any]] = []
        self.host_evicted: list[list[int]] = []
        self._add, self._schedule = scheduler.add_request, scheduler.schedule
        self._update = scheduler.update_from_output
        self._lookup, self._evict = scheduler.on_lookup, manager.pool.on_evict
        watched: Any = scheduler
        watched.add_request, watched.schedule = self._added, self._scheduled
        watched.update_from_output = self._updated
        scheduler.on_lookup, manager.pool.on_evict = self._looked_up, self._evicted

    def begin(self) -> None:
        """Begin a group of requests."""
        self.requests, self.results, self.evicted = {}, {}, []
        self.jobs, self.host_evicted = [], []

    def _added(self, request: Request) -> None:
        self.requests[request.id] = request
        self.results[request.id] = {"lookups": [], "chunks": []}
        self._learn(request)
        self._add(request)

    def _scheduled(self) -> Step:
        step = self._schedule()
        for chunk in step.chunks:
            self.results[chunk.request.id]["chunks"].append([chunk.start, chunk.end])
        if self.server.offloading is not None:
            evicted = self.server.offloading.side.evicted  # the server then clears it
            self.host_evicted += [[group, *self.labels[number]] for number, group in evicted]
            self._copied(step)
        return step

    def _updated(self, step: Step, *given: Any) -> list[Request]:
        done = self._update(step, *given)
        for request in self.requests.values():
            self._learn(request)
        return done

    def _looked_up(self, request: Request, hit: Hit) -> None:
        entry = [hit.length]
        if self.junctions:
            entry.append(hit.length + hit.uncached if hit.uncached else 0)
        self.results[request.id]["lookups"].append(entry)
        if self._lookup is not None:
            self._lookup(request, hit)

    def _evicted(self, block: int, key: int) -> None:
        self.evicted.append([block, *self._label(key)])
        if self._evict is not None:
            self._evict(block, key)

    def _label(self, key: int) -> list[int]:
        number, group = divmod(key, len(self.server.manager.groups))
        return [group, *self.labels.get(number, (-1, -1))]

    def _learn(self, request: Request) -> None:
        unit, labels = request.prefixes.unit, self.labels
        for index in range(len(request.hashes) - 1, -1, -1):
            number = request.hashes[index]
            if number in labels:
                break
            labels[number] = (request.id, (index + 1) * unit)

    def _copied(self, step: Step) -> None:
        """Note the copies to and from the host that a step begins."""
        for job in (*step.jobs.loads, *step.jobs.stores):
            blocks = [block for each in job.copied for block in each.blocks]
            slots = [slot for each in job.copied for slot in each.slots]
            spans = [
                [each.group, each.first, len(each.blocks)] for each in job.copied if each.blocks
            ]
            flushed = job.number in step.jobs.flushed
            entry = [job.number, job.stores, job.request.id, blocks, spans, slots, flushed]
            self.jobs.append(entry)

    def result(self) -> Entry:
        """The results of a group whose requests are done."""
        self._schedule()  # flushes what the last step left
        side = self.server.offloading.side if self.server.offloading is not None else None
        played = {
            "requests": [self._entry(*request) for request in self.requests.items()],
            "evicted": self.evicted,
            "cache": [
                [block, *self._label(key)]
                for block, key in enumerate(self.server.manager.pool.key)
                if key is not None
            ],
            "queue": spell(list(self.server.manager.pool.free)),
        }
        if side is None:
            return played
        side.evicted.clear()
        held = [
            [slot.number, slot.readers, key[1], *self.labels[key[0]]]
            for key, slot in side.host.policy.slots()
        ]
        copies = {"jobs": self.jobs, "host": sorted(held), "host_evicted": self.host_evicted}
        return played | copies

    def _entry(self, name: int, request: Request) -> Entry:
        chunks = self.results[name]["chunks"]
        return {
            "cached": chunks[0][0] if chunks else None,
            "lookups": self.results[name]["lookups"],
            "chunks": [
                chunk
                for chunk in chunks
                if chunk[0] < request.num_prompt or chunk[1] - chunk[0] > 1
            ],
            "preempted": request.preemptions,
        }


class Driver:
    """A server of a workload, and the results of one group of requests after another."""

    def __init__(self, config: Config, rules: Rules, **how: Any) -> None:
        self.server = Played(config, rules, **how)
        self.calls = Calls(self.server)

    def play(self, group: Sequence[Wanted]) -> Entry:
        """Results of requests that arrive together, run until all are done."""
        if "reset" in group[0]:
            return {"reset": self.server.reset_prefix_cache()}
        self.calls.begin()
        tickets: list[Ticket] = []
        for turn in range(MOST_STEPS):
            while len(tickets) < len(group) and group[len(tickets)].get("after", 0) <= turn:
                tickets.append(self.server.submit_wanted(group[len(tickets)]))
            for ticket, wanted in zip(tickets, group, strict=False):
                if wanted.get("abort") == turn:
                    self.server.cancel(ticket)
            try:
                pending = self.server.step()
            except UpstreamEndless:
                return {"error": "stuck"}
            except UpstreamAbort as error:
                return {"error": str(error)}
            if not pending and len(tickets) == len(group):
                return self.calls.result()
        return {"error": "too many steps"}


def play(
    workload: Mapping[str, Any],
    rules: Rules,
    *,
    kind: type[Driver] = Driver,
    like: Vllm | None = None,
) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    driver = kind(workload["config"], rules, like=like)
    return until_error(map(driver.play, workload["steps"]))
