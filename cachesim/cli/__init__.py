"""The command line: printed runs and the exit status."""

from typing import Final, Literal, TypeAlias

Format: TypeAlias = Literal["text", "json", "jsonl"]
"""Output format of runs."""

AS_EXPECTED: Final = 0
NOT_AS_EXPECTED: Final = 1
WRONG_USAGE: Final = 2
BROKEN_CONTRACT: Final = 3
UNTESTED: Final = 4
"""Nothing failed, and nothing could have failed: what was to be tested was not there."""

INTERRUPTED: Final = 130


def version() -> str:
    """The installed version."""
    from importlib import metadata

    try:
        return metadata.version("cachesim")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0.1.0"
