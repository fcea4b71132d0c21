"""A search by several processes: the workloads of `search`, its findings, its counts.

    [ 0 .. 24 ][ 25 .. 49 ][ 50 .. 74 ] ...     each goes to whoever is free

Reports are taken in the order of the workloads, so that the first finding is the same one
whichever process was the quickest.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Final

from cachesim.engines.profile import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.testing.search import Report, search
from cachesim.testing.survey import Find, Survey, survey
from cachesim.testing.workloads import DEFAULT, Shape

CHUNK: Final = 25
"""Workloads that a process is given at once: a fraction of a second's work."""


def search_by(
    pool: Executor,
    ahead: int,
    profile: Profile,
    model: str,
    *,
    examples: int,
    seed: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    going: Callable[[Report], bool] = lambda _: True,
) -> Report:
    """Search as `search` does, with so many chunks under way ahead of the one that is awaited."""
    report = Report(profile=profile, model=model)
    chunks = _chunks(examples)
    under_way: deque[Future[Report]] = deque()
    while report.counterexample is None and going(report):
        while len(under_way) <= ahead and (chunk := next(chunks, None)) is not None:
            under_way.append(
                pool.submit(
                    search,
                    profile,
                    model,
                    examples=len(chunk),
                    seed=seed,
                    first=chunk.start,
                    arithmetic=arithmetic,
                    shape=shape,
                )
            )
        if not under_way:
            break
        report.join(under_way.popleft().result())
    for left in under_way:
        left.cancel()
    return report


def _chunks(examples: int) -> Iterator[range]:
    for first in range(0, examples, CHUNK):
        yield range(first, min(first + CHUNK, examples))


def survey_by(
    pool: Executor,
    profile: Profile,
    model: str,
    *,
    examples: int,
    find: Find = "wrong",
    going: Callable[[Report], bool] = lambda _: True,
    ahead: int = 4,
    **how: Any,
) -> Survey:
    """Survey as `survey` does; the first workload of each cause is the same one."""
    found = Survey(report=Report(profile=profile, model=model))
    chunks, under_way = _chunks(examples), deque[Future[Survey]]()
    while going(found.report):
        while len(under_way) <= ahead and (chunk := next(chunks, None)) is not None:
            part = {"examples": len(chunk), "first": chunk.start, "find": find, **how}
            under_way.append(pool.submit(survey, profile, model, **part))
        if not under_way:
            break
        found.join(under_way.popleft().result())
    for left in under_way:
        left.cancel()
    return found
