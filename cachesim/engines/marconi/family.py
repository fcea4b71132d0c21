"""`Family` value of Marconi."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.releases import PATCHES, RELEASES
from cachesim.engines.marconi.rules import Rules

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
