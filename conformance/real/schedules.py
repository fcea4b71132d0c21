"""Workloads and scenarios on a release's own scheduler, with the simulated one beside it.

A scenario is run by the simulator first, network and all; the real scheduler gets the same
tokens, for no kernel runs there, and must take the same decisions.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Generic, TypeVar

from cachesim.engines.base import Engine
from cachesim.engines.events import Event
from cachesim.engines.family import Family, Profile
from cachesim.engines.images import Image
from cachesim.errors import InputError, ScenarioError, UpstreamAbort
from cachesim.model.presets import PRESETS
from cachesim.play.session import ABORTED, ENDLESS, Record, Session, groups_of, turns_before
from cachesim.prove.environment import Environment, UnpackedWheel, package_of, versions_of
from cachesim.prove.playing import Difference, Stage, StepPlayed, Workload, console, watched
from cachesim.prove.rows import spell
from cachesim.prove.worker_process import WorkerError, WorkerProcess
from cachesim.scenario.format import Scenario
from cachesim.testing.guided import Guided
from cachesim.testing.workloads import Shape, compatible
from cachesim.units import Count, Pos, as_tokens
from conformance.real.agreement import Agreement, first_difference
from conformance.real.fields import judge_declared, judge_fields
from conformance.real.fit import Played, judge_newest
from conformance.real.prompts import with_images

Result = Mapping[str, Any]

NOT_PLAYED: Final = "not run"
"""The entry of a step after the one in which the scheduler raised."""

NOT_BESIDE: Final = " is not run beside the real scheduler: "

R = TypeVar("R")
E = TypeVar("E", bound=Event)


REFUSED: Final = frozenset({"BadRequestError", "ServiceUnavailable"})
"""Errors of requests that a server refuses before its scheduler gets them."""

DRAWN: Final = Shape(incidents=True)
"""Workloads with client and operator actions besides requests; schedulers have no chats."""

NOT_RAISED: Final = frozenset({"stuck", "too many steps"})


def count(
    agreement: Agreement, workload: Workload, real: Sequence[Result], simulated: Sequence[Result]
) -> None:
    """Count a workload; one that the release itself fails on does not count as agreeing."""
    failed = raised(real)
    real, simulated = comparable(real, simulated)
    requests = [request for group in real for request in group.get("requests", ())]
    difference = first_difference(real, simulated)
    agreement.add(
        workload["id"].rpartition("-")[0],
        workload["id"],
        difference,
        workloads=1,
        requests=len(requests),
        tokens_cached=sum(request["cached"] or 0 for request in requests),
        agreeing=difference is None and not failed,
        raised=failed,
    )


def raised(real: Sequence[Result]) -> bool:
    """True if a release ends a workload with an exception."""
    return bool(real) and "error" in real[-1] and real[-1]["error"] not in NOT_RAISED


def comparable(
    real: Sequence[Result], simulated: Sequence[Result]
) -> tuple[Sequence[Result], Sequence[Result]]:
    """The compared results: if the release raises, those before it.

    The simulator must end there, too.
    """
    if raised(real):
        last = simulated[len(real) - 1 :]
        if last and "error" in last[0]:
            return real[:-1], simulated[: len(real) - 1]
    return real, simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class RealScheduler(Generic[R]):
    """The scheduler of an engine's releases, each in a process of its own, and the simulated one.

    `config_of` is its configuration by a simulated server, `hurdles` why it does not run a
    scenario, `group_of` the requests of steps that come together, and `shared` names results
    common to all of them. `visible` reduces the results of both to what this form of the release
    shows. `configured` adds the configuration of a server's start to each workload.
    """

    family: Family[R, Any]
    kept: re.Pattern[str]  # what of the wheel is unpacked
    worker: str
    draw: Callable[[int, int, R], Workload]
    play: Callable[..., list[dict[str, Any]]]  # a workload, rules, perhaps `like` a server
    config_of: Callable[[Engine], dict[str, Any]]
    hurdles: Callable[[Scenario], Mapping[str, bool]]
    group_of: Callable[[Sequence[Record], Session], list[dict[str, Any]]]
    shared: tuple[str, ...]
    variant: str = ""  # the form in which the worker runs a part of the release
    visible: Callable[[Workload, list[dict[str, Any]]], list[dict[str, Any]]] = lambda _, all_: all_
    part: str = "scheduler"  # of the wheel, by which its folder is named
    packages: Environment | None = None  # what all releases import
    configured: Callable[[WorkerProcess, UnpackedWheel], WorkerProcess] | None = None
    declared: Callable[[UnpackedWheel], Mapping[str, frozenset[str]]] | None = None
    """The fields of its configuration, where its own code has to be asked for them."""

    def core_of(self, release: str, version: str = "") -> UnpackedWheel:
        """The folder that holds the scheduler of a release, or of another version in its place."""
        name, package = package_of(self.family, release, version)
        return UnpackedWheel(
            name="-".join((self.family.name, version or name, self.part)),
            requirements=package.requirements,
            kept=self.kept,
            packages=self.packages,
        )

    def start(self, release: str, version: str = "") -> WorkerProcess:
        """The scheduler, started with its own files and little else."""
        core = self.core_of(release, version)
        core.ready()
        given = self.worker, str(core.folder), release, *filter(None, (self.variant,))
        process = WorkerProcess(f"{self.family.name} {release}", core.python, *given)
        return self.configured(process, core) if self.configured else process

    def compare(
        self,
        release: str,
        seed: int,
        numbers: range,
        *,
        version: str = "",
        record: Callable[[Played[R]], None] = lambda _: None,
        started: WorkerProcess | None = None,
    ) -> Agreement:
        """Run workloads on both; another version may stand in for the release's own.

        Import takes most of a start, so a process that is `started` already can be shared.
        """
        known = self.family.release(release)
        title = f"{self.family.name} {known.name}: scheduler, seed {seed}"
        found = Agreement(title=title, kinds="groups")
        with nullcontext(started) if started else self.start(known.name, version) as real:
            for number in watched(numbers):
                workload = with_images(self.draw(seed, number, known.rules), seed, number)
                real_groups = self.visible(workload, real.play(workload))
                record(self._played(workload, real_groups))
                simulated = self.visible(workload, self.play(workload, known.rules))
                count(found, workload, real_groups, simulated)
        return found

    def compare_newest(self, seed: int, numbers: range, wheel: str = "") -> int:
        """The newest version, or a named one, under the newest release's rules; the exit status.

        Where they do not agree, the rule fields are fitted that explain it.
        """
        played = list[Played[R]]()
        version, known = wheel or versions_of(self.family.name)[0], self.family.real()[-1]
        try:
            found = self.compare(known, seed, numbers, version=version, record=played.append)
            status = found.show()
        except WorkerError as error:
            console().print(str(error), markup=False)
            status = 1
        status = judge_newest(self.family, version, known, status, played)
        return max(status, self.judge_fields(known, version))

    def judge_fields(self, known: str, version: str) -> int:
        """Compare the fields of a version's configuration with the table of them."""
        core = self.core_of(known, version)
        if self.declared is None:
            return judge_fields(self.family, version, core.folder)
        return judge_declared(self.family, version, self.declared(core))

    def _played(self, workload: Workload, real: list[dict[str, Any]]) -> Played[R]:
        def check(rules: R) -> Difference | None:
            ours = self.visible(workload, self.play(workload, rules))
            return first_difference(*comparable(real, ours))

        size = len(str(workload["steps"]))
        return Played(
            kind=workload["id"].rpartition("-")[0], requests=len(real), size=size, check=check
        )

    def play_named(self, scenario: str, release: str = "") -> int:
        """Run a named scenario on one release, or on each of its releases; the exit status."""
        stage = Stage(
            family=self.family,
            environment_for=self.core_of,
            play=self.play_scenario,
            heads=("cached", "simulated", "chunks", "evicted"),
        )
        return stage.play_named(scenario, release)

    def workload_of(
        self, scenario: Scenario, release: str
    ) -> tuple[list[Record], Workload, Engine]:
        """Run a scenario on the simulator: steps, their requests as a workload, server."""
        why = next((why for why, stands in self.hurdles(scenario).items() if stands), None)
        if why is not None:
            raise not_beside(scenario.name, why)
        session = Session(scenario, Profile(self.family.name, release), arithmetic="ring")
        records, groups = list(session.run()), list(groups_of(scenario))
        steps = [self.group_of([records[index] for index in group], session) for group in groups]
        workload = {
            "id": scenario.name,
            "config": self.config_of(session.engine),
            "steps": [step for step in steps if step],
        }
        return records, workload, session.engine

    def play_scenario(
        self, scenario: Scenario, release: str, *, started: WorkerProcess | None = None
    ) -> tuple[StepPlayed, ...]:
        """Run a scenario on the simulator, then on the real scheduler with the same tokens.

        Requests that the server refuses before its scheduler are not compared.
        """
        records, workload, server = self.workload_of(scenario, release)
        groups = [
            [index for index in group if is_scheduled(records[index])]
            for group in groups_of(scenario)
        ]
        with nullcontext(started) if started else self.start(release) as process:
            real = self.visible(workload, process.play(workload))
        rules = self.family.release(release).rules
        simulated = self.visible(workload, self.play(workload, rules, like=server))
        return tuple(
            step_played(
                records[index],
                _entry(real, at, number, self.shared),
                _entry(simulated, at, number, self.shared),
                hangs=any(records[each].error == ENDLESS for each in group),
            )
            for at, group in enumerate(filter(None, groups))
            for number, index in enumerate(group)
        )

    def compare_guided(
        self, release: str, seed: int, numbers: range, *, started: WorkerProcess | None = None
    ) -> Agreement:
        """Run workloads that a guided search draws, of each model and corner, on both.

        A process that is `started` already can be shared.
        """
        profile = Profile(self.family.name, self.family.release(release).name)
        title = f"{profile}: scheduler, guided workloads of seed {seed}"
        found = Agreement(title=title, kinds="models")
        models = [preset for preset in PRESETS if compatible(profile, preset, ())]
        with nullcontext(started) if started else self.start(profile.release) as real:
            for number, model in watched([*product(numbers, models)]):
                try:
                    client = Guided(profile, model, number, seed=seed, shape=DRAWN)
                    deque(client.run(), maxlen=0)
                    steps = self.play_scenario(client.scenario, profile.release, started=real)
                except (InputError, UpstreamAbort) as error:  # flags or steps, or a start
                    found.add(model, "", None, workloads=1, not_compared=1, steps=0, agreeing=0)
                    found.reasons[str(error).rpartition(NOT_BESIDE)[-1]] += 1
                    continue
                first = next((step for step in steps if not step.agrees), None)
                different = None
                if first is not None:
                    at = steps.index(first)
                    different = Difference(step=at, real=first.real, simulated=first.simulated)
                found.add(
                    model,
                    client.scenario.name,
                    different,
                    workloads=1,
                    not_compared=0,
                    steps=len(steps),
                    agreeing=different is None,
                )
        return found


