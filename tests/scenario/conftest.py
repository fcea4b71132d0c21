"""A fake engine family for the tests of everything around engines."""

from collections.abc import Iterator

import pytest

from cachesim.engines.family import FAMILIES, register
from tests.fake.family import FAKE


@pytest.fixture(autouse=True)
def fake_family() -> Iterator[None]:
    register(FAKE)
    yield
    del FAMILIES["fake"]
