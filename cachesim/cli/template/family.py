"""What tools know of the engine: plain data, without an import of its server."""

from cachesim.engines.family import Family

from .options import Options
from .releases import RELEASES
from .rules import Rules

FAMILY: Family[Rules, Options] = Family(
    name="my-engine",
    about="a prefix cache: a state after each block of tokens, evicted by prompt",
    repository="me/my-engine",
    package=__package__,
    engine=f"{__package__}.server:Server",
    search=f"{__package__}.search:SEARCH",
    releases=RELEASES,
    options=Options,
    has_slots=False,
)