def step_played(
    record: Record, real: Result, simulated: Result, *, hangs: bool = False
) -> StepPlayed:
    """A step on both schedulers; where the release raises or waits endlessly, the simulator does.

    No answer is computed there: only an end is proven. A step that the model runner ends, which
    neither of the schedulers has, is no reply; both schedulers continue. `hangs`: a request that
    arrived with it waits endlessly, so that nothing of the others is known.
    """
    reply = record.reply
    cached = None
    ended = record.error == ABORTED  # then nobody gets a reply
    if record.step.do == "complete" and reply is not None and not ended:
        cached = None if reply.cached is None else int(reply.cached)
    if "error" in real:
        stuck = hangs and real["error"] in NOT_RAISED
        agrees = "error" in simulated and (cached is None or stuck)
    else:
        ends = record.error not in {None, "endless"} and "error" not in simulated
        agrees = real == simulated and (ends or real.get("cached") == cached)
        if real == simulated and not agrees:
            simulated = {**simulated, "cached": cached}  # a reply's; the workload was run otherwise
    ends = real.get("error", NOT_PLAYED) not in {NOT_PLAYED, *NOT_RAISED}
    ends |= record.error == ENDLESS and real.get("error") in NOT_RAISED
    return StepPlayed(
        name=record.name,
        prompt_tokens=len(record.prompt),
        real=real,
        simulated=simulated,
        agrees=agrees,
        confirmed=True if ends and agrees else None,
        cells=("",) * 4
        if "reset" in real
        else (
            str(real.get("cached", real.get("error"))),
            str(cached),
            " ".join(f"{first}-{last}" for first, last in real.get("chunks", ())),
            str(len(real.get("evicted", ()))),
        ),
    )


