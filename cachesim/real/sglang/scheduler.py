"""SGLang's real scheduler: how it is started, and what a scenario asks of it."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.server import Sglang
from cachesim.real.schedules import RealScheduler, wanted_of
from cachesim.real.sglang.agents import draw_agents
from cachesim.real.sglang.playing import play
from cachesim.real.sglang.workloads import draw, draw_mixed
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record
from cachesim.typed import of_kind


def hurdles(scenario: Scenario) -> dict[str, bool]:
    """What the real scheduler is not led through."""
    return {
        "its steps are never left half done": any(
            step.do == "cancel" or step.turns for step in scenario.step
        ),
    }


def config_of(server: Engine) -> dict[str, Any]:
    """What the real scheduler is told of a simulated server."""
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
    """A step as the workloads write it."""
    asked = record.step.options
    more = {"salt": asked.get("extra_key"), "priority": asked.get("priority")}
    return wanted_of(record, {name: value for name, value in more.items() if value})


SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=re.compile(r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py"),
    worker="cachesim.real.sglang.scheduler_worker",
    flags="-I",
    draw=draw,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "tree", "free"),
)
"""It runs with NumPy and its own files."""

MIXED: Final = replace(SCHEDULER, draw=draw_mixed)
"""The same, with `--enable-mixed-chunk`."""

AGENTS: Final = replace(SCHEDULER, draw=draw_agents)
"""The same, with the requests of coding agents."""
