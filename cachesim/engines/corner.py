"""Where a search goes on purpose: flags and habits of clients that an engine names together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corner:
    """A place where chance seldom leads a search: what each of these does alone is not enough."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    layers: frozenset[str] = frozenset()  # for models that have one of these; empty: for all
    window: int = 0  # of layers that have one; 0: the preset's own
    replies: int = 0  # tokens of the longest reply; 0: as everywhere
    steps: int = 0  # requests of the longest workload; 0: as everywhere
    crowd: bool = False  # most requests come together
