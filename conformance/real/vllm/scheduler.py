"""vLLM's real scheduler: its start, and the requests of a scenario."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.host import Arc
from cachesim.engines.vllm.nixl import Nixl
from cachesim.engines.vllm.offload_connector import Offloading
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import DraftsVerified
from cachesim.errors import OptionError
from cachesim.play.session import Record, Session
from cachesim.prove.playing import Override, overrides_of
from cachesim.prove.vllm.files import KEPT, PACKAGES, PART
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind
from conformance.real.schedules import (
    RealScheduler,
    events_of,
    grouped,
    is_scheduled,
    not_beside,
    wanted_of,
)
from conformance.real.vllm import workloads
from conformance.real.vllm.playing import play
from conformance.real.vllm.worker_settings import FURTHER, OF_DRAFTS, OVERRIDES, PRETENDED

DEFAULTS: Final = VllmOptions()


def config_of(server: Engine) -> dict[str, Any]:
    """Configuration of the real scheduler for a simulated server."""
    engine = of_kind(Vllm, server)
    options, limits, manager = engine.options, engine.scheduler.limits, engine.manager
    group_of_layer = {
        layer: at for at, group in enumerate(manager.groups) for layer in group.layers
    }
    return {
        "groups": [
            {name: value for name, value in asdict(group).items() if name != "layers"}
            for group in manager.groups
        ],
        "compressed": engine.network.spec.compressed,
        "layers": [group_of_layer[layer] for layer in range(len(engine.network.spec.layers))],
        "scan_size": options.mamba_chunk_size,
        "blocks": options.num_gpu_blocks_override,
        "hash_block": options.prefix_match_unit or None,
        "retention": manager.coordinator.retention,
        "budget": options.max_num_batched_tokens,
        "scheduled": options.max_num_scheduled_tokens or None,
        "max_seqs": min(options.max_num_seqs, options.max_num_batched_tokens),
        "further": {
            name: getattr(options, name)
            for name in (*FURTHER, *OF_DRAFTS)
            if getattr(options, name) != getattr(DEFAULTS, name)
        },
        "max_len": limits.max_model_len,
        "reserve_full": limits.reserve_full,
        "policy": options.scheduling_policy,
        "eagle": options.use_eagle,
        "method": options.speculative_method,
        "drafter_block": options.drafter_block_size,
        "lookahead_hashes": not options.disable_lookahead_block_hashes,
        "drafts": limits.drafts,
        "caching": options.enable_prefix_caching,
        "store": engine.connector is not None and engine.offloading is None,
        "delivers": engine.scheduler.requires_delivery,
        **({} if engine.offloading is None else {"offload": offload_of(engine.offloading)}),
        "recomputes": limits.recomputes,
        "overlaps": limits.overlaps,
        "loras": limits.loras,
        "synchronous": not options.async_scheduling,
    }


def offload_of(connector: Offloading) -> dict[str, Any]:
    """The host, as a workload names it."""
    side = connector.side
    return {
        "chunks": side.host.chunks,
        "factor": side.factor,
        "policy": "arc" if isinstance(side.host.policy, Arc) else "lru",
        "threshold": side.host.threshold,
        "prompt_only": side.prompt_only,
        "steps": connector.steps,
    }


def hurdles(scenario: Scenario) -> dict[str, bool]:
    """Reasons for which a scenario is not run on the real scheduler."""
    options = scenario.engine.options
    return {
        "it has no prefill server whose lease ends": bool(options.get("kv_lease_steps")),
        "its layers have no rings": bool(options.get("rings")),
        "it marks a drafter's groups itself": options.get("eagle_groups", "auto") != "auto",
    }


def group_of(records: Sequence[Record], session: Session) -> list[dict[str, Any]]:
    """A group's steps in the notation of workloads.

    The simulated store determines each request's stored tokens; the real scheduler's receives them.
    """
    server = of_kind(Vllm, session.engine)
    connector = server.connector
    stored = {} if connector is None else connector.reach
    loads = {"loads": connector.steps} if connector is not None and connector.steps else {}
    searches = server.options.speculative_method == "ngram"
    searches &= not server.scheduler.limits.overlaps  # else a step has places for all drafts

    def requested(record: Record) -> dict[str, Any]:
        options, verified = record.step.options, events_of(record, DraftsVerified)
        wanted: dict[str, Any] = {"accept": [each.accepted for each in verified]}
        wanted |= {"salt": options["cache_salt"]} if options.get("cache_salt") else {}
        wanted |= {"priority": options["priority"]} if options.get("priority") else {}
        if record.ticket is not None and (lora := server.lora_of(record.ticket)).load:
            wanted["lora"] = [lora.name, lora.path, lora.load]
        wanted |= {} if record.step.cache_prompt else {"skips_cache": True}
        more: dict[str, Any] = {"propose": _proposals(record, server)} if searches else {}
        fails = options.get("failed_block")
        more |= {} if fails is None else {"fails": fails}
        reach = [] if record.ticket is None else stored.get(record.ticket, [])
        if isinstance(connector, Nixl) and reach:
            more["leaves"] = connector.leaves if len(record.prompt) > 1 else 0
        return wanted_of(record, wanted) | more | (loads | {"stored": reach} if any(reach) else {})

    found = grouped(records, requested, arrives="after", aborted="abort")
    return _delayed(found, records, connector) if isinstance(connector, Nixl) else found


def _delayed(
    found: list[dict[str, Any]], records: Sequence[Record], connector: Nixl
) -> list[dict[str, Any]]:
    """The requests of a group, each from the turn in which its prefill server is done with it."""
    scheduled = [each for each in records if is_scheduled(each)]
    for wanted, record in zip(found, scheduled, strict=True):
        if record.step.do != "complete":
            continue
        delay = connector.delays.get(int(record.ticket or 0))
        if delay is None:
            raise not_beside(record.name, "a request is cancelled on its prefill server")
        if delay:
            wanted["after"] = wanted.get("after", 0) + delay
    arrivals = [each.get("after", 0) for each in found]
    if arrivals != sorted(arrivals):
        raise not_beside(records[0].name, "requests leave the prefill server in another order")
    return found


def _proposals(record: Record, server: Vllm) -> list[int]:
    """The drafts after each number of generated tokens."""
    found = {} if record.ticket is None else server.proposals(record.ticket)
    return [found.get(done, 0) for done in range(max(found, default=0) + 2)]


SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=KEPT,
    worker="conformance.real.vllm.scheduler_worker",
    draw=workloads.draw_async,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "cache", "queue"),
    part=PART,
    packages=PACKAGES,
)
"""The scheduler with its own Python files and a CPU's torch."""

