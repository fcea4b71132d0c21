"""The gated MLP: down(act(gate(x)) * up(x))."""

from dataclasses import dataclass

import numpy as np

from cachesim.model.layers.norm import ACTIVATIONS, rms_norm
from cachesim.model.layers.run import InAndOut, Run
from cachesim.model.layers.tiles import Matrix, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import Weights, mlp_norm_name
from cachesim.units import Array


@dataclass(frozen=True, slots=True)
class Mlp(InAndOut):
    """The MLP of a layer; the norm before it is folded into its first matrix."""

    spec: ModelSpec
    entry: Matrix  # (d, 2 * mlp width): gate and up side by side
    exit: Matrix  # (mlp width, d)
    post_norm: Array | None

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Mlp":
        """Prepare the tensors of one layer."""
        p = f"blk.{layer}."
        norm = weights[mlp_norm_name(spec, layer)].astype(np.float64)
        gate, up = (weights[p + f"ffn_{half}.weight"] * norm for half in ("gate", "up"))
        post = weights[p + "post_ffw_norm.weight"] if spec.post_norms else None
        return cls(
            spec,
            packed(gate, up),
            packed(weights[p + "ffn_down.weight"]),
            None if post is None else post.astype(np.float64),
        )

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d)."""
        spec, width = self.spec, self.spec.mlp_width
        both = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)
        hidden = ACTIVATIONS[spec.activation](both[:, :width])
        hidden *= both[:, width : 2 * width]
        result = product(hidden, self.exit, run.ladder)[:, : spec.width]
        if self.post_norm is not None:
            result = rms_norm(result, spec.norm_epsilon)
            result *= self.post_norm
        return result
