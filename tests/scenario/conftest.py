"""A fake engine family for the tests of everything around engines."""

from collections.abc import Iterator

import pytest

from cachesim.engines.base import Engine
from tests.scenario.fake_server import FakeServer


@pytest.fixture(autouse=True)
def fake_family() -> Iterator[None]:
    Engine.families["fake"] = FakeServer
    yield
    del Engine.families["fake"]
