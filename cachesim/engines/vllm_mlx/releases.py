"""Releases of vllm-mlx, and what differs between its servers, as patches."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.vllm_mlx.rules import MemoryRules, MllmRules, WholeRules

BENEATH: Final = "0.31.3"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("0.5.0", "0.6.0")

RELEASES: Final = (
    Release(
        name="0.5.0",
        about="the scheduler of models that read images: one token for all images (#718)",
        rules=serving(BENEATH, prefix_cache=MllmRules(reads_media=True, keeps_logits=False)),
        upstream="v0.5.0",
    ),
    Release(
        name="0.6.0",
        about="the scheduler of other models: a prompt with its reply, or its first token",
        rules=serving(BENEATH, prefix_cache=MemoryRules()),
        upstream="v0.6.0",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="mllm",
        server=True,
        about="the scheduler of a model that reads images: only prompts of text are kept",
        fits=("0.6.0",),
        lay=laying(server={"prefix_cache": MllmRules()}),
    ),
    Patch(
        name="order",
        server=True,
        about="that, with its fork's keys: images in the prompt's order (Rapid-MLX#22)",
        fits=("0.6.0",),
        lay=laying(server={"prefix_cache": MllmRules(sorts_images=False)}),
    ),
    Patch(
        name="whole",
        server=True,
        about="the default engine of a model that reads images: only whole prompts match",
        fits=("0.6.0",),
        lay=laying(server={"prefix_cache": WholeRules()}),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
