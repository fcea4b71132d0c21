"""The site that tests read where it is built."""

import os
from pathlib import Path

import pytest

SITE = "CACHESIM_SITE"
"""An environment variable: the folder of a site that `conformance.site_pages` has built."""


@pytest.fixture
def site() -> Path:
    if SITE not in os.environ:
        pytest.skip("make check builds the site, and runs this")
    return Path(os.environ[SITE])
