"""A scenario on SGLang's own scheduler: the same hits, chunks, evictions and tree."""

from dataclasses import asdict
from functools import partial
from typing import Any

from cachesim.engines.profile import Profile
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.server import Sglang
from cachesim.real.schedules import StepPlayed, refuse, steps_played, wanted_of
from cachesim.real.schedules import table as shared_table
from cachesim.real.sglang.playing import play
from cachesim.real.sglang.process import RealScheduler
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record, Session, groups_of
from cachesim.typed import of_kind

TOLD_OF_GROUPS = ("evicted", "tree", "free")


def play_scenario(scenario: Scenario, release: str) -> tuple[StepPlayed, ...]:
    """Play a scenario on the simulator, then on the real scheduler with the same tokens."""
    hurdles = {
        "its steps are never left half done": any(
            step.do == "cancel" or step.turns for step in scenario.step
        ),
    }
    refuse(scenario, hurdles)
    session = Session(scenario, Profile(FAMILY.name, release), arithmetic="ring")
    records = list(session.run())
    groups = list(groups_of(scenario))
    workload = {
        "id": scenario.name,
        "config": config_of(of_kind(Sglang, session.engine)),
        "steps": [[_wanted(records[index]) for index in group] for group in groups],
    }
    rules = FAMILY.release(release).rules
    with RealScheduler(release) as real:
        told = real.play(workload), play(workload, rules)
    return steps_played(records, groups, *told, TOLD_OF_GROUPS)


def config_of(engine: Sglang) -> dict[str, Any]:
    """What the real scheduler is told of a simulated server."""
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


def _wanted(record: Record) -> dict[str, Any]:
    """A step as the workloads write it."""
    asked = record.step.options
    more = {"salt": asked.get("extra_key"), "priority": asked.get("priority")}
    return wanted_of(record, {name: value for name, value in more.items() if value})


table = partial(shared_table, FAMILY.name)
