"""Causes of lost reuse in Marconi."""

from typing import Final

from cachesim.engines.causes import NO_STATE, Cause, declared, last_computed

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
