"""The simulator beside the real server: the same random workloads, request by request."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, Final, TypeAlias

from rich.console import Console

from cachesim.engines.events import Event
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play import session
from cachesim.play.session import ENDLESS
from cachesim.prove import playing
from cachesim.prove.hunt.arrivals import draw_arrival, draw_pinned
from cachesim.prove.llama_cpp.calls import NotStartedError, RealServerError
from cachesim.prove.llama_cpp.fitting import Release, drafting
from cachesim.prove.llama_cpp.flags import NO_FLAGS, model_file
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import SECONDS_FOR_ONE_CALL, RealServer, calls_of
from cachesim.prove.llama_cpp.simulated import SimulatedServer, Trial, as_scenario, observed
from cachesim.prove.llama_cpp.workload import CRASH, SILENT, Outcome, grouped, release_of
from cachesim.scenario.checks import spec_of
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Model, Scenario, Step
from cachesim.testing.search import shrink
from conformance.real import agreement as agreeing
from conformance.real.llama_cpp.agents import draw_agents, grow_agents
from conformance.real.llama_cpp.workloads import Server, Setting, draw_setting, grow

FLAGS = {
    "several slots": ("parallel", (1,)),
    "one pool of cells": ("kv_unified", (False,)),
    "cache type": ("cache_type_k", ("f16",)),
    "cache-ram": ("cache_ram", (8192,)),
    "cache-reuse": ("cache_reuse", (0,)),
    "context shift": ("context_shift", (False,)),
    "swa-full": ("swa_full", (False,)),
    "no-cache-prompt": ("cache_prompt", (True,)),
    "trained context": ("ctx_size", range(1, 1 << 24)),
    "n-grams": ("spec_type", ("none", "draft-mtp", "draft-simple")),
}
"""Feature -> the flag that brings it, and the values with which it does not."""


def features_of(workload: Scenario) -> frozenset[str]:
    """Everything that a workload uses, by name."""
    flags = {
        name
        for name, (flag, without) in FLAGS.items()
        if flag in workload.engine.options and workload.engine.options[flag] not in without
    }
    steps = {name for step in workload.step for name in _of_step(step)}
    drafts = {"drafts"} if drafting(workload.engine.options) else set()
    bare = {"no flag but the model"} if workload.engine.options == NO_FLAGS else set()
    long = {"session of 70"} if workload.requests >= 70 else set()
    return frozenset({"any", *flags, *steps, *drafts, *bare, *long})


def _of_step(step: Step) -> Iterator[str]:
    if step.do != "complete":
        yield "slot file" if step.do in {"slot-save", "slot-restore"} else step.do
        return
    endpoint = step.options.get("endpoint", "completion")
    uses = {
        endpoint: endpoint != "completion",
        "chat": bool(step.messages),
        "tools": "tools" in step.options,
        "no opened reply": "add_generation_prompt" in step.options,
        "content parts": step.parts and bool(step.messages),
        "continued message": step.messages[-1:] != () and step.messages[-1].role == "assistant",
        "role developer": any(message.role == "developer" for message in step.messages),
        "cache_prompt said": "cache_prompt" in step.options,
        "n_predict below -1": step.options.get("n_predict", 0) < -1,
        "completions": step.completions > 1,
        "cancel": step.leaves is not None,
        "arrival": bool(step.turns),
        "prompts in one call": step.with_previous and not step.turns,
        "slot named": step.slot >= 0,
        "empty prompt": not step.prompt and not step.messages,
    }
    yield from (name for name, stands in uses.items() if stands)


ARRIVALS: Final = 0.03
"""Share of workloads with a request that arrives during another prefill."""

TRIALS: Final = 400
"""Simplifications that are tried of a workload that differs."""

PLAYS: Final = 2
"""Replays of a workload that differs, to detect a race."""

DRAFTING_MODEL: Final = "dense"
"""The preset that workloads with a second model draft with."""

Grow: TypeAlias = Callable[[Setting, Server], tuple[Scenario, tuple[Outcome, ...]]]
"""Playing a setting's requests on a server as they are drawn."""

FAILURES: Final = (CRASH, "server_error", "exceed_context_size_error")

