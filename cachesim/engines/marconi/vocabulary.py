"""Events of Marconi's tree, and its causes of lost reuse."""

from typing import Final

from cachesim.engines.causes import NO_STATE, Cause, declared, last_computed
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


LAST_TOKEN: Final = last_computed(
    "The artifact has no such rule: `leaves_last_token` false is its accounting."
)
NOT_KEPT: Final = Cause(
    id="not-kept",
    sentence="the tree has {found} of the {wanted} tokens that were computed",
    about="A node was evicted, or what was computed was never put into the tree.",
)
NO_STATE_YET: Final = Cause(
    id="no-state-yet",
    sentence=NO_STATE,
    about=(
        "States are saved where requests end and where requests diverge: the first request that "
        "diverges saves one, and later ones can use it."
    ),
)
FALSE_MATCH: Final = Cause(
    id="false-match",
    sentence="the match counts {answer} tokens, with nodes below an edge that does not match",
    about="A defect of the artifact: it continues among the children of a partly matched edge.",
)

CAUSES: Final = declared(globals())
