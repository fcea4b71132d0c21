"""`Family` value of Marconi."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.family import Family, Patch, Release, Scope, laying
from cachesim.engines.marconi.options import MarconiOptions


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


RELEASES: Final = (
    Release(
        name="artifact",
        about="the published simulator, with its own accounting",
        rules=ARTIFACT,
        date="2025-05-12",
        upstream="ruipeterpan/marconi",
    ),
    Release(
        name="paper",
        about="the policy with a strict match, and one token left to compute",
        rules=PAPER,
        date="2025-05-12",
        upstream="arXiv:2411.19379",
    ),
)

PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="strict-match",
        about="a match ends where an edge does not match to its end",
        fits=("artifact",),
        lay=laying(descends_partial=False),
    ),
    Patch(
        name="own-bytes",
        about="an evicted leaf is counted with its own tokens",
        fits=("artifact",),
        lay=laying(bytes_of_last_candidate=False),
    ),
    Patch(
        name="own-operations",
        about="what is saved of the MLPs is counted against the MLPs",
        fits=("artifact",),
        lay=laying(mlp_less_attention=False),
    ),
)


FAMILY: Final[Family[Rules, MarconiOptions]] = Family(
    name="marconi",
    about="Marconi: states where requests branch, evicted by what they save per byte",
    repository="ruipeterpan/marconi",
    package=__package__,
    engine=f"{__package__}.server:Marconi",
    releases=RELEASES,
    scopes=(Scope(flags={"capacity_bytes": 100_000_000}, lengths=(1, 4, 5)),),
    patches=PATCHES,
    options=MarconiOptions,
    has_slots=False,
    may_decline=False,
    exercised={"node-evicted": "eviction", "state-evicted": "eviction", "sequence-kept": "save"},
    describes_model=("num_ssm_layers", "num_attn_layers", "d", "n"),
)
