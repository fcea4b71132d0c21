"""Events and causes of KoboldCpp, beside those of an instance of `Llama`."""

from typing import Final

from cachesim.engines.causes import STATES_COVER, Cause
from cachesim.engines.events import Event, event
from cachesim.units import Count


@event("loss")
class TokensErased(Event):
    """{erased} tokens are erased at position {position}, and later ones move there"""

    erased: Count
    position: int


@event("gain")
class SlotSaved(Event):
    """a state of {n_tokens} tokens is saved into slot {slot}"""

    slot: int
    n_tokens: Count


CHECKPOINT_BEFORE: Final = Cause(
    id="checkpoint-before",
    sentence=STATES_COVER,
    about=(
        "A hybrid resumes from what is held, or from the longest saved state, if the prompt "
        "contains all of it."
    ),
)
NOT_KEPT: Final = Cause(
    id="prefix-not-kept",
    sentence="none of the {wanted} matching tokens is kept",
    about="KoboldCpp keeps no prefix of less than 4 tokens, and nothing with `--nofastforward`.",
)
CONTEXT_SHIFTED: Final = Cause(
    id="context-shifted",
    sentence="{erased} tokens are erased at position {position}, so that what follows matches",
    about=(
        "KoboldCpp erases tokens that a chat dropped, if the longest common run follows them; "
        "`--noshift` turns it off."
    ),
)
WINDOW_REFILLED: Final = Cause(
    id="window-refilled",
    sentence="the last {refilled} tokens of the prompt are evaluated, to fill the windows",
    about="KoboldCpp refills small windows, not exactly; `--noswa` gives them a cell per token.",
)
SMART_CONTEXT: Final = Cause(
    id="smart-context",
    sentence="{dropped} tokens of the prompt are left out",
    about="`--smartcontext` halves a prompt that fills the context, to continue it for a while.",
)
