"""`Family` value of mlx-lm's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import FIELDS, MlxOptions
from cachesim.engines.mlx_lm.releases import HISTORY, RELEASES, REPOSITORY
from cachesim.engines.mlx_lm.rules import MlxRules

FAMILY: Final[Family[MlxRules, MlxOptions]] = Family(
    name="mlx-lm",
    about="mlx_lm.server: prompt trie, cache classes per layer, batches",
    repository=REPOSITORY,
    serves_models=lambda _: True,
    takes_images=True,
    vocabulary="mlx lru arrays batch rotating chunked deep granite gemma trim metal",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server.engine:MlxLm",
    releases=RELEASES,
    patches=HISTORY.patches,
    options=MlxOptions,
    fields=FIELDS,
    has_slots=False,
    renders_chats=True,
    check_model=family_of,
    plays_chunks=True,
    records_provenance="provenance",
    reply_cost=(7e-4, 6e-8),
    program="mlx_lm.server",
    swept={"prompt_cache_size": (1, 2, 5, 10, 20, 50, 100)},
)
