"""SGLang's real scheduler: how it is started, and what a scenario asks of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.server import Sglang
from cachesim.lab.real.schedules import RealScheduler, wanted_of
from cachesim.lab.real.settings import Override
from cachesim.lab.real.sglang.agents import draw_agents
from cachesim.lab.real.sglang.playing import play
from cachesim.lab.real.sglang.settings import ConfiguredProcess, overrides_of
from cachesim.lab.real.sglang.workloads import draw, draw_mixed
from cachesim.lab.real.vllm.scheduler import PACKAGES
from cachesim.play.session import Record
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind


def hurdles(scenario: Scenario) -> dict[str, bool]:
    """Reasons why a scenario is not played on the real scheduler."""
    return {
        "its steps are never left half done": any(
            step.do == "cancel" or step.turns for step in scenario.step
        ),
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
        "eagle": shape.bigrams,
        "chunk": limits.chunk,
        "max_prefill": limits.max_prefill,
        "max_running": limits.max_running,
        "requested": engine.options.max_running_requests,
        "max_len": limits.max_len,
        "ignore_eos": limits.ignores_eos,
        "mixes": limits.mixes,
    }
    if isinstance(pool, WindowPool):
        config |= {"window": shape.window, "window_tokens": pool.windows.size}
    if shape.host is not None:
        config["host"] = {
            "policy": shape.host.policy,
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


def group_of(records: Sequence[Record], _: Engine) -> list[dict[str, Any]]:
    """A group's steps as the workloads write them."""
    return [_wanted(record) for record in records]


def _wanted(record: Record) -> dict[str, Any]:
    asked = record.step.options
    more = {"salt": asked.get("extra_key"), "priority": asked.get("priority")}
    return wanted_of(record, {name: value for name, value in more.items() if value})


SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=re.compile(
        r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py|sglang/srt/mem_cache/rust_tree_core/.*"
    ),
    part="scheduler-rust",
    packages=PACKAGES,
    worker="cachesim.lab.real.sglang.scheduler_worker",
    flags="-I",
    draw=draw,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "tree", "free"),
    configured=ConfiguredProcess,
)
"""It runs with its own files and a CPU's PyTorch."""


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
    salted = any(each.get("salt") for step in workload["steps"] for each in step)
    return [
        group
        | {
            key: _unordered(group[key], hosted=hosted, kept=not (hosted or salted))
            for key in ROWS
            if key in group
        }
        for group in groups
    ]


ROWS: Final = ("tree", "evicted")
FIRST_COMPONENT: Final = 5
"""Index of the first flag behind those of full attention."""


def _unordered(rows: list[list[Any]], *, hosted: bool, kept: bool) -> list[list[Any]]:
    rows = [[*row] for row in rows if kept or row[-1] != "kept without it"]
    if hosted:
        for row in rows:
            for device in range(FIRST_COMPONENT, len(row) - 1, 2):
                row[device + 1] |= row[device]
    return sorted(rows, key=repr)


MIXED: Final = replace(SCHEDULER, draw=draw_mixed)
"""The same, with `--enable-mixed-chunk`."""

AGENTS: Final = replace(SCHEDULER, draw=draw_agents)
"""The same, with the requests of coding agents."""


def with_rust(scheduler: RealScheduler[Rules]) -> RealScheduler[Rules]:
    """A scheduler with the tree core in Rust, the servers' default from 0.5.19 on."""
    return replace(
        scheduler,
        variant="rust",
        visible=visible_of_rust,
    )


def overrides(release: str, seed: int, numbers: range) -> list[Override]:
    """Differences of drawn workloads' configurations from those of a server's start."""
    known = FAMILY.release(release)
    drawn = (draw, draw_mixed, draw_agents)
    configs = [make(seed, number, known.rules)["config"] for number in numbers for make in drawn]
    with SCHEDULER.start(known.name) as real:
        return overrides_of(configs, real)
