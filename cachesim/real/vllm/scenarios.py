"""A scenario on vLLM's own scheduler: the same hits, chunks, preemptions and evictions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from cachesim.engines.profile import Profile
from cachesim.engines.vllm.events import DraftsVerified
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.server import Vllm
from cachesim.real.schedules import StepPlayed, refuse, steps_played, wanted_of
from cachesim.real.schedules import table as shared_table
from cachesim.real.vllm.playing import play
from cachesim.real.vllm.process import RealScheduler
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record, Session, groups_of
from cachesim.typed import of_kind


def play_scenario(scenario: Scenario, release: str) -> tuple[StepPlayed, ...]:
    """Play a scenario on the simulator, then on the real scheduler with the same tokens."""
    _refuse(scenario)
    session = Session(scenario, Profile(FAMILY.name, release), arithmetic="ring")
    records = list(session.run())
    groups = list(groups_of(scenario))
    workload = {
        "id": scenario.name,
        "config": config_of(of_kind(Vllm, session.engine)),
        "steps": [arriving([records[index] for index in group]) for group in groups],
    }
    rules = FAMILY.release(release).rules
    with RealScheduler(release) as real:
        told = real.play(workload), play(workload, rules)
    return steps_played(records, groups, *told, ("evicted", "cache", "queue"))


def config_of(engine: Vllm) -> dict[str, Any]:
    """What the real scheduler is told of a simulated server."""
    options, limits, manager = engine.options, engine.scheduler.limits, engine.manager
    return {
        "groups": [
            {
                "kind": group.kind,
                "block": group.block,
                "window": group.window,
                "chunk": group.chunk,
                "mode": group.mode,
                "speculative_blocks": group.speculative_blocks,
                "eagle": group.eagle,
            }
            for group in manager.groups
        ],
        "blocks": options.num_gpu_blocks_override,
        "hash_block": options.prefix_match_unit or None,
        "retention": manager.coordinator.retention,
        "budget": limits.budget,
        "max_seqs": limits.max_seqs,
        "max_len": limits.max_model_len,
        "reserve_full": limits.reserve_full,
        "policy": options.scheduling_policy,
        "eagle": limits.use_eagle,
        "drafts": limits.drafts,
        "caching": options.enable_prefix_caching,
    }


def _refuse(scenario: Scenario) -> None:
    """What the real scheduler is not led through is said beforehand."""
    options = scenario.engine.options
    hurdles = {
        "it has no external store": options.get("connector", "none") != "none",
        "n-grams propose in some steps only": options.get("speculative_method") == "ngram",
        "its steps are never left half done": bool(options.get("async_scheduling"))
        or any(step.do == "cancel" for step in scenario.step),
        "it computes under no adapter": bool(options.get("lora")),
        "it reads the cache for every request": any(
            not step.cache_prompt for step in scenario.step
        ),
    }
    refuse(scenario, hurdles)


def arriving(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A group's steps as the workloads write them, each with the turn that it comes in."""
    turn, found = 0, list[dict[str, Any]]()
    for record in records:
        turn += (record.step.turns or 0) if found else 0
        found.append(_wanted(record) | ({"after": turn} if turn else {}))
    return found


def _wanted(record: Record) -> dict[str, Any]:
    """A step as the workloads write it."""
    accepted = [
        each.accepted
        for each in record.events
        if isinstance(each, DraftsVerified) and each.task == record.ticket
    ]
    wanted: dict[str, Any] = {"accept": accepted}
    asked = record.step.options
    wanted |= {"salt": asked["cache_salt"]} if asked.get("cache_salt") else {}
    wanted |= {"priority": asked["priority"]} if asked.get("priority") else {}
    return wanted_of(record, wanted)


table = partial(shared_table, FAMILY.name)