COMPARED: Final = ("cached", "processed", "generated", "slot", "truncated", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(playing.Difference):
    """The first step on which the two servers disagree."""

    workload: Scenario
    real: Outcome
    simulated: Outcome
    events: tuple[Event, ...] = ()
    outcomes: tuple[Outcome, ...] = ()  # of every step, by the real server

    @property
    def fields(self) -> Mapping[str, tuple[Any, Any]]:
        real, simulated = self.real.as_dict(), self.simulated.as_dict()
        return {
            name: (real.get(name), simulated.get(name))
            for name in COMPARED
            if real.get(name) != simulated.get(name) and not (name in real and real[name] is None)
        }


def title_of(release: str, seed: int) -> str:
    """The head of the table of a comparison."""
    return f"llama.cpp {release} beside the simulator, seed {seed}"


@dataclass(slots=True, kw_only=True)
class Tally(agreeing.Agreement):
    """The counts of workloads and requests for each preset, and for each feature."""

    kinds: str = "preset"
    features: agreeing.Agreement = field(
        default_factory=lambda: agreeing.Agreement(title="by what a workload uses", kinds="feature")
    )
    races: int = 0  # workloads that the real server ran otherwise, and then as the simulator

    def count(self, played: "Played") -> None:
        """Add a workload; requests after a difference count as disagreeing."""
        workload, difference = played.workload, played.difference
        until = None if difference is None else difference.step
        agreeing = sum(step.do == "complete" for step in workload.step[:until])
        numbers = {"workloads": 1, "requests": workload.requests, "agreeing": agreeing}
        self.add(str(workload.model.preset), workload.name, difference, **numbers)
        self.races += played.raced is not None
        for name in features_of(workload):
            self.features.add(name, workload.name, None, **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A workload that was run on both, and the first difference."""

    workload: Scenario
    outcomes: tuple[Outcome, ...]
    difference: Difference | None
    raced: Difference | None = None  # another run of the same workload agreed


PlayDrawn: TypeAlias = Callable[..., Played]
"""A drawn workload of a seed, a number and presets, run on both servers."""


class SideBySide(AbstractContextManager["SideBySide"]):
    """A release's real server and the simulator, with the same models."""

    def __init__(
        self,
        release: Release,
        *,
        version: str = "",
        trial: Trial | None = None,
        log: Path | None = None,
        patience: float = SECONDS_FOR_ONE_CALL,
    ) -> None:
        self.release = release
        self._trial = trial
        self._folder = TemporaryDirectory(prefix="cachesim-models-")
        self._plain = RealServer(release, version=version, log=log, patience=patience)
        drafts = log or Path(self._folder.name) / "drafts.log"
        self._drafting = RealServer(release, version=version, log=drafts, patience=patience)

    def __exit__(self, *_: object) -> None:
        self._plain.close()
        self._drafting.close()
        self._folder.cleanup()

    def real(self, options: Mapping[str, Any]) -> RealServer:
        """The real server; with a draft model, one whose log has the drafts."""
        return self._drafting if drafting(options) else self._plain

    def model(self, preset: str, window: int = 0) -> Path:
        """The GGUF file of a model, written once, and of the one that may draft for it."""
        if preset != DRAFTING_MODEL:
            self.model(DRAFTING_MODEL)
        path = model_file(Path(self._folder.name), preset, window)
        if not path.exists():
            write_model(spec_of(Model(preset=preset, window=window or None)), path)
        return path

    def play_random(self, *, seed: int, number: int, presets: Sequence[str]) -> Played:
        """Draw a workload, grow it on the real server, and run it on the simulator.

        Now and then one in which a request arrives while another one is read.
        """
        if Random(f"{seed} {number}").random() < ARRIVALS:
            return self.play_arrival(seed=seed, number=number, presets=presets)
        setting = draw_setting(
            seed, number, release=self.release, presets=tuple(presets), everything=True
        )
        return self._grown(setting, grow)

    def play_agents(self, *, seed: int, number: int, presets: Sequence[str]) -> Played:
        """Draw agents on a server, grow their requests on the real one, and replay them."""
        setting = draw_agents(seed, number, release=self.release, presets=tuple(presets))
        return self._grown(setting, grow_agents)

    def _grown(self, setting: Setting, how: Grow) -> Played:
        model = self.model(setting.preset, setting.window)
        try:
            with self.real(setting.flags).started(setting.flags, model) as server:
                workload, outcomes = how(setting, server)
        except NotStartedError:
            nothing = setting.workload()
            if first_difference(nothing, ()) is not None:
                return Played(workload=nothing, outcomes=(), difference=None)
            raise
        difference = first_difference(workload, outcomes, self._trial)
        return self._settled(Played(workload=workload, outcomes=outcomes, difference=difference))

    def _settled(self, played: Played) -> Played:
        if played.difference is None:
            return played
        for _ in range(PLAYS):
            try:
                again = self.play(played.workload)
            except (RealServerError, InputError):
                break
            if again.difference is None:
                return replace(played, difference=None, raced=played.difference)
        return played

    def play_arrival(self, *, seed: int, number: int, presets: Sequence[str]) -> Played:
        """Draw a workload in which a request arrives while another is read, and run it."""
        draw = draw_arrival if number % 2 else draw_pinned
        workload = draw(seed, number, release=self.release, presets=tuple(presets))
        return self._settled(self.play(workload))

    def play(self, workload: Scenario) -> Played:
        model = self.model(str(workload.model.preset), workload.model.window or 0)
        outcomes = self.real(workload.engine.options).play(workload, model)
        return Played(
            workload=workload,
            outcomes=outcomes,
            difference=first_difference(workload, outcomes, self._trial),
        )

    def shrunk(self, difference: Difference) -> Difference:
        """The shortest workload found on which the two still disagree.

        Where a request arrives while another is read, a shorter one would arrive elsewhere.
        """
        if any(step.turns for step in difference.workload.step):
            return difference
        found = difference

        def disagree(workload: Scenario) -> bool:
            nonlocal found
            try:
                again = self.play(workload).difference
            except (RealServerError, InputError):
                return False
            if again is None or again.fields.keys() != difference.fields.keys():
                return False
            found = again
            return True

        least = difference.step + 1
        steps: list[Step] = []
        for group in grouped(difference.workload.step):
            if len(steps) >= least:
                break
            steps += group
        start = replace(difference.workload, step=tuple(steps))
        if disagree(start):
            shrink(start, disagree, trials=TRIALS)
        return found


def first_difference(
    workload: Scenario, outcomes: Sequence[Outcome], trial: Trial | None = None
) -> Difference | None:
    """Run a workload on the simulator with the real replies, until it answers differently.

    Rules that no release has may be tried in place of those of the workload's own. A simulator that
    ends as it starts answers nothing.
    """
    drafts_known = all(outcome.drafts is not None for outcome in outcomes if outcome.drafted)
    arithmetic: ArithmeticName = "counts" if trial else "ring"
    try:
        simulator = SimulatedServer(workload, arithmetic if drafts_known else None, trial=trial)
    except session.NotStartedError:
        answered = outcomes[0] if outcomes else Outcome()
        ended = Outcome(error=CRASH)
        return Difference(workload=workload, step=0, real=answered, simulated=ended)
    at, drafts = 0, drafting(workload.engine.options)
    for group in grouped(observed(workload, outcomes).step):
        real = outcomes[at : at + len(group)]
        simulated = simulator.send(group)
        parent = group[0].completions > 1
        for offset in _differing(real, simulated, drafting=drafts, parent=parent):
            return Difference(
                workload=workload,
                step=at + offset,
                real=real[offset],
                simulated=simulated[offset],
                events=tuple(event for record in simulator.records for event in record.events),
                outcomes=tuple(outcomes),
            )
        if simulator.lost:
            return None
        at += len(group)
    return None


def _differing(
    real: Sequence[Outcome], simulated: Sequence[Outcome], *, drafting: bool, parent: bool
) -> Iterator[int]:
    """The members of a group on which the two disagree.

    A group of which one request is refused is answered with that refusal alone. Where a full
    cache meets drafts, what was drafted decides between a refusal and an abort, and neither
    answer shows it: then any failure agrees with any other. So it is where several completions are
    asked of a prompt that does not fit: what is quicker, the children's vain turns or the HTTP side
    that gives them up, decides whether May's and June's servers end.
    """
    failed = real[0].error
    if (drafting or parent) and failed in FAILURES:
        if all(outcome.error not in FAILURES for outcome in simulated):
            yield 0
        return
    if len(real) > 1 and failed is not None:
        if all(outcome.error != failed for outcome in simulated):
            yield 0
        return
    for index, (one, other) in enumerate(zip(real, simulated, strict=True)):
        if not one.agrees_with(other):
            yield index


LINES_SHOWN: Final = 200
"""Log characters of a step of a few requests, with room."""


def show_difference(
    out: Console, difference: Difference, *, profile: str = "", version: str = ""
) -> None:
    """Print a workload that disagrees, and both servers' results of its last step."""
    workload = difference.workload
    step = workload.step_names[difference.step]
    out.print(f"\nfirst disagreement: {workload.name}, step {step}")
    about = f"the simulator disagrees with the real server in step {step}"
    outcomes = difference.outcomes[: difference.step + 1]
    scenario = as_scenario(workload, outcomes, profile=profile, about=about)
    out.print(to_toml(scenario), markup=False)
    for name, (real, simulated) in difference.fields.items():
        out.print(f"{name} in step {step}: real {real}, simulated {simulated}")
    out.print("the simulator's events at that step:")
    for line in _lines(difference.events):
        out.print(f"  {line}")
    if difference.real.error in {ENDLESS, SILENT}:
        out.print("the real server did not answer; a log that loops forever is not shown")
        return
    out.print("the real server's log at that step:")
    lines = real_log_of(workload, difference.step, version=version)
    for line in lines[:LINES_SHOWN]:
        out.print(f"  {line}", markup=False)
    if len(lines) > LINES_SHOWN:
        out.print(f"  ... and {len(lines) - LINES_SHOWN:,} more lines")


def _lines(events: Sequence[Event]) -> Iterator[str]:
    lines = (json.dumps(event.as_dict(), default=str) for event in events)
    for line, same in groupby(lines):
        count = len(list(same))
        yield line + (f"  (x {count})" if count > 1 else "")


def real_log_of(workload: Scenario, step: int, *, version: str) -> list[str]:
    """Log lines of the real server about its caches at one step of a workload."""
    with NamedTemporaryFile(suffix=".log") as file:
        log = Path(file.name)
        with SideBySide(release_of(workload), version=version, log=log) as pair:
            pair.play(workload)
        starts = (index for index, each in enumerate(workload.step) if not each.with_previous)
        calls = dict(zip(starts, calls_of(log), strict=False))
    return calls.get(max((start for start in calls if start <= step), default=0), [])
