"""What differs between releases of oMLX."""

from dataclasses import dataclass

from cachesim.engines.mlx_lm.rules import PrefixCacheRules


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRules(PrefixCacheRules):
    """Blocks of a prompt, at whose ends the states of its layers are kept."""

    interval: int  # tokens of a block
    captures: bool = True  # omlx#3699: no state of a prompt is kept where layers have states
    fewest_arrays: int = 1  # omlx#2762: a layer's state of fewer arrays is a placeholder
