"""The Python files of a release of vLLM, and the packages that they import."""

import re
from typing import Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.prove.environment import Environment, UnpackedWheel, package_of

PACKAGES: Final = Environment(
    name="vllm-beside",
    requirements=(
        "torch==2.13.0+cpu", "transformers==5.17.0", "numpy", "pydantic==2.14.3", "aiohttp",
        "cachetools", "cbor2", "cloudpickle", "einops", "fastapi", "jsonschema", "mcp",
        "msgspec", "openai", "openai-harmony", "orjson", "oss-harmony", "pillow",
        "prometheus_client", "protobuf", "psutil", "pybase64", "python-json-logger", "pyzmq",
        "regex", "requests", "scipy", "sentencepiece", "six", "tiktoken",
    ),
)  # fmt: skip
"""Imports of every release's configuration, scheduler and model runner; any build of
torch will do."""

KEPT: Final = re.compile(r"vllm/.*\.py")
"""The files that are unpacked: no compiled code."""

PART: Final = "python"


def files_of(release: str) -> UnpackedWheel:
    """A release's files, in the folder that the comparisons with its scheduler use."""
    name, package = package_of(FAMILY, release)
    return UnpackedWheel(
        name=f"{FAMILY.name}-{name}-{PART}",
        requirements=package.requirements,
        kept=KEPT,
        packages=PACKAGES,
    )
