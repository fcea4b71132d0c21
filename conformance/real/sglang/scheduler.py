"""SGLang's real scheduler: its start, and the requests of a scenario."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.sglang.sessions import FIELD
from cachesim.engines.sglang.vocabulary import DraftsVerified
from cachesim.errors import ScenarioError
from cachesim.play.session import CANCELLED, Record, Session
from cachesim.prove.environment import UnpackedWheel
from cachesim.prove.playing import Override, overrides_of
from cachesim.prove.rows import spell
from cachesim.prove.vllm.files import PACKAGES
from cachesim.prove.worker_process import WorkerError, WorkerProcess
from cachesim.scenario.format import Scenario
from cachesim.typed import Json, of_kind
from conformance.real.schedules import RealScheduler, events_of, grouped, wanted_of
from conformance.real.sglang.playing import play
from conformance.real.sglang.workloads import BY_FEATURE, draw, draw_agents, draw_mixed

WORKER: Final = "conformance.real.sglang.settings_worker"

KEPT: Final = re.compile(
    r"sglang/((?!multimodal_gen/|test/|benchmark/|kernels/|srt/models/).*"
    r"|kernels/ops/attention/fla/chunk_delta_h)\.py"
)
"""Files of a wheel that its configuration imports, and the one with a kernel's chunk size."""

OVERRIDES: Final = {
    "device": "the scheduler runs on the CPU; it only places its tensors there",
    "attention_backend": (
        "0.5.9 writes the slots of a request by a Triton kernel, or for this backend in Python"
    ),
    "pp_max_micro_batch_size": (
        "the worker of the model sets it to the requests that run at once, before the scheduler "
        "reads it"
    ),
    "speculative_algorithm": (
        "a workload without drafts has no drafter, so the scheduler is given none; the tree has "
        "pairs of tokens as with it"
    ),
    "hicache_io_backend": "copies move no bytes here; slots and queues are the same with each",
    "hicache_mem_layout": "the order of bytes in a buffer that is not there",
}
"""Fields of `ServerArgs` that differ from a server's start -> why."""

PRETENDED: Final = {
    "torch.cuda": (
        "a GPU",
        "the name, the memory (80 GB) and the capability of an H100",
        "the scheduler runs on the CPU; a GPU picks default budgets, which workloads name",
    ),
    "layers, kernels, models": (
        "their code",
        "empty modules",
        "the configuration reads a model's `config.json` and no weight",
    ),
    "max_total_num_tokens, size of the state cache": (
        "what the GPU has free after loading",
        "a workload's",
        "max_total_tokens and max_mamba_cache_size mean the same",
    ),
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": (
        "rust from 0.5.19 on",
        "python, or rust with `--tree-core rust`",
        "both are compared; what they decide is the same",
    ),
    "HostKVCache": (
        "buffers in the host's memory",
        "the same slots without buffers",
        "sizes, free lists and queues are the release's own",
    ),
    "HiCacheStorage, its threads": (
        "files, and threads of their own",
        "a dictionary, and a turn of each thread's function for each pass",
        "a workload names how long a transfer takes",
    ),
    "the set of those that one request preempts": (
        "ordered by address",
        "in the order in which they are chosen",
        "the order in which they are queued again is that of addresses, another in each run",
    ),
    "enable_lora, the manager of adapters": (
        "loads adapters",
        "counts those of a batch, with the same limit",
        "a scheduler sees their ids only",
    ),
    "the worker of a drafter": (
        "drafts, and verifies with the target",
        "none; a workload says how many tokens each round accepts",
        "slots are reserved, verified and freed by the release's own functions",
    ),
    "kernels of a reservation": (
        "Triton on a GPU: slots written into rows, the slot before a row's end, pages kept whole",
        "the same in Python, on the CPU",
        "they move numbers; how many slots there are is decided before",
    ),
    "random_seed": (
        "drawn at each start",
        "a workload's",
        "the policy `random` shuffles the queue",
    ),
    "grammars, metrics, output": (
        "their managers",
        "none",
        "no request of a workload asks for a grammar; what is counted decides nothing",
    ),
}
"""Settings outside `ServerArgs`: a server's default, ours, why no result depends on it."""


class ConfiguredProcess(WorkerProcess):
    """A scheduler that is handed the configuration of a server's start with each workload."""

    def __init__(self, scheduler: WorkerProcess, core: UnpackedWheel) -> None:
        wheel = configuration_of(core)
        wheel.ready()
        name = f"{scheduler.name}, its configuration"
        super().__init__(name, wheel.python, WORKER, str(wheel.folder))
        self._scheduler = scheduler

    def order(self, wanted: Json) -> Json:
        if "config" in wanted:
            made = super().order(wanted["config"])
            if "raised" in made:
                return made
            wanted = wanted | {"config": wanted["config"] | {"server": made["results"]}}
        return self._scheduler.order(wanted)

    def __exit__(self, *error: object) -> None:
        self._scheduler.__exit__(*error)
        super().__exit__(*error)