def not_beside(name: str, why: str) -> ScenarioError:
    """The error of a scenario, or of a step of one, that is not compared."""
    return ScenarioError(f"{name}{NOT_BESIDE}{why}")


def is_scheduled(record: Record) -> bool:
    """True for a request that reaches the scheduler, and for a reset."""
    if record.step.do != "complete":
        return record.step.do != "cancel"
    refused = record.reply is not None and record.reply.error in REFUSED
    return record.ticket is not None and not refused


def grouped(
    records: Sequence[Record],
    requested: Callable[[Record], dict[str, Any]],
    *,
    arrives: str,
    aborted: str,
) -> list[dict[str, Any]]:
    """The requests of steps that come together; the names are of the turns of arrival and end."""
    turn, found, last = 0, dict[str, dict[str, Any]](), ""
    for record in records:
        turn += turns_before(record.step) if found else 0
        if record.step.do == "cancel":
            of = record.step.of or last
            if of in found:
                found[of].setdefault(aborted, turn)
            continue
        last = record.name
        if is_scheduled(record):
            found[record.name] = requested(record) | ({arrives: turn} if turn else {})
    return list(found.values())


def wanted_of(record: Record, more: Mapping[str, Any]) -> dict[str, Any]:
    """A step in the notation of workloads."""
    if record.step.do != "complete":
        return {"reset": True}
    step, generated = record.step, record.reply.generated if record.reply else ()
    if record.error == ABORTED and isinstance(step.reply, tuple):
        generated = as_tokens(step.reply)
    own = step.predict or (0 if isinstance(step.reply, str | None) else len(step.reply))
    request = {
        "prompt": spell(record.prompt),
        "generate": max(1, (record.error and own) or len(generated)),  # of one that did not end
        "reply": spell(generated),
    }
    if record.images:
        request["images"] = [[image.name, image.start, image.count] for image in record.images]
    return request | dict(more)


def events_of(record: Record, kind: type[E]) -> list[E]:
    """The events of one class of a step's own request."""
    return [
        event for event in record.events if isinstance(event, kind) and event.task == record.ticket
    ]


def images_of(wanted: Mapping[str, Any]) -> tuple[Image, ...]:
    """The images of a workload's request."""
    found = wanted.get("images", ())
    return tuple(Image(name, Pos(start), Count(count)) for name, start, count in found)


def _entry(results: Sequence[Result], group: int, number: int, shared: tuple[str, ...]) -> Result:
    if group >= len(results) or "requests" not in results[group]:
        return results[group] if group < len(results) else {"error": NOT_PLAYED}
    whole = results[group]
    entry: dict[str, Any] = dict(whole["requests"][number])
    return entry | {key: whole[key] for key in shared}
