"""The Python files of an unpacked release, and a GPU that only has a name, for tests of vLLM."""

import os
from pathlib import Path

from cachesim.prove.vllm.release_worker import install


def pytest_configure() -> None:
    """Install them before pytest imports a test, which imports vLLM."""
    install(Path(os.environ["VLLM_FILES"]))