def configuration_of(core: UnpackedWheel) -> UnpackedWheel:
    """The files of the same wheel that its configuration imports."""
    name = f"{core.name.partition('-scheduler')[0]}-python"
    return replace(core, name=name, kept=KEPT, packages=PACKAGES)


def declared(core: UnpackedWheel) -> dict[str, frozenset[str]]:
    """The fields of a release's `ServerArgs`, as its own code declares them."""
    wheel = configuration_of(core)
    wheel.ready()
    name = f"{core.name}, its configuration"
    with WorkerProcess(name, wheel.python, WORKER, str(wheel.folder)) as process:
        answer = process.order({"names": True})
    if "raised" in answer:
        raise WorkerError(answer["raised"])
    return {"ServerArgs": frozenset(answer["results"])}


def overrides_in(configs: list[Json], process: WorkerProcess) -> list[Override]:
    """Differences of workloads' configurations from those of a server's start."""
    rows: list[Sequence[str]] = []
    for config in configs:
        made = process.order({"config": config, "settings": True})
        if "raised" in made:
            raise ValueError(made["raised"])
        rows += made["results"]
    return overrides_of(sorted(rows, key=lambda row: row[0]), OVERRIDES, PRETENDED)


def hurdles(scenario: Scenario) -> dict[str, bool]:
    """Reasons why a scenario is not run on the real scheduler."""
    return {
        "a client leaves at a number of tokens": any(each.leaves for each in scenario.step),
        "it has one rank, --dcp-size 1": scenario.engine.options.get("dcp_size", 1) != 1,
    }


def config_of(server: Engine) -> dict[str, Any]:
    """The configuration of a simulated server for the real scheduler."""
    engine = of_kind(Sglang, server)
    shape, pool, limits = engine.tree.shape, engine.tree.pool, engine.scheduler.limits
    config: dict[str, Any] = {
        "kind": engine.kind,
        "page": shape.page,
        "tokens": pool.size,
        "policy": shape.policy,
        "eagle": limits.drafts is not None,
        "chunk": limits.chunk,
        "max_prefill": limits.max_prefill,
        "most_prefill": limits.most_prefill,
        "conservativeness": limits.conservativeness,
        "resets": True,
        "max_running": limits.max_running,
        "requested": engine.options.max_running_requests,
        "max_len": limits.max_len,
        "ignore_eos": limits.ignores_eos,
        "mixes": limits.mixes,
        "serial": engine.options.disable_overlap_schedule,
    }
    if limits.drafts is not None:
        config["drafts"] = asdict(limits.drafts)
    if engine.options.enable_streaming_session:
        config["streams"] = True
    if engine.options.strip_thinking_cache:
        config["strips"] = True
    if limits.loras:
        config["loras"] = limits.loras
    if limits.policy != "fcfs":
        config |= {"schedule": limits.policy, "seed": limits.seed}
    if limits.prioritizes:
        config |= {
            "prioritizes": True,
            "low_first": limits.low_first,
            "threshold": limits.threshold,
            "keeps_running": not limits.preempts,
            "retraction": "priority" if limits.retracts_by_priority else "length",
        }
    if isinstance(pool, WindowPool):
        config |= {"window": shape.window, "window_tokens": pool.windows.size}
    if shape.host is not None:
        config["host"] = {
            "policy": shape.host.policy,
            "lag": shape.host.lag,
            "ratio": engine.options.host_ratio(engine.kind, engine.sizes, engine.network.spec),
        }
        if shape.host.storage is not None:
            config["host"]["storage"] = asdict(shape.host.storage)
            config["idles"] = True  # what is on its way to the storage gets there before a flush
    if engine.tree.states is not None:
        config |= {
            "strategy": "extra_buffer" if shape.extra_buffer else "no_buffer",
            "states": engine.tree.states.size,
            "interval": limits.interval,
            "cap": shape.states_per_path,
        }
    return config


