"""The command line."""

from typing import Literal, TypeAlias

Format: TypeAlias = Literal["text", "json", "jsonl"]
"""How runs are printed."""


def version() -> str:
    """The version that is installed."""
    from importlib import metadata

    try:
        return metadata.version("cachesim")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0.1.0"
