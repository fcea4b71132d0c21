"""What tools must know of mlx-lm's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import FIELDS, MlxOptions
from cachesim.engines.mlx_lm.profiles import PATCHES, RELEASES, MlxRules

FAMILY: Final[Family[MlxRules, MlxOptions]] = Family(
    name="mlx-lm",
    about="mlx_lm.server: prompt trie, cache classes per layer, batches",
    repository="ml-explore/mlx-lm",
    room=__package__,
    engine=f"{__package__}.engine:MlxLm",
    releases=RELEASES,
    patches=PATCHES,
    options=MlxOptions,
    fields=FIELDS,
    has_slots=False,
    may_decline=False,
    renders_chats=True,
    check_model=family_of,
    records_provenance="provenance",
    asks={"seed": 0},
    exercised={
        "prompt-cache-evicted": "eviction",
        "store-trimmed": "eviction",
        "insertion": "save",
        "worker-died": "worker death",
    },
)
