"""What differs between models in Rapid-MLX, which comes from vllm-mlx."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.vllm_mlx.rules import MemoryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RapidRules(MemoryRules):
    """Prompts alone beside prompts with replies, and few states that cannot be cut."""

    least: int = 1
    uncut: int = 8  # --hybrid-cache-entries: entries that cannot be cut
    before_end: bool = True
    """A prompt that finds nothing is stored without its last token: for a model that Rapid-MLX
    lists as a hybrid, with `uncut` (`non_trimmable_exact_prefix_reuse`)."""


UNLISTED: Final = RapidRules(uncut=0, before_end=False)
"""For a model that it does not list as a hybrid."""
