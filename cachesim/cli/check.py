"""`cachesim check`: random workloads searched for wrong answers, or two profiles compared."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, options
from cachesim.cli.findings import (
    NOTHING_RUN,
    compared_json,
    known_of,
    print_comparison,
    print_opening,
    print_parts,
    print_search,
    print_survey,
)
from cachesim.cli.jobs import crew, processes, processors, setting
from cachesim.cli.like import OWN_LAYERS, nearest_preset, scenarios_like
from cachesim.cli.outputs import output_at, page_at, progress, write, write_page
from cachesim.cli.plan import WORDS, Collected, Plan
from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.presets import ALL_PRESETS, PRESETS, RECALL
from cachesim.prove.hunt.loop import ProvenFinding, hunt
from cachesim.prove.hunt.proof import Prover, prover_of
from cachesim.prove.hunt.report import write as write_report
from cachesim.prove.playing import comparing
from cachesim.report.document import Heading
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Kind
from cachesim.suites import junit, sarif
from cachesim.testing.baseline import FIRST_BYTES, Baseline, written
from cachesim.testing.baseline import read as read_baseline
from cachesim.testing.search import (
    Comparison,
    Report,
    compare,
    search,
)
from cachesim.testing.survey import (
    CHUNK,
    Cause,
    Find,
    Survey,
    made_small,
    search_by,
    survey,
    survey_by,
)
from cachesim.testing.workloads import Shape, try_flags
from cachesim.typed import Json


class Budget:
    """Time limit of a search in minutes; may be unlimited."""

    def __init__(self, minutes: float | None) -> None:
        self._minutes = minutes
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> bool:
        """True while there is time for one more workload."""
        return self._minutes is None or self.seconds < 60 * self._minutes

    @property
    def share(self) -> float:
        """Elapsed share of the time; 0 without a limit."""
        return 0.0 if self._minutes is None else self.seconds / (60 * self._minutes)

    def rate(self, workloads: int) -> float:
        """Workloads per second since the start."""
        return workloads / max(self.seconds, 1e-9)


@contextmanager
def bar(title: str, budget: Budget, examples: int) -> Iterator[Callable[["Sent"], bool]]:
    """Progress bar of workloads run and of the estimated time left; false when it is over."""
    with progress(title, 1) as move:

        def going(sent: Sent) -> bool:
            of = f" of {examples:,}" if examples < WITHOUT_END else ""
            done = f"{sent.workloads:,}{of} workloads, {counted(sent.requests, 'request')}"
            move(max(sent.workloads / examples, budget.share), done)
            return budget.left()

        yield going


Sent: TypeAlias = Report | Comparison
"""Results with counts of workloads and of requests."""


EXAMPLES: Final = 200
"""Number of workloads where neither a number nor a time is given."""

LEAKED_EXAMPLES: Final = 1000
"""Workloads of `--find leak`: most wrong answers of a drawn workload are no leak."""

WITHOUT_END: Final = 10**9

COMPARED: Final = 0.3
"""Share of the time in which two profiles are compared; the rest is a search for new causes."""


Hands: TypeAlias = tuple[Executor | None, int]
"""Map over worker processes, and their number."""


Prove: TypeAlias = Annotated[
    bool,
    Parameter(
        help="Run each wrong answer on the real engine, and write a report of each that is wrong "
        "there too, to the folder of --emit (hunt by default; with --scope or --like none)."
    ),
]
Models: TypeAlias = Annotated[
    list[str] | None,
    Parameter(
        help="A preset of `cachesim list presets`; may be repeated. By default hybrid; with "
        "--prove all that the real engine loads."
    ),
]
SmallScope: TypeAlias = Annotated[
    int | None,
    Parameter(help="Run all workloads of up to this many requests (2 to 4) to tiny servers."),
]
Found: TypeAlias = Annotated[
    Find,
    Parameter(
        help="wrong: wrong answers and crashes; lost: reuse lost although the states were held;"
        " leak: values of other requests in a reply, on a recall preset."
    ),
]
Like: TypeAlias = Annotated[
    str | None,
    Parameter(
        help="Begin each workload with these requests: a scenario, a log, recorded requests or a "
        "trace. A scenario and llama-server's log have their own release, model and flags."
    ),
]
Required: TypeAlias = Annotated[
    list[str] | None,
    Parameter(help=f"Fail unless the workloads exercised it; one of {', '.join(WORDS)}."),
]
Examples: TypeAlias = Annotated[
    int | None, Parameter(help="Run at most this many workloads; 200 (leak: 1000) by default.")
]


Against: TypeAlias = Annotated[
    str | None,
    Parameter(
        help="A second profile, such as the release that you patch: compared on the same "
        "workloads. Then fail only for causes that it does not show."
    ),
]
Named: TypeAlias = Annotated[
    str, Parameter(help="Profiles such as llama.cpp@b11549+erase-equal; or as --profile.")
]
Minutes: TypeAlias = Annotated[
    float | None, Parameter(help="Search for at most this many minutes; 10 with --prove.")
]
Everything: TypeAlias = Annotated[
    bool, Parameter("--all", help="Continue past findings, and group them by cause.")
]
Known: TypeAlias = Annotated[
    Path | None, Parameter(help="Fail only for causes that this file does not have.")
]
Saved: TypeAlias = Annotated[
    Path | None, Parameter(help="Write the causes that were found to this file.")
]


def check_command(
    *profiles: Named,
    profile: options.Profiles = None,
    prove: Prove = False,
    against: Against = None,
    model: Models = None,
    settings: options.Settings = None,
    baseline: Known = None,
    save_baseline: Saved = None,
    examples: Examples = None,
    minutes: Minutes = None,
    scope: SmallScope = None,
    like: Like = None,
    find: Found = "wrong",
    everything: Everything = False,
    require: Required = None,
    emit: Annotated[Path | None, Parameter(help="Write counterexamples to this folder.")] = None,
    export: options.Tests = None,
    seed: Annotated[int, Parameter(help="The seed of everything drawn at random.")] = 0,
    arithmetic: options.JudgingArithmetic = "ring",
    jobs: options.Jobs = None,
    dask: options.Dask = None,
    format: options.TestFormat = "text",
    report: options.Page = None,
) -> int:
    """Search random workloads for wrong answers; --prove them.

    Example: cachesim check llama.cpp@b11549+erase-equal --model hybrid --minutes 1
    """
    page, printed = page_at(report), list[RenderableType]()
    chosen = tuple(dict.fromkeys(map(Profile.parse, (*profiles, *(profile or ())))))
    _refuse_unknown(model or (), PRESETS if prove else ALL_PRESETS)
    if find == "leak":
        model, arithmetic = _recalling(model), "float"
        examples = examples or (None if minutes else LEAKED_EXAMPLES)
    drawn: dict[str, object] = {"--against": against, "--examples": examples}
    drawn["--find"] = find != "wrong"
    gates = {"--baseline": baseline, "--save-baseline": save_baseline}
    if prove:
        options.refuse_beside("--prove", gates | {"--arithmetic": arithmetic != "ring"})
    other = _released(against, chosen)
    known = _known(baseline, other)
    saved = output_at(save_baseline, "--save-baseline", FIRST_BYTES)
    models = tuple(model or ())
    if prove and like is None and scope is None:
        refused = {"--set": settings, "--all": everything, "--dask": dask}
        options.refuse_beside("--prove", drawn | refused)
        minutes, emit = 10 if minutes is None else minutes, emit or Path("hunt")
        model = None  # one search of all of them
    if scope is not None:
        options.refuse_beside("--scope", drawn | {"--like": like, "--seed": seed or None})
        examples = WITHOUT_END
    if examples is None:
        examples = EXAMPLES if minutes is None else WITHOUT_END
    shape = shape_for(settings or (), leak=find == "leak")
    if like is not None:
        options.refuse_beside("--like", {"--against": against, "--find leak": find == "leak"})
        chosen, model, shape, summary = _around(like, chosen, model, shape)
        if format == "text":
            print_parts(printed, Text(summary))
    opening = list[RenderableType](map(Text, known_of(chosen) if format == "text" else ()))
    status, told = AS_EXPECTED, list[dict[str, Json]]()
    collected = Collected()
    for fromkey in dict.fromkeys(model or [_default_model(chosen)]):
        plan = Plan(
            profiles=chosen,
            against=other,
            model=fromkey,
            models=models,
            examples=examples,
            minutes=minutes,
            seed=seed,
            arithmetic=arithmetic,
            shape=shape,
            jobs=processors() if jobs is None else jobs,
            emit=emit,
            export=export,
            require=frozenset(require or ()),
            find=find,
            everything=everything,
            dask=dask,
            printed=printed,
            scope=scope,
            told=told if format != "text" else None,
            prove=prove,
            baseline=known,
            saves=saved is not None,
            collected=collected,
            opening=opening,
            grouped=known is not None or saved is not None or format in {"junit", "sarif"},
        )
        status |= _carried_out(plan)
    if format != "text":
        sys.stdout.write(_formatted(format, told, collected, known) + "\n")
    if saved is not None:
        write(saved, written(collected.searched))
    write_page(page, "cachesim check", [Heading("cachesim check"), *printed])
    return status


def _released(against: str | None, chosen: Sequence[Profile]) -> Profile | None:
    """The second profile, which may be a release alone."""
    if against is None:
        return None
    return full_profile(chosen[0].engine if chosen else "", against)


def _known(file: Path | None, release: Profile | None) -> Baseline | None:
    """What a gate lets pass; None for a search that fails for anything."""
    known = None if file is None else read_baseline(file)
    if release is None:
        return known
    known = known or Baseline()
    return replace(known, releases=(*known.releases, release))


def _formatted(
    format: Literal["json", "junit", "sarif"],
    told: Sequence[Json],
    collected: Collected,
    known: Baseline | None,
) -> str:
    """All searches, for another program."""
    if format == "json":
        comparisons: dict[str, Json] = {}
        if collected.compared:
            comparisons["comparisons"] = list(collected.compared)
        return json.dumps({"format": 1, "searches": list(told), **comparisons}, indent=1)
    if format == "junit":
        return junit("cachesim check", collected.suites)
    rules = {cause.name: str(cause) for search in collected.searched for cause in search.causes}
    return sarif(collected.suites, rules, compared=known is not None)


def _refuse_unknown(models: Sequence[str], known: Iterable[str]) -> None:
    for unknown in sorted(set(models) - set(known)):
        raise InputError(f"there is no preset {unknown!r}; there are {', '.join(ALL_PRESETS)}")


def _around(
    like: str, profiles: tuple[Profile, ...], models: list[str] | None, shape: Shape
) -> tuple[tuple[Profile, ...], list[str], Shape, str]:
    """Profiles, model and shape of a search around a file's requests, and what these are."""
    preset = (models or [_default_model(profiles)])[0]
    given = scenarios_like(like, preset, profiles, models[0] if models else None)
    model = given.scenarios[0].model
    if models not in (None, [model.preset]):
        raise InputError(f"--like {like}: it has {model.preset or OWN_LAYERS}; leave --model out")
    return (
        given.profiles,
        [nearest_preset(model)],
        replace(shape, around=given.scenarios),
        given.summary,
    )


