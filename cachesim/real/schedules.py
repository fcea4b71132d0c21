"""A scenario on a release's own scheduler, with the simulator beside it, for every engine.

The simulator plays it first, network and all; the real scheduler is told the same tokens, for no
kernel runs there, and must take the same decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cachesim.errors import ScenarioError
from cachesim.real.prompts import spell
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record

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
        """Whether all three say the same; where the release raises, the simulator ends too."""
        if "error" in self.real:
            return "error" in self.simulated and self.cached is None
        return self.real == self.simulated and self.real.get("cached") == self.cached


def refuse(scenario: Scenario, hurdles: Mapping[str, bool]) -> None:
    """What the real scheduler is not led through is said beforehand."""
    why = next((why for why, stands in hurdles.items() if stands), None)
    if why is not None:
        msg = f"{scenario.name} is not played beside the real scheduler: {why}"
        raise ScenarioError(msg)


def wanted_of(record: Record, more: Mapping[str, Any]) -> dict[str, Any]:
    """A step as the workloads write it."""
    if record.step.do != "complete":
        return {"reset": True}
    generated = record.reply.generated if record.reply else ()
    asked = {
        "prompt": spell(record.prompt),
        "generate": max(1, len(generated)),
        "reply": spell(generated),
    }
    return asked | dict(more)


def steps_played(
    records: Sequence[Record],
    groups: Sequence[Sequence[int]],
    real: Sequence[Told],
    simulated: Sequence[Told],
    shared: tuple[str, ...],
) -> tuple[StepPlayed, ...]:
    """What the two say of each step; `shared` is told of its whole group."""
    return tuple(
        StepPlayed(
            name=records[index].name,
            prompt_tokens=len(records[index].prompt),
            real=_entry(real, at, number, shared),
            simulated=_entry(simulated, at, number, shared),
            cached=_cached(records[index]),
        )
        for at, group in enumerate(groups)
        for number, index in enumerate(group)
    )


def _entry(told: Sequence[Told], group: int, number: int, shared: tuple[str, ...]) -> Told:
    if group >= len(told) or "requests" not in told[group]:
        return told[group] if group < len(told) else {"error": "not played"}
    whole = told[group]
    entry: dict[str, Any] = dict(whole["requests"][number])
    return entry | {key: whole[key] for key in shared}


def _cached(record: Record) -> int | None:
    reply = record.reply
    if record.step.do != "complete" or reply is None or reply.cached is None:
        return None
    return int(reply.cached)


def table(engine: str, name: str, release: str, steps: Sequence[StepPlayed]) -> Table:
    """What both did, step by step."""
    shown = Table(title=f"{name} on {engine} {release}", title_style="", box=SIMPLE_HEAD)
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
