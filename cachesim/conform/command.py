"""Run of all models of a server: the user's own, or those that the workbench starts."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from cachesim.conform.examiner import Examiner
from cachesim.conform.laws import LAWS
from cachesim.conform.result import Examined, Table
from cachesim.engines import Engine
from cachesim.engines.family import Profile, did_you_mean, family_of
from cachesim.errors import CachesimError, InputError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.probe.command import Settings, plan_of, status_line, target_of
from cachesim.probe.connection import BudgetError, Meter
from cachesim.probe.outcome import Outcome
from cachesim.probe.profiles import VOCABULARY, Candidate
from cachesim.probe.result import Result, rounding
from cachesim.probe.target import Target
from cachesim.prove import workbench
from cachesim.prove.hunt.loop import known_causes

AS_SERVED: Final = "the model served"
SHRINKING: Final = 20.0
"""Seconds for the smallest requests of a finding; a table has many cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server, and the simulated one that has to report the same counts."""

    model: str = AS_SERVED
    start: str = ""
    profile: Profile | None = None
    spec: ModelSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()  # flags other than the defaults, each with its reason


class Starter(Protocol):
    """What the workbench has for an engine: its servers of a release, one for each model."""

    def __call__(self, release: str, folder: Path, models: Sequence[str]) -> Iterator[Served]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is told."""

    what: str = ""  # ENGINE or ENGINE@RELEASE
    laws: tuple[str, ...] = tuple(LAWS)
    profile: str = ""
    models: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    def checked(self) -> "Asked":
        for law in self.laws:
            if law not in LAWS:
                hint = did_you_mean(law, LAWS)
                raise InputError(f"there is no law {law!r}{hint}; there are {', '.join(LAWS)}")
        own = self.settings.url or self.settings.start
        if self.what and own:
            raise InputError(f"name {self.what}, or a server with --url or --start, not both")
        if not self.what and not own:
            raise InputError(
                "name an engine, as in llama.cpp, a server, as in --url http://127.0.0.1:8080, or"
                ' one to start, as in --start "llama-server -m model.gguf --port {port}"'
            )
        if len(self.models) > 1 and own:
            raise InputError("a server has one model: name one preset with --model")
        return self


def run(asked: Asked, progress: Callable[[str], None] = lambda _: None) -> Table:
    """Examine each model of a server; every started process is ended, even after an error."""
    asked = asked.checked()
    with tempfile.TemporaryDirectory() as folder:
        columns = []
        for one in _of_workbench(asked, Path(folder)) if asked.what else _own(asked):
            settings = replace(asked.settings, start=one.start)
            if settings.emit is not None and asked.what:
                settings = replace(settings, emit=settings.emit / one.model)
            columns.append(examined(one, asked.laws, settings, progress))
    return Table(tuple(columns))


def _own(asked: Asked) -> Iterator[Served]:
    spec = preset(asked.models[0]) if asked.models else None
    profile = Profile.parse(asked.profile) if asked.profile else None
    settings = asked.settings
    yield Served(
        model=asked.models[0] if spec else AS_SERVED,
        start=settings.start, profile=profile, spec=spec, options=asked.options,
    )  # fmt: skip


def _of_workbench(asked: Asked, folder: Path) -> Iterator[Served]:
    name, _, release = asked.what.partition("@")
    family = family_of(name)
    starters = workbench.added(workbench.SERVERS)
    if not starters:
        raise workbench.missing(f"`cachesim conform {asked.what}`")
    if family.name not in starters:
        raise InputError(
            f"{family.name}: its servers are not started here; there are {', '.join(starters)}, and"
            " any server with --start or --url"
        )
    real = family.real()
    chosen = family.release(release or real[-1]).name
    if chosen not in real:
        msg = f"no package runs {family.name}@{chosen} for real; there are {', '.join(real)}"
        raise InputError(msg)
    start: Starter = starters[family.name].load()
    yield from start(chosen, folder, asked.models)


def examined(
    served: Served, laws: Sequence[str], settings: Settings, progress: Callable[[str], None]
) -> Examined:
    """The verdicts on one server."""
    meter = Meter(settings.limits())
    target = target_of(settings, meter)
    try:
        served = replace(served, profile=served.profile or _profile_of(target))
        plan = replace(plan_of(settings), shrinking=SHRINKING)

        def watch(outcome: Outcome) -> None:
            progress(f"{served.model}: {status_line(outcome, meter)}")

        examiner = Examiner(target, meter, plan, watch, laws=laws, named=_simulated(served, target))
        verdicts = tuple(examiner.examine())
        outcome = examiner.outcome
        outcome.findings = [one for verdict in verdicts for one in verdict.findings]
        result = Result.of(target, outcome, examiner.judge, settings.alarms)
        files = () if settings.emit is None else tuple(result.write(settings.emit, target))
        about = [f"not a default: {override}" for override in served.overrides]
        about.append(f"uncached answers: {result.how_cold}")
        told = target.dialect.facts.options
        if told:
            listed = ", ".join(f"{name}={value}" for name, value in told.items())
            about.append(f"the server says of itself: {listed}")
        about += [rounding(examiner.judge)] if examiner.judge.noise.alone else []
        return Examined(
            model=served.model,
            server=str(served.profile or result.name),
            verdicts=verdicts,
            about=tuple(about),
            requests=meter.requests,
            seconds=meter.seconds,
            files=files,
            known=tuple(_known(served.profile, outcome)),
        )
    except BudgetError as error:
        raise InputError(f"{error} before it was known how the server answers") from None
    finally:
        target.close()


def _profile_of(target: Target) -> Profile | None:
    """The release that a server names, if it is a known one."""
    engine, version = target.dialect.engine, target.dialect.facts.version
    names = family_of(engine).names() if engine else ()
    release = next((name for name in names if version.partition("-")[0] == name), "")
    return Profile(engine, release) if release else None


def _simulated(served: Served, target: Target) -> Callable[[], list[Candidate]] | None:
    """Simulated servers of a model and a release, if both are known."""
    profile, spec, facts = served.profile, served.spec, target.dialect.facts
    if profile is None or spec is None:
        return None
    network = build(replace(spec, vocabulary=VOCABULARY), "counts")
    known_options = {option.name for option in family_of(profile.engine).table()}
    layouts: list[dict[str, Any]] = [{}]
    if family_of(profile.engine).has_slots and facts.slots and facts.context:
        layouts.append({"parallel": facts.slots, "ctx_size": facts.slots * facts.context})
        layouts.append({"parallel": facts.slots, "ctx_size": facts.context, "kv_unified": True})
    exported = {name: value for name, value in facts.options.items() if name in known_options}
    for name, value in served.options.items():
        if exported.get(name, value) != value:
            raise InputError(f"{name} is {value} here, and the server says {exported[name]}")
    flags = [{**exported, **layout, **served.options} for layout in layouts]

    def new() -> list[Candidate]:
        return [
            Candidate(
                releases=[profile.release],
                engine_name=profile.engine,
                model=spec.name,
                options=options,
                shown=dict(served.options),
                engine=Engine.create(profile, model=network, options=options),
            )
            for at, options in enumerate(flags)
            if options not in flags[:at]
        ]

    try:
        new()
    except CachesimError as error:
        raise InputError(
            f"no simulated {profile} has this model and these flags: {error}"
        ) from None
    return new


def _known(profile: Profile | None, outcome: Outcome) -> Iterator[str]:
    """The shipped scenarios that show the causes of the violations."""
    causes = {cause for finding in outcome.findings for cause in finding.causes}
    if profile is not None and causes:
        named = known_causes(profile)
        yield from sorted({named[cause] for cause in causes if cause in named})
