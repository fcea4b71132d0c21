"""Events of Marconi's tree."""

from cachesim.engines.events import Event, event
from cachesim.units import Count


@event("plain")
class PrefixMatched(Event):
    """nodes of {cached} tokens match to their end; {agreed} tokens match"""

    cached: Count
    agreed: Count


@event("gain")
class BranchSaved(Event):
    """a state is saved where two prompts diverge, after {tokens} tokens"""

    tokens: Count


@event("gain")
class SequenceKept(Event):
    """the tree keeps {tokens} tokens and a state after them"""

    tokens: Count


@event("loss")
class NodeEvicted(Event):
    """a leaf is evicted: {own} of {tokens} tokens"""

    tokens: Count
    own: Count

    @property
    def for_bytes(self) -> bool:
        return True


@event("loss")
class StateEvicted(Event):
    """the state after {tokens} tokens is evicted"""

    tokens: Count

    @property
    def for_bytes(self) -> bool:
        return True