def _recalling(models: list[str] | None) -> list[str]:
    """Models of a search for leaks, all of which recall facts."""
    chosen = models or ["recall-hybrid-delta"]
    for other in sorted(set(chosen) - set(RECALL)):
        msg = f"--find leak needs a model that recalls facts, not {other!r}: {', '.join(RECALL)}"
        raise InputError(msg)
    return chosen


def _default_model(profiles: Sequence[Profile]) -> str:
    """The hybrid preset, or the dense one where a server has no recurrent states."""
    for profile in profiles:
        try:
            try_flags(profile, "hybrid", {})
        except InputError:
            return "dense"
    return "hybrid"


def shape_for(settings: Sequence[str], *, leak: bool = False) -> Shape:
    """Shape of workloads with every feature; facts that may leak are drawn before they are run."""
    fixed = dict(map(setting, settings))
    return Shape(fixed=fixed, incidents=True, chats=True, cancels=False, guided=not leak)


def of_two(shape: Shape) -> Shape:
    """Shape of workloads of two profiles: drawn first, so that neither's state decides them."""
    return replace(shape, incidents=False, chats=False, cancels=True, guided=False)


def _carried_out(plan: Plan) -> int:
    status = AS_EXPECTED
    if plan.against is not None:
        for profile in plan.profiles:
            status |= _compare(profile, plan.against, plan)
    with _hands(plan) as hands:  # begin once for all profiles
        for profile in plan.profiles:
            status |= (_survey if plan.goes_on else _search)(profile, plan, hands)
    return status


