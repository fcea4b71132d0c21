"""The `Family` of vllm-mlx."""

from typing import Final

from cachesim.engines.family import BESIDE_CLASSES, Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import SERVED_FIELDS, ServedOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.vllm_mlx.releases import PATCHES, RELEASES

FAMILY: Final[Family[MlxRules, ServedOptions]] = Family(
    name="vllm-mlx",
    about="vllm-mlx: whole prompts and replies among sorted keys; one request at once",
    repository="waybarrios/vllm-mlx",
    evidence=BESIDE_CLASSES,
    takes_images=True,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:VllmMlx",
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
