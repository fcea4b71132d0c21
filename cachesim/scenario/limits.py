"""Limits on the size of a scenario, so that a hostile file cannot exhaust the machine."""

from typing import Final

from cachesim.model.spec import ModelSpec

FILE_BYTES: Final = 4 * 2**20
"""Bytes of one scenario file."""

PROBLEMS: Final = 40
"""Most printed problems of a file."""

DEPTH: Final = 16
"""Nesting depth of tables and lists."""

STEPS: Final = 1000
"""Steps of one scenario."""

SPANS: Final = 200
"""Spans of one scenario; each begins with a token of its own."""

PROMPT_TOKENS: Final = 262_144
"""Tokens of one prompt, of one span, of one forced reply."""

PREDICT: Final = 10_000
"""Generated tokens of one step."""

TOTAL_TOKENS: Final = 1_000_000
"""Prompt and generated tokens of all steps together."""

MESSAGES: Final = 1000
"""Messages of one step."""

TEXT: Final = 100_000
"""Characters of one text."""

NAME: Final = 100
"""Characters of one name."""

PROFILES: Final = 32
"""Profiles, and expectations, of one scenario."""

LAYERS: Final = 64
WIDTH: Final = 1024
WINDOW: Final = 100_000
VOCABULARY: Final = 65_536
"""Vocabulary of a model."""

CONTEXT: Final = 1_048_576
SLOTS: Final = 64
"""`ctx_size` and `parallel` of a server."""

MODELS: Final = 8
"""Further models of one server."""

COPIES: Final = 16
"""Completions of one prompt."""

TURNS: Final = 100_000
"""Turns of the server's loop before a cancel, and in all."""

MEMORY: Final = 4 * 2**30
"""Bytes of a model's weights, the server's cells and all saved data."""

WORD: Final = 8
"""Bytes of a number."""


def bytes_needed(spec: ModelSpec, *, cells: int, slots: int) -> int:
    """Estimated bytes of a model with these cells and slots, weights included."""
    attention = sum(layer in {"attention", "window"} for layer in spec.layers)
    recurrent = len(spec.layers) - attention
    cell = attention * 2 * spec.kv_heads * spec.head_size
    row = recurrent * (spec.inner * spec.state_size + spec.conv_size * 4 * spec.inner)
    projections = attention * 4 * max(spec.heads, spec.kv_heads) * spec.head_size
    projections += recurrent * 4 * spec.inner + len(spec.layers) * 3 * spec.mlp_width
    weights = spec.width * (projections + 2 * spec.vocabulary)
    return WORD * (weights + cells * cell + slots * row)