def _search(profile: Profile, plan: Plan, hands: Hands) -> int:
    pool, count = hands
    scope = plan.scope_of(profile)
    budget = Budget(plan.minutes)
    with bar(f"{profile} {plan.called}", budget, plan.examples) as shown:

        def going(report: Report) -> bool:
            report.rate = budget.rate(report.workloads)
            return shown(report)

        if scope is not None:
            report = scope.search(plan.arithmetic, going, pool, count)
        else:
            search_with = search if pool is None else partial(search_by, pool, count)
            only: Kind | None = "leak" if plan.find == "leak" else None
            report = search_with(profile, plan.model, **plan.how, only=only, going=going)
        if report.counterexample is None:  # else time went into making it small
            report.rate = budget.rate(report.workloads)
    report.model = plan.called
    print_opening(plan)
    return print_search(report, plan, scope)


@comparing
def _survey(profile: Profile, plan: Plan, hands: Hands) -> int:
    pool, count = hands
    scope, budget = plan.scope_of(profile), Budget(plan.minutes)
    proven, reports = dict[Cause, ProvenFinding](), dict[Cause, Path]()

    def task(prover: Prover | None = None) -> Survey:
        how = {**plan.how, "find": plan.find, "going": going}
        if prover is not None:
            kinds = prover.kinds
            shape = replace(plan.shape, incidents=bool(kinds), kinds=kinds, chats=prover.chats)
            how["shape"] = shape
        if scope is not None:
            return scope.survey(plan.arithmetic, going, pool, 2 * count)
        if pool is None:
            return survey(profile, plan.model, **how)
        return survey_by(pool, profile, plan.model, ahead=2 * count, **how)

    def report(finding: ProvenFinding) -> None:
        if finding.result.confirmed and plan.emit is not None:
            number, where = len(reports) + 1, prover_of(profile, ()).where
            reports[finding.cause] = write_report(finding, profile, plan.emit, number, where)

    with bar(f"{profile} {plan.called}", budget, plan.examples) as going:
        known = set[Cause]()
        if plan.prove:
            findings = hunt(
                profile,
                seed=plan.seed,
                models=plan.models,
                going=going,
                report=report,
                pool=pool,
                ahead=count,
                task=None if plan.hunts else task,
            )
            found, proven = findings.survey, {**findings.proven, **findings.missed}
            smallest = {cause: finding.found for cause, finding in proven.items()}
        else:
            found = task()
            order = [cause for cause, _ in found.counts.most_common()]
            small = partial(made_small, profile=profile, arithmetic=plan.arithmetic, find=plan.find)
            knows = (plan.baseline or Baseline()).knows
            passes = partial(knows, profile=profile, arithmetic=plan.arithmetic, find=plan.find)
            known = {cause for cause in order if passes(cause, found.first[cause].scenario)}
            do = map if pool is None else pool.map
            new = [cause for cause in order if cause not in known]
            shrunk = do(small, new, [found.first[cause] for cause in new])
            smallest = dict(zip(new, shrunk, strict=True))
            known |= {cause for cause, one in smallest.items() if passes(cause, one.scenario)}
        found.report.rate = budget.rate(found.report.workloads)
    found.report.model = plan.called
    print_opening(plan)
    return print_survey(found, smallest, plan, scope, proven=proven, reports=reports, known=known)