SYNCHRONOUS: Final = replace(SCHEDULER, draw=workloads.draw)
"""Workloads with `--no-async-scheduling`."""


def with_option(chosen: RealScheduler[Rules], option: str, release: str) -> RealScheduler[Rules]:
    """The same, with an option set in every workload."""
    known = workloads.options_of(FAMILY.release(release).rules)
    if chosen not in (SCHEDULER, SYNCHRONOUS) or option not in known:
        raise OptionError(
            f"--option is {option!r}, beside --no-async-scheduling at most; for {release} write "
            f"one of {', '.join(known)}"
        )
    draw = workloads.draw if chosen is SYNCHRONOUS else workloads.draw_async
    return replace(chosen, draw=partial(draw, option=option))


LOADS: Final = replace(SCHEDULER, draw=workloads.draw_loads)
"""Workloads beside a store whose loads arrive steps later, or fail."""

ADAPTERS: Final = replace(SCHEDULER, draw=workloads.draw_adapters)
"""Workloads of requests with adapters."""

AGENTS: Final = replace(SCHEDULER, draw=workloads.draw_agents)
"""Workloads of coding agents."""

OFFLOADING: Final = replace(SCHEDULER, draw=workloads.draw_offload)
"""Workloads with blocks on the host, by the release's own `OffloadingConnector`."""

COMPRESSED: Final = replace(SCHEDULER, draw=workloads.draw_compressed)
"""Workloads with the layers of DeepSeek V4."""


def overrides(release: str, seed: int, numbers: range) -> list[Override]:
    """Differences of drawn workloads' configurations from those of a server's start."""
    known = FAMILY.release(release)
    drawn = [workloads.draw, workloads.draw_async, workloads.draw_agents, workloads.draw_loads]
    drawn += [workloads.draw_adapters]
    drawn += [workloads.draw_compressed] if known.rules.has_compressed else []
    configs = [make(seed, number, known.rules)["config"] for number in numbers for make in drawn]
    with SCHEDULER.start(known.name) as real:
        answers = real.order({"settings": configs})["results"]
    rows = sorted((row for answer in answers for row in answer), key=lambda row: str(row[0]))
    return overrides_of(rows, OVERRIDES, PRETENDED)
