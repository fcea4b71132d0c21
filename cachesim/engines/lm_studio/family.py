"""The `Family` of LM Studio's mlx-engine."""

from typing import Final

from cachesim.engines.family import READ, Family
from cachesim.engines.lm_studio.releases import PATCHES, RELEASES
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import SERVED_FIELDS, ServedOptions
from cachesim.engines.mlx_lm.rules import MlxRules

FAMILY: Final[Family[MlxRules, ServedOptions]] = Family(
    name="lm-studio",
    about="LM Studio's mlx-engine, for MLX models; for GGUF models it runs llama.cpp",
    repository="lmstudio-ai/mlx-engine",
    evidence=READ,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:LmStudio",
    releases=RELEASES,
    patches=PATCHES,
    options=ServedOptions,
    fields=SERVED_FIELDS,
    kin=("mlx-lm",),
    has_slots=False,
    renders_chats=True,
    check_model=family_of,
    plays_chunks=True,
    records_provenance="provenance",
    reply_cost=(7e-4, 6e-8),
)
