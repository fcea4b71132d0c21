"""Causes of oMLX, beside those of mlx-lm's caches."""

from typing import Final

from cachesim.engines.causes import STATES_APART, Cause

STATES_ON_A_GRID: Final = Cause(
    id="states-on-a-grid",
    sentence=STATES_APART,
    about="oMLX keeps the states of a prompt at the ends of its blocks only.",
)
PLACEHOLDER: Final = Cause(
    id="placeholder",
    sentence=(
        "in the stored prefix of {used} tokens the state of layer {layer}, one array, is a "
        "placeholder: the prefix is rejected"
    ),
    about="oMLX stores a state of fewer than two arrays as a placeholder, and rejects it later.",
)
