"""Environments of real caches: an unpacked wheel, and the packages that it imports."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from cachesim.prove.environment import Environment, EnvironmentUnavailableError, UnpackedWheel
from conformance.real.vllm.scheduler import PACKAGES

TORCH: Final = Environment(
    name="foreign-torch",
    requirements=(
        *("torch==2.13.0+cpu", "transformers==5.17.0", "numpy", "hypothesis", "cattrs", "rich"),
        *("cyclopts", "msgspec", "pyyaml", "psutil", "redis", "sortedcontainers", "xxhash"),
        *("blake3", "aiofile", "aiofiles", "aiohttp", "pyzmq", "prometheus_client", "safetensors"),
        *("requests", "cbor2", "cachetools", "numba", "cryptography", "httpx", "py-cpuinfo"),
        *("opentelemetry-api", "opentelemetry-sdk"),
    ),
)
"""PyTorch's CPU build, and what caches on it import."""

MLX: Final = Environment(
    name="mlx-prefix-caches",
    requirements=(
        *("mlx[cpu]", "mlx-lm==0.31.3", "numpy", "hypothesis", "cattrs", "rich", "cyclopts"),
        *("psutil", "requests"),
    ),
)
"""mlx on the CPU."""


VLLM: Final = Environment(
    name="foreign-vllm-beside",
    requirements=(*PACKAGES.requirements, "hypothesis", "cattrs", "rich", "cyclopts"),
)
"""Imports of vLLM's own Python."""


BOTH: Final = Environment(
    name="foreign-lmcache-vllm",
    requirements=(*dict.fromkeys((*PACKAGES.requirements, *TORCH.requirements)),),
)
"""Imports of LMCache and vLLM, for LMCache's connector of vLLM."""


def wheel(project: str, version: str, package: str, packages: Environment = TORCH) -> UnpackedWheel:
    """A release's own files, beside the packages that it imports."""
    return UnpackedWheel(
        name=f"foreign-{project}-{version}",
        requirements=(f"{project}=={version}",),
        kept=re.compile(rf"{package}/.*"),
        packages=packages,
    )


def inside(cache: UnpackedWheel, module: str, *given: str | UnpackedWheel) -> None:
    """Run a module with a wheel's files in its environment; skip loudly without them.

    Of further wheels the module is given the folders.
    """
    try:
        python = cache.ready()
        for each in given:
            if isinstance(each, UnpackedWheel):
                each.ready()
    except EnvironmentUnavailableError as error:
        sys.exit(f"SKIPPED: {error}")
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join((str(cache.folder), str(root)))
    words = [str(each.folder) if isinstance(each, UnpackedWheel) else each for each in given]
    variables = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    command = [str(python), "-m", module, *words]
    if status := subprocess.run(command, check=False, env=variables).returncode:
        sys.exit(status)
