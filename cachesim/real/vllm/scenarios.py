"""A scenario on a release's own scheduler, with the simulator beside it.

The simulator plays it first, network and all; the real scheduler is told the same tokens, for no
kernel runs there, and must give the same hits, chunks, preemptions and evictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cachesim.engines.profile import Profile
from cachesim.engines.vllm.events import DraftsVerified
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import ScenarioError
from cachesim.real.token_rows import spell
from cachesim.real.vllm.playing import play
from cachesim.real.vllm.process import RealScheduler
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record, Session, groups_of

Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlayed:
    """One step: what each scheduler did, and what the engine replied."""

    name: str
    prompt_tokens: int
    real: Told
    simulated: Told
    cached: int | None

    @property
    def agrees(self) -> bool:
        """Whether all three say the same."""
        return self.real == self.simulated and self.real.get("cached") == self.cached


def play_scenario(scenario: Scenario, release: str) -> tuple[StepPlayed, ...]:
    """Play a scenario on the simulator, then on the real scheduler with the same tokens."""
    _refuse(scenario)
    session = Session(scenario, Profile(FAMILY.name, release), arithmetic="ring")
    records = list(session.run())
    groups = list(groups_of(scenario))
    workload = {
        "id": scenario.name,
        "config": config_of(session.engine),
        "steps": [[_wanted(records[index]) for index in group] for group in groups],
    }
    rules = FAMILY.release(release).rules
    with RealScheduler(release) as real:
        told = real.play(workload), play(workload, rules)
    return tuple(
        StepPlayed(
            name=records[index].name,
            prompt_tokens=len(records[index].prompt),
            real=_entry(told[0], at, number),
            simulated=_entry(told[1], at, number),
            cached=_cached(records[index]),
        )
        for at, group in enumerate(groups)
        for number, index in enumerate(group)
    )


def config_of(engine: object) -> dict[str, Any]:
    """What the real scheduler is told of a simulated server."""
    assert isinstance(engine, Vllm)  # noqa: S101 - the profile says so
    options, limits, manager = engine.options, engine.scheduler.limits, engine.manager
    return {
        "groups": [
            {
                "kind": group.kind,
                "block": group.block,
                "window": group.window,
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
        or any(step.do == "cancel" or step.turns for step in scenario.step),
        "it reads the cache for every request": any(
            not step.cache_prompt for step in scenario.step
        ),
    }
    why = next((why for why, stands in hurdles.items() if stands), None)
    if why is not None:
        msg = f"{scenario.name} is not played beside the real scheduler: {why}"
        raise ScenarioError(msg)


def _wanted(record: Record) -> dict[str, Any]:
    """A step as the workloads write it."""
    if record.step.do != "complete":
        return {"reset": True}
    generated = record.reply.generated if record.reply else ()
    wanted: dict[str, Any] = {
        "prompt": spell(record.prompt),
        "generate": max(1, len(generated)),
        "reply": spell(generated),
        "accept": [
            each.accepted
            for each in record.events
            if isinstance(each, DraftsVerified) and each.task == record.ticket
        ],
    }
    salt = record.step.options.get("cache_salt")
    return wanted | ({"salt": salt} if salt else {})


def _entry(told: Sequence[Told], group: int, number: int) -> Told:
    """What one of the two says of one request; evictions belong to its whole group."""
    if group >= len(told) or "requests" not in told[group]:
        return told[group] if group < len(told) else {"error": "not played"}
    whole = told[group]
    entry: dict[str, Any] = dict(whole["requests"][number])
    return entry | {key: whole[key] for key in ("evicted", "cache", "queue")}


def _cached(record: Record) -> int | None:
    reply = record.reply
    if record.step.do != "complete" or reply is None or reply.cached is None:
        return None
    return int(reply.cached)


def table(name: str, release: str, steps: Sequence[StepPlayed]) -> Table:
    """What both did, step by step."""
    shown = Table(title=f"{name} on vllm {release}", title_style="", box=SIMPLE_HEAD)
    for head in ("step", "prompt", "cached", "simulated", "chunks", "evicted", ""):
        shown.add_column(head, justify="right" if head not in {"step", ""} else "left")
    for step in steps:
        if "reset" in step.real:
            shown.add_row(step.name, "", "", "", "", "", "same" if step.agrees else "DIFFERS")
            continue
        shown.add_row(
            step.name,
            str(step.prompt_tokens),
            str(step.real.get("cached", step.real.get("error"))),
            str(step.cached),
            " ".join(f"{first}-{last}" for first, last in step.real.get("chunks", ())),
            str(len(step.real.get("evicted", ()))),
            "same" if step.agrees else "DIFFERS",
        )
    return shown
