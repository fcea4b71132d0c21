"""The scripts that write the documentation are no package: their folder goes on the path."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

SITE = "CACHESIM_SITE"
"""An environment variable: the folder of a site that `tests.site_pages` has built."""


@pytest.fixture
def site() -> Path:
    """The built site; without one the test is skipped."""
    if SITE not in os.environ:
        pytest.skip("make check builds the site, and runs this")
    return Path(os.environ[SITE])
