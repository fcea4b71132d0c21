"""Events of Marconi's tree."""

from dataclasses import dataclass

from cachesim.engines.events import Event
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched(
    Event, tone="plain", says="nodes of {cached} tokens match to their end; {agreed} tokens match"
):
    """A request was looked up."""

    cached: Count
    agreed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSaved(
    Event, tone="gain", says="a state is saved where two prompts diverge, after {tokens} tokens"
):
    """An edge was divided, and got a state."""

    tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceKept(
    Event, tone="gain", says="the tree keeps {tokens} tokens and a state after them"
):
    """A request with its reply went into the tree."""

    tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvicted(Event, tone="loss", says="a leaf is evicted: {own} of {tokens} tokens"):
    """A leaf went, with keys and state."""

    tokens: Count
    own: Count

    @property
    def for_bytes(self) -> bool:
        """`capacity_bytes` decided it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvicted(Event, tone="loss", says="the state after {tokens} tokens is evicted"):
    """An inner node lost its state and became one with its child."""

    tokens: Count

    @property
    def for_bytes(self) -> bool:
        """`capacity_bytes` decided it."""
        return True
