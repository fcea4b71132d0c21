"""A search by several processes: the workloads of `search`, its findings, its counts.

    [ 0 .. 24 ][ 25 .. 49 ][ 50 .. 74 ] ...     each goes to whoever is free

Reports are taken in the order of the workloads, so that the first finding is the same one
whichever process was the quickest.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar

from cachesim.engines.profile import Profile
from cachesim.testing.search import Report, search
from cachesim.testing.survey import Survey, survey

T = TypeVar("T")

CHUNK: Final = 25
"""Workloads that a process is given at once: a fraction of a second's work."""


def search_by(
    pool: Executor,
    ahead: int,
    profile: Profile,
    model: str,
    *,
    examples: int,
    going: Callable[[Report], bool] = lambda _: True,
    **how: Any,
) -> Report:
    """Search as `search` does, with so many chunks under way ahead of the one that is awaited."""
    report = Report(profile=profile, model=model)
    for part in _in_chunks(
        partial(search, profile, model, **how),
        examples,
        pool,
        ahead,
        lambda: report.counterexample is None and going(report),
    ):
        report.join(part)
    return report


def survey_by(
    pool: Executor,
    profile: Profile,
    model: str,
    *,
    examples: int,
    going: Callable[[Report], bool] = lambda _: True,
    ahead: int = 4,
    **how: Any,
) -> Survey:
    """Survey as `survey` does; the first workload of each cause is the same one."""
    found = Survey(report=Report(profile=profile, model=model))
    for part in _in_chunks(
        partial(survey, profile, model, **how), examples, pool, ahead, lambda: going(found.report)
    ):
        found.join(part)
    return found


def _in_chunks(
    play: Callable[..., T], examples: int, pool: Executor, ahead: int, going: Callable[[], bool]
) -> Iterator[T]:
    chunks = iter(range(0, examples, CHUNK))
    under_way: deque[Future[T]] = deque()
    while going():
        while len(under_way) <= ahead and (first := next(chunks, None)) is not None:
            count = min(CHUNK, examples - first)
            under_way.append(pool.submit(play, examples=count, first=first))
        if not under_way:
            break
        yield under_way.popleft().result()
    for left in under_way:
        left.cancel()
