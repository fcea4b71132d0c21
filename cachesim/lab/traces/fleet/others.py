"""Replicas that differ from the others of their fleet: another server, or another size.

2:num_gpu_blocks_override=150                replica 2 has a smaller pool
4-7:sglang@0.5.23,max_total_tokens=32000     four replicas are another server, with its own flags
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.lab.traces.fleet.router import RouterError

FORM: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?:(.+)")


@dataclass(frozen=True, slots=True)
class Other:
    """Replicas with a profile or flags of their own."""

    first: int
    last: int
    profile: str  # empty: that of the fleet, whose flags hold too
    options: tuple[tuple[str, Any], ...]
    text: str  # as a user writes it

    @property
    def numbers(self) -> range:
        """The replicas."""
        return range(self.first, self.last + 1)


def others_of(texts: Sequence[str], replicas: int) -> tuple[Other, ...]:
    """Replicas that differ; each is named once."""
    found: list[Other] = []
    for text in texts:
        read = FORM.fullmatch(text)
        if read is None:
            msg = (
                f"replica {text!r} cannot be read; write 2:num_gpu_blocks_override=150 or "
                "4-7:sglang@0.5.23,max_total_tokens=32000"
            )
            raise RouterError(msg)
        first, last = int(read[1]), int(read[2] or read[1])
        if not first <= last < replicas:
            msg = f"replica {text!r}: replicas are 0 to {replicas - 1}, the lower number first"
            raise RouterError(msg)
        parts = [part.strip() for part in read[3].split(",")]
        profile = "" if "=" in parts[0] else parts.pop(0)
        other = Other(first, last, profile, tuple(_flag(text, each) for each in parts), text)
        for before in found:
            if twice := set(before.numbers) & set(other.numbers):
                msg = f"replica {min(twice)} is in {before.text!r} and in {text!r}; name it once"
                raise RouterError(msg)
        found.append(other)
    return tuple(found)


def _flag(text: str, flag: str) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in flag.partition("="))
    if not name.isidentifier() or not value:
        msg = f"replica {text!r}: {flag!r} is no flag; write NAME=VALUE"
        raise RouterError(msg)
    try:
        return name, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return name, value  # a shell takes the quotes of a string away
