"""Rules of Marconi."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release, one field per difference."""

    descends_partial: bool = False
    """Match among the children of a partly matching edge, and report their tokens as reusable."""

    bytes_of_last_candidate: bool = False
    """Count the bytes of an evicted leaf with the tokens of the last candidate."""

    mlp_less_attention: bool = False
    """Subtract the attention FLOPs of the parent's tokens from the MLP FLOPs that a node saves."""


ARTIFACT = Rules(descends_partial=True, bytes_of_last_candidate=True, mlp_less_attention=True)
PAPER = Rules()
