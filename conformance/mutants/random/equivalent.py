"""Mutants that change nothing, each with the reason."""

import tomllib
from pathlib import Path
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str, str, str, str, str]


def _all() -> dict[Key, str]:
    file = Path(__file__).with_name("equivalent.toml")
    entries = tomllib.loads(file.read_text()).get("mutant", []) if file.exists() else []
    return {
        (entry["file"], entry["function"], entry["source"], entry["old"], entry["new"]): entry[
            "why"
        ]
        for entry in entries
    }


EQUIVALENT: Final = _all()
"""By file, function, source line, what stands there and what takes its place."""
