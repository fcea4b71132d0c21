"""Profiles for the property tests, and which tests run where: `tests` and `conformance/tests`.

The profile is `ci` by default, with the same examples every time; `HYPOTHESIS_PROFILE=dev` draws
others each time, `nightly` many.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from cachesim.prove.environment import EnvironmentUnavailableError

pytest.register_assert_rewrite("tests.fixtures", "tests.engines.seen_kit")

WORKBENCH = str(Path(__file__).parent / "conformance") + os.sep

settings.register_profile(
    "dev", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=60, derandomize=True)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests for `make check` and `make nightly`.

    Of a `sampled(n)` test all cases but the last in every n are for `make nightly`.

    Of the thorough tests that need no real engine, `make check` runs a third. The choice depends on
    a test's name alone, so that a new test changes nothing for the others.
    """
    cases: Counter[str] = Counter()
    for item in reversed(items):
        if sampled := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % sampled.args[0]:
                item.add_marker(pytest.mark.thorough)
                item.add_marker(pytest.mark.nightly)
            cases[test] += 1
    for item in items:
        if str(item.path).startswith(WORKBENCH):
            item.add_marker(pytest.mark.workbench)
        alone = item.get_closest_marker("thorough") and not item.get_closest_marker("wheel")
        if alone and crc32(item.nodeid.encode()) % 3:
            item.add_marker(pytest.mark.nightly)


def pytest_collection_finish() -> None:
    """Collect less often: thousands of tests and modules stay, and looking at them took a tenth."""
    # Not `gc.freeze()`: with the lowest Hypothesis, a test that draws data then counts as flaky.
    gc.set_threshold(5_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a wheel test whose environment is not there."""
    try:
        return (yield)
    except EnvironmentUnavailableError as error:
        if item.get_closest_marker("wheel"):
            pytest.skip(str(error))
        raise
