"""What tools must know of Marconi."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.profiles import PATCHES, RELEASES
from cachesim.engines.marconi.rules import Rules

FAMILY: Final[Family[Rules, MarconiOptions]] = Family(
    name="marconi",
    about="Marconi: states where requests branch, evicted by what they save per byte",
    repository="ruipeterpan/marconi",
    room=__package__,
    engine=f"{__package__}.server:Marconi",
    releases=RELEASES,
    patches=PATCHES,
    options=MarconiOptions,
    has_slots=False,
    may_decline=False,
    exercised={
        "node-evicted": "eviction",
        "state-evicted": "eviction",
        "sequence-kept": "save",
    },
    describes_model=("num_ssm_layers", "num_attn_layers", "d", "n"),
)
