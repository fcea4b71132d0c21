"""`Family` value of Marconi."""

from typing import Final

from cachesim.engines.family import Family, Patch, Release, laying
from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.rules import ARTIFACT, PAPER, Rules

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
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:Marconi",
    releases=RELEASES,
    patches=PATCHES,
    options=MarconiOptions,
    has_slots=False,
    describes_model=("num_ssm_layers", "num_attn_layers", "d", "n"),
)
