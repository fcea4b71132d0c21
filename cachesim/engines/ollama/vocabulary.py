"""Causes of Ollama's MLX runner, beside those of mlx-lm's caches."""

from typing import Final

from cachesim.engines.causes import STATES_APART, Cause

STATES_ON_A_GRID: Final = Cause(
    id="states-on-a-grid",
    sentence=STATES_APART,
    about="Ollama's MLX runner keeps the states of a prompt at fixed positions only.",
)
DRAFTER_LOOKAHEAD: Final = Cause(
    id="drafter-lookahead",
    sentence="the drafter reads one token ahead: {used} of {equal} matching tokens can be reused",
    about="With a drafter, Ollama's MLX runner matches one token beyond the keys that it cuts to.",
)
