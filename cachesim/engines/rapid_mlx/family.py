"""The `Family` of Rapid-MLX."""

from typing import Final

from cachesim.engines.family import BESIDE_CLASSES, Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import SERVED_FIELDS, ServedOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.rapid_mlx.releases import PATCHES, RELEASES

FAMILY: Final[Family[MlxRules, ServedOptions]] = Family(
    name="rapid-mlx",
    about="Rapid-MLX: prompts beside prompts with replies, and few states that cannot be cut",
    repository="raullenchai/Rapid-MLX",
    evidence=BESIDE_CLASSES,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:RapidMlx",
    releases=RELEASES,
    patches=PATCHES,
    options=ServedOptions,
    fields=SERVED_FIELDS,
    kin=("mlx-lm", "vllm-mlx"),
    has_slots=False,
    renders_chats=True,
    check_model=family_of,
    plays_chunks=True,
    records_provenance="provenance",
    reply_cost=(7e-4, 6e-8),
)
