"""What differs between releases of vllm-mlx, and between its three schedulers."""

from dataclasses import dataclass

from cachesim.engines.mlx_lm.rules import PrefixCacheRules


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules(PrefixCacheRules):
    """Entries of whole prompts and replies, found among sorted keys."""

    least: int = 128  # tokens of a prompt, an entry or a match that are worth it
    most: int = 1000  # entries
    refresh: int = 4096  # tokens beyond a hit without which no further state is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class MllmRules(MemoryRules):
    """For a model that reads images, which has a scheduler of its own."""

    pixels: int = 100  # prepared prompts with images
    sorts_images: bool = True  # their keys have the images in the order of their hashes
    reads_media: bool = False
    """Until 0.5.0 (#718) prompts with images are looked up and stored, by placeholders alone."""

    keeps_logits: bool = True
    """Since 0.6.0 a state that cannot be cut is stored after a prompt, with its logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRules(MemoryRules):
    """For a model that reads images, without `--continuous-batching`: the default."""

    least: int = 0
    most: int = 50
