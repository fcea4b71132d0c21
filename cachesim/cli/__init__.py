"""The command line: how runs are printed, and what its exit status means."""

from typing import Final, Literal, TypeAlias

Format: TypeAlias = Literal["text", "json", "jsonl"]
"""Output format of runs."""

AS_EXPECTED: Final = 0
NOT_AS_EXPECTED: Final = 1
WRONG_USAGE: Final = 2
BROKEN_CONTRACT: Final = 3
INTERRUPTED: Final = 130


def version() -> str:
    """The version that is installed."""
    from importlib import metadata

    try:
        return metadata.version("cachesim")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0.1.0"
