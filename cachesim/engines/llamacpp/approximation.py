"""Values that a server knowingly keeps from another context."""

from dataclasses import dataclass

from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximation:
    """From which token on the memory knowingly holds values of another context, and why."""

    start: Count
    why: str  # "context-shift" or "chunk-reuse"
