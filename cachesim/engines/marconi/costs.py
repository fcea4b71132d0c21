"""Operations that a prefix saves, and bytes that it holds. Follows the artifact's `utils.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.engines.marconi.options import MarconiOptions


@dataclass(frozen=True, slots=True)
class Costs:
    """The sums for one model, over all layers of a kind, in half precision."""

    options: MarconiOptions

    def attention(self, tokens: int) -> int:
        """Operations of the attention layers for so many tokens."""
        d = self.options.d
        return self.options.num_attn_layers * (8 * tokens * d**2 + 4 * tokens**2 * d)

    def mlp(self, tokens: int) -> int:
        """Operations of the MLPs."""
        return self.options.num_mlp_layers * 16 * tokens * self.options.d**2

    def recurrent(self, tokens: int) -> int:
        """Operations of the recurrent layers."""
        d, n = self.options.d, self.options.n
        one = 12 * tokens * d**2 + 16 * tokens * d * n + 10 * tokens * d
        return self.options.num_ssm_layers * one

    def saved(self, tokens: int) -> int:
        """All of them: what a hit of so many tokens saves."""
        return self.recurrent(tokens) + self.attention(tokens) + self.mlp(tokens)

    def keys_bytes(self, tokens: int) -> int:
        """Keys and values."""
        return self.options.num_attn_layers * 2 * tokens * self.options.d * 2

    def state_bytes(self) -> int:
        """One state: that of the scan, and that of the convolution (kernel 4, expansion 2)."""
        d, n = self.options.d, self.options.n
        return self.options.num_ssm_layers * (d * n * 2 + (2 * d + 2 * n) * 4 * 2)


def normalised(values: Sequence[float]) -> list[float]:
    """Between the least, 0, and the most, 1; all 1 where there is no difference."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if len(values) < 2 or low == high:
        return [1.0] * len(values)
    return [(value - low) / (high - low) for value in values]
