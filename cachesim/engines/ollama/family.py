"""The `Family` of Ollama's MLX runner."""

from typing import Final

from cachesim.engines.family import READ, Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import SERVED_FIELDS, ServedOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.ollama.releases import PATCHES, RELEASES

FAMILY: Final[Family[MlxRules, ServedOptions]] = Family(
    name="ollama",
    about="Ollama's MLX runner: a prefix trie with states on a grid; see ollama-runner for 0.24",
    repository="ollama/ollama",
    evidence=READ,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:OllamaMlx",
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