def group_of(records: Sequence[Record], session: Session) -> list[dict[str, Any]]:
    """A group's steps in the notation of workloads."""
    engine = of_kind(Sglang, session.engine)
    longest, reasons = engine.longest(), engine.options.reasoning_parser != "none"

    def requested(record: Record) -> dict[str, Any]:
        asked = record.step.options
        more: dict[str, Any] = {name: asked.get(name) for name in ("priority", "routing_key")}
        more["salt"] = asked.get("extra_key")
        more["thinks"] = asked.get("require_reasoning", reasons)
        if FIELD in asked:
            if record.error == "BadRequestError":
                msg = f"{record.name} is not run beside the real scheduler: its session refuses it"
                raise ScenarioError(msg)
            more |= {
                "session": dict(asked[FIELD]),
                "rid": asked.get("rid", str(record.ticket)),
                # without what it continues
                "prompt": spell(session.vocabulary.prompt(record.step)),
            }
        if record.step.drafts is not None:
            own = iter([1 + each.accepted for each in events_of(record, DraftsVerified)])
            generated = record.reply.generated if record.reply else ()
            rounds = [next(own, 1) if draft else 1 for draft in record.step.drafts]
            more["accepts"] = rounds + [1] * len(generated)
        more["lora"] = "".join(asked.get("lora", {}).values())
        wanted = wanted_of(record, {name: value for name, value in more.items() if value})
        if "generate" in wanted:  # in the context (`max_new_tokens`)
            wanted["generate"] = min(wanted["generate"], longest - len(record.prompt) - 1)
        if record.error == CANCELLED and isinstance(record.step.reply, tuple):
            # a further token of it may be computed, which nobody gets
            wanted["reply"] = spell(record.step.reply)
        return wanted

    return grouped(records, requested, arrives="arrives", aborted="aborted")


SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=re.compile(
        r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py|sglang/srt/mem_cache/rust_tree_core/.*"
    ),
    part="scheduler-rust",
    packages=PACKAGES,
    worker="conformance.real.sglang.scheduler_worker",
    draw=draw,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "tree", "free"),
    configured=ConfiguredProcess,
    declared=declared,
)
"""The scheduler with its own files and a CPU's PyTorch."""


def visible_of_rust(
    workload: Mapping[str, Any], groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Results as far as the tree core in Rust shows them: its nodes have no order.

    A row is number, length, key length, then a flag for each component, with a host two. The core
    does not return whether a state or window on the device is on the host too, nor therefore a node
    that only lost its host copy. Where requests have keys of their own, two nodes may have one
    path, and which of them a comparison before and after an eviction meets depends on their order.
    """
    hosted = "host" in workload["config"]
    salted = any(each.get(key) for step in workload["steps"] for each in step for key in OWN_KEYS)
    return [
        group
        | {
            key: _unordered(group[key], hosted=hosted, kept=not (hosted or salted))
            for key in ROWS
            if key in group
        }
        for group in groups
    ]


OWN_KEYS: Final = ("salt", "lora")
"""Names of a request whose values are part of its extra key."""

ROWS: Final = ("tree", "evicted")
FIRST_COMPONENT: Final = 5
"""Index of the first flag after those of full attention."""


def _unordered(rows: list[list[Any]], *, hosted: bool, kept: bool) -> list[list[Any]]:
    rows = [[*row] for row in rows if kept or row[-1] != "kept without it"]
    if hosted:
        for row in rows:
            for device in range(FIRST_COMPONENT, len(row) - 1, 2):
                row[device + 1] |= row[device]
    return sorted(rows, key=repr)


MIXED: Final = replace(SCHEDULER, draw=draw_mixed)
"""Workloads with `--enable-mixed-chunk`."""

AGENTS: Final = replace(SCHEDULER, draw=draw_agents)
"""Workloads of coding agents."""


FEATURES: Final = {name: replace(SCHEDULER, draw=draw) for name, draw in BY_FEATURE.items()}
"""Workloads with rarely used options."""

NEEDED: Final = {
    "streaming": "enable_streaming_session",
    "thinking": "strip_thinking_cache",
}
"""The option that a feature needs."""


def features_of(release: str) -> dict[str, RealScheduler[Rules]]:
    """The features that a release has."""
    absent = {
        name
        for name, option in NEEDED.items()
        if FAMILY.release(release).name not in FAMILY.having(FAMILY.option(option))
    }
    return {name: feature for name, feature in FEATURES.items() if name not in absent}


def with_rust(scheduler: RealScheduler[Rules]) -> RealScheduler[Rules]:
    """A scheduler with the tree core in Rust, the servers' default from 0.5.19 on."""
    return replace(scheduler, variant="rust", visible=visible_of_rust)


def overrides(release: str, seed: int, numbers: range) -> list[Override]:
    """Differences of drawn workloads' configurations from those of a server's start."""
    known = FAMILY.release(release)
    drawn = (draw, draw_mixed, draw_agents)
    configs = [make(seed, number, known.rules)["config"] for number in numbers for make in drawn]
    with SCHEDULER.start(known.name) as real:
        return overrides_in(configs, real)
