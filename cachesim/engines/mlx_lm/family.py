"""`Family` value of mlx-lm's server."""

from dataclasses import replace
from typing import Final

from cachesim.engines.family import Family, Patch, laying
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import FIELDS, MlxOptions
from cachesim.engines.mlx_lm.releases import HISTORY, RELEASES
from cachesim.engines.mlx_lm.rules import (
    UNLISTED,
    DiskRules,
    GridRules,
    MemoryRules,
    MllmRules,
    MlxRules,
    RapidRules,
    SessionRules,
    WholeRules,
)

_OMLX: Final = GridRules(interval=2048, fewest_arrays=2, on_disk=True)
_OLLAMA: Final = GridRules(interval=8192, before_end=4, keeps_the_end=True)

_KIT: Final = SessionRules(before_end=0, counts_by_offset=False, asks_again=False)

SERVERS: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="omlx",
        server=True,
        about="oMLX's prefix cache, read in its source: blocks of 2,048, one request at once",
        fits=("0.31.3",),
        lay=laying(server={"grid": _OMLX}),
    ),
    Patch(
        name="omlx-2762",
        server=True,
        about="the same, where a state of one array is stored (jundot/omlx#2762)",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, fewest_arrays=1)}),
    ),
    Patch(
        name="omlx-4096",
        server=True,
        about="the same on 64 GB and more: blocks of 4,096",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, interval=4096)}),
    ),
    Patch(
        name="omlx-no-boundaries",
        server=True,
        about="that, without states at the ends of blocks (omlx#3699)",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, interval=4096, captures=False)}),
    ),
    Patch(
        name="vllm-mlx",
        server=True,
        about="vllm-mlx 0.6.0's scheduler and prefix cache, one request at once",
        fits=("0.31.3",),
        lay=laying(server={"memory": MemoryRules()}),
    ),
    Patch(
        name="vllm-mlx-mllm",
        server=True,
        about="its other scheduler, of a model that reads images: only prompts of text are kept",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules()}),
    ),
    Patch(
        name="vllm-mlx-718",
        server=True,
        about="the same of vllm-mlx 0.5.0, whose keys have one token for all images (#718)",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules(reads_media=True, keeps_logits=False)}),
    ),
    Patch(
        name="vllm-mlx-order",
        server=True,
        about="vllm-mlx-mllm with its fork's keys: images in the prompt's order (Rapid-MLX#22)",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules(sorts_images=False)}),
    ),
    Patch(
        name="vllm-mlx-whole",
        server=True,
        about="vllm-mlx 0.6.0's default engine, of a model that reads images: whole prompts alone",
        fits=("0.31.3",),
        lay=laying(server={"memory": WholeRules()}),
    ),
    Patch(
        name="rapid-mlx",
        server=True,
        about="Rapid-MLX 0.12.5's scheduler and prefix cache for hybrids that it lists, the same",
        fits=("0.31.3",),
        lay=laying(server={"memory": RapidRules()}),
    ),
    Patch(
        name="rapid-mlx-unlisted",
        server=True,
        about="the same for every other model: no entry that cannot be cut is stored",
        fits=("0.31.3",),
        lay=laying(server={"memory": UNLISTED}),
    ),
    Patch(
        name="ollama",
        server=True,
        about="the prefix cache of Ollama's MLX runner with a drafter, read in its source",
        fits=("0.32.2",),
        lay=laying(server={"grid": replace(_OLLAMA, lookahead=1)}),
    ),
    Patch(
        name="ollama-no-drafter",
        server=True,
        about="the same without a drafter",
        fits=("0.32.2",),
        lay=laying(server={"grid": _OLLAMA}),
    ),
    Patch(
        name="ollama-lazy",
        server=True,
        about="until 0.32.6: appends overwrite kept keys (ollama#16860)",
        fits=("0.32.2",),
        lay=laying(server={"grid": replace(_OLLAMA, lazy=True)}),
    ),
    Patch(
        name="mlx-engine",
        server=True,
        about="LM Studio's mlx-engine, read in its source: a state before a prompt's end",
        fits=("0.31.3",),
        lay=laying(server={"grid": SessionRules()}),
    ),
    Patch(
        name="mlx-engine-batched",
        server=True,
        about="its kit for several requests: no such state",
        fits=("0.31.3",),
        lay=laying(server={"grid": _KIT}),
    ),
    Patch(
        name="mlx-engine-disk",
        server=True,
        about="that kit since #352, July 2026, one request at once: chunks on disk",
        fits=("0.31.3",),
        lay=laying(server={"grid": DiskRules()}),
    ),
    Patch(
        name="mlx-engine-disk-4096",
        server=True,
        about="the same, limited to the bytes of a context of 4,096",
        fits=("0.31.3",),
        lay=laying(server={"grid": DiskRules(max_kv_size=4096)}),
    ),
)
"""Other servers over mlx-lm's caches."""


FAMILY: Final[Family[MlxRules, MlxOptions]] = Family(
    name="mlx-lm",
    about="mlx_lm.server: prompt trie, cache classes per layer, batches",
    repository="ml-explore/mlx-lm",
    serves_models=lambda rules: rules.server.grid is None and rules.server.memory is None,
    takes_images=True,
    vocabulary="mlx lru arrays batch rotating chunked deep granite gemma trim metal",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server.engine:MlxLm",
    releases=RELEASES,
    patches=(*HISTORY.patches, *SERVERS),
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
