"""Events and causes of Ollama's runner, beside those of an instance of `Llama`."""

from typing import Final

from cachesim.engines.causes import STATES_COVER, Cause
from cachesim.engines.events import Event, event
from cachesim.engines.llamacpp.vocabulary import causes as llamacpp
from cachesim.units import Count


@event("loss")
class SlotCleared(Event):
    """slot {slot} is cleared: it held {n_tokens} tokens"""

    slot: int
    n_tokens: Count


@event("gain")
class PrefixShared(Event):
    """slot {slot} shares the first {n_tokens} tokens of slot {other}"""

    slot: int
    other: int
    n_tokens: Count


@event("loss")
class ContextShifted(Event):
    """the context is full: {n_discard} tokens are discarded after the first {n_keep}"""

    n_keep: Count
    n_discard: Count


@event("loss")
class ShiftRefused(Event):
    """the context is full: {n_discard} tokens are discarded, all others are evaluated again"""

    n_discard: Count


WINDOW_GONE: Final = Cause(
    id="window-begins-later",
    sentence="{wanted} tokens match, and windows begin at position {first}",
    about="Ollama keeps one window, or 4,096 tokens, before its newest batch.",
)
CHECKPOINT_BEFORE: Final = Cause(
    id="checkpoint-before",
    sentence=STATES_COVER,
    about="Hybrids resume from checkpoints only, 1,664 positions apart.",
)
SLOT_BUSY: Final = llamacpp.SLOT_BUSY