@contextmanager
def _hands(plan: Plan) -> Iterator[Hands]:
    """Workers of the search: this process, several processes, or a cluster."""
    if plan.dask is not None:
        with crew(plan.dask) as found:
            yield found
        return
    with _pool(min(plan.jobs, -(-plan.examples // CHUNK))) as found:
        yield found


@contextmanager
def _pool(count: int) -> Iterator[Hands]:
    if count == 1:
        yield None, 1
        return
    with processes(count) as pool:
        yield pool, count


def _compare(one: Profile, other: Profile, plan: Plan) -> int:
    """Which of two profiles reuses more, in a share of the time; what is wrong, the search says."""
    budget = Budget(plan.minutes and plan.minutes * COMPARED)
    shape = of_two(plan.shape)
    with bar(f"{one} against {other}, {plan.model}", budget, plan.examples) as going:
        found = compare(one, other, plan.model, **plan.how | {"shape": shape}, going=going)
    print_opening(plan)
    if not (found.workloads or budget.left()):
        if plan.told is None:
            print_parts(plan.printed, Text(f"{one} against {other}"), Text(f"  {NOTHING_RUN}"))
        return NOT_AS_EXPECTED
    if plan.told is None:
        return print_comparison(found, plan.printed)
    plan.collected.compared.append(compared_json(found))
    return AS_EXPECTED
