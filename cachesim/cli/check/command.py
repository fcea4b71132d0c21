"""The command itself: the search of each profile, or its comparison with another."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from cachesim.cli import AS_EXPECTED
from cachesim.cli.check.budget import Budget, bar
from cachesim.cli.check.plan import WORDS, Plan, many, workers_for
from cachesim.cli.check.telling import tell_comparison, tell_search, tell_survey
from cachesim.cli.jobs import setting
from cachesim.cli.workers import crew, processes
from cachesim.engines.profile import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.testing.against import Comparison, compare
from cachesim.testing.chunks import CHUNK, search_by, survey_by
from cachesim.testing.search import Report, search
from cachesim.testing.survey import Find, made_small, survey
from cachesim.testing.workloads import Shape

Hands: TypeAlias = tuple[Executor | None, int]
"""Whoever searches beside this process, and how many they are."""


def check(
    *profiles: Annotated[str, Parameter(help="Profiles such as llama.cpp@b11549+erase-equal.")],
    model: Annotated[str, Parameter(help="A preset; `cachesim list presets`.")] = "hybrid",
    examples: Annotated[int | None, Parameter(help="At most this many workloads.")] = None,
    minutes: Annotated[float | None, Parameter(help="At most this many minutes.")] = None,
    seed: Annotated[int, Parameter(help="Another seed plays other workloads.")] = 0,
    arithmetic: Annotated[ArithmeticName, Parameter(help="ring is fast, float is real.")] = "ring",
    against: Annotated[
        str | None, Parameter(help="A second profile on the same workloads.")
    ] = None,
    jobs: Annotated[int | None, Parameter(help="Processes; all processors if left out.")] = None,
    dask: Annotated[
        str | None, Parameter(help="A Dask scheduler's address, or a number of workers here.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Parameter("--set", negative="", help="A flag of every server, as in cache_reuse=0."),
    ] = None,
    emit: Annotated[Path | None, Parameter(help="Where counterexamples are written.")] = None,
    everything: Annotated[
        bool,
        Parameter("--all", negative="", help="Continue past findings, and group them by cause."),
    ] = False,
    find: Annotated[
        Find,
        Parameter(
            help="wrong: wrong answers and crashes; lost: reuse lost although states were there."
        ),
    ] = "wrong",
    require: Annotated[
        list[str] | None,
        Parameter(negative="", help=f"Fail unless exercised; one of {', '.join(WORDS)}."),
    ] = None,
) -> int:
    """Search random workloads for an answer that differs from the cold answer.

    Example: cachesim check llama.cpp@b11549+erase-equal --model hybrid --minutes 1
    """
    plan = Plan(
        profiles=tuple(map(Profile.parse, profiles)),
        against=None if against is None else Profile.parse(against),
        model=model,
        examples=many(examples, minutes),
        minutes=minutes,
        seed=seed,
        arithmetic=arithmetic,
        shape=shape_for(settings or (), goes_on=everything or find == "lost"),
        jobs=workers_for(jobs),
        emit=emit,
        require=frozenset(require or ()),
        find=find,
        everything=everything,
        dask=dask,
    )
    return _carried_out(plan)


def shape_for(settings: Sequence[str], *, goes_on: bool) -> Shape:
    """What happens in workloads: a search that continues past findings tries everything."""
    fixed = dict(map(setting, settings))
    return Shape(fixed=fixed, incidents=goes_on, chats=goes_on, cancels=not goes_on)


def _carried_out(plan: Plan) -> int:
    status = AS_EXPECTED
    if plan.against is not None:
        for profile in plan.profiles:
            status |= _compare(profile, plan.against, plan)
        return status
    with _hands(plan) as hands:  # begin once for all profiles
        for profile in plan.profiles:
            status |= (_survey if plan.goes_on else _search)(profile, plan, hands)
    return status


def _search(profile: Profile, plan: Plan, hands: Hands) -> int:
    pool, count = hands
    search_with = search if pool is None else partial(search_by, pool, count)
    with bar(f"{profile} {plan.model}") as advance:
        budget = Budget(plan.minutes)

        def going(report: Report) -> bool:
            report.rate = budget.rate(report.workloads)
            advance(report.workloads, report.requests)
            return budget.left()

        report = search_with(profile, plan.model, **plan.how, going=going)
        if report.counterexample is None:  # else time went into making it small
            report.rate = budget.rate(report.workloads)
    return tell_search(report, plan)


def _survey(profile: Profile, plan: Plan, hands: Hands) -> int:
    pool, count = hands
    budget = Budget(plan.minutes)
    with bar(f"{profile} {plan.model}") as advance:

        def going(report: Report) -> bool:
            advance(report.workloads, report.requests)
            return budget.left()

        how = {**plan.how, "find": plan.find, "going": going}
        if pool is None:
            found = survey(profile, plan.model, **how)
        else:
            found = survey_by(pool, profile, plan.model, ahead=2 * count, **how)
        found.report.rate = budget.rate(found.report.workloads)
        order = [cause for cause, _ in found.counts.most_common()]
        shrunk = partial(made_small, profile=profile, arithmetic=plan.arithmetic, find=plan.find)
        do = map if pool is None else pool.map
        smallest = list(do(shrunk, order, [found.first[each] for each in order]))
    return tell_survey(found, dict(zip(order, smallest, strict=True)), plan)


@contextmanager
def _hands(plan: Plan) -> Iterator[Hands]:
    """Whoever searches: this process alone, several where that is asked for and pays, a cluster."""
    if plan.dask is not None:
        with crew(plan.dask) as found:
            yield found
        return
    count = min(plan.jobs, -(-plan.examples // CHUNK))
    if count == 1:
        yield None, 1
        return
    with processes(count) as pool:
        yield pool, count


def _compare(one: Profile, other: Profile, plan: Plan) -> int:
    budget = Budget(plan.minutes)
    with bar(f"{one} against {other}, {plan.model}") as advance:

        def going(found: Comparison) -> bool:
            advance(found.workloads, found.requests)
            return budget.left()

        found = compare(one, other, plan.model, **plan.how, going=going)
    return tell_comparison(found)
