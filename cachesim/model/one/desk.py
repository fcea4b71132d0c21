"""All layers laid out for one token, and the token's way through them.

A desk is used by one token at a time; a network that is asked by several threads has several.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.arithmetic import Output
from cachesim.model.layers.attention import Attention
from cachesim.model.layers.conv import ShortConv
from cachesim.model.layers.delta import Delta
from cachesim.model.layers.ends import NOT_FINITE, Head
from cachesim.model.layers.mlp import Mlp
from cachesim.model.layers.run import Layer, Turns
from cachesim.model.layers.sight import Sights
from cachesim.model.layers.ssm import Ssm
from cachesim.model.layers.tiles import Ladder
from cachesim.model.one.attention import AttentionStep
from cachesim.model.one.mlp import MlpStep
from cachesim.model.one.recurrent import DeltaStep, ShortConvStep, SsmStep
from cachesim.model.one.tile import Step, Tile, root_mean_square
from cachesim.model.store import Store
from cachesim.units import Array

STEPS: Final[Mapping[type, Callable[[Any, int], Step]]] = {
    Mlp: MlpStep,
    Ssm: SsmStep,
    Delta: DeltaStep,
    ShortConv: ShortConvStep,
}


class Desk:
    """Every array that one token needs, used again for the next."""

    def __init__(
        self, layers: Sequence[Layer], head: Head, ladder: Ladder, attention_ladder: Ladder
    ) -> None:
        self._steps = [step_of(layer, ladder[0], attention_ladder) for layer in layers]
        self._head, self._tile = head, Tile(head.matrix, ladder[0])
        self._logits = self._tile.result[: head.spec.vocabulary]
        self._most = attention_ladder[-1]

    def run(self, x: Array, store: Store, turns: Turns | None, *, asked: bool) -> Output:
        """Take the row x (d,), which changes, through all layers; logits if they are asked for."""
        sights, spec = Sights(self._most), self._head.spec
        for step in self._steps:
            x += step(x, store, sights, turns)
        hidden = self._tile.row
        np.divide(x, root_mean_square(x, spec.norm_epsilon), hidden)
        hidden *= self._head.norm
        if not math.isfinite(hidden.dot(hidden)):
            raise ContractError(NOT_FINITE)
        if asked:
            self._tile()
        logits = self._logits[None].copy() if asked else np.empty((0, spec.vocabulary))
        return Output(logits=logits, hidden=hidden[None].copy() if spec.mtp_depth else None)


def step_of(layer: Layer, height: int, attention_ladder: Ladder) -> Step:
    """The step that gives the same bits as a layer."""
    if isinstance(layer, Attention):
        return AttentionStep(layer, height, attention_ladder)
    return STEPS[type(layer)](layer, height)
