"""The published artifact, the policy of the paper, and patches of cachesim."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
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
