"""What differs between releases of Ollama's MLX runner."""

from dataclasses import dataclass

from cachesim.engines.mlx_lm.rules import PrefixCacheRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules(PrefixCacheRules):
    """States of a prompt at fixed positions, where a match ended, and after a reply."""

    interval: int = 8192  # tokens between two of them
    before_end: int = 4  # another one, this many tokens before the prompt's end
    lookahead: int = 0  # with a drafter: a key names the token after its state, too
    lazy: bool = False  # until 0.32.6: what a later append overwrites is not copied
