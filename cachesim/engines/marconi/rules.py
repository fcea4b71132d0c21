"""What the artifact does that the paper does not say, as data; the defaults are the paper's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One field per difference."""

    descends_partial: bool = False
    """The match goes on among the children of an edge that it matches only in part, and reports
    their tokens as reusable."""

    bytes_of_last_candidate: bool = False
    """The bytes of an evicted leaf are counted with the tokens of the last candidate."""

    mlp_less_attention: bool = False
    """What a node saves of the MLPs is reduced by the attention of its parent's tokens."""


ARTIFACT = Rules(descends_partial=True, bytes_of_last_candidate=True, mlp_less_attention=True)
PAPER = Rules()
