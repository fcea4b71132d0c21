"""Causes for which `Llama` evaluates tokens again."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed
from cachesim.engines.llamacpp.vocabulary import causes as llamacpp

REPLACED: Final = Cause(
    id="replaced",
    sentence="of {wanted} tokens that were evaluated, the instance and its cache hold {found}",
    about=(
        "An instance holds one sequence: each prompt replaces what it does not continue. A cache "
        "(`set_cache`, or the server's `--cache true`) keeps whole states up to its capacity."
    ),
)
LESS_LOADED: Final = Cause(
    id="less-loaded",
    sentence="the lookup in the cache leaves {found} of {wanted} tokens",
    about=(
        "An entry is chosen by its key, and compared by an array of tokens that is longer than its "
        "state: a token that was sampled and not evaluated, or one of an earlier prompt, counts."
    ),
)
STATE_BEHIND: Final = Cause(
    id="state-behind",
    sentence="the prompt diverges within {held} held tokens, and a recurrent state cannot rewind",
    about="Releases 0.3.24 to 0.3.31 reset the instance unless the prompt continues what it holds.",
)
CUT_REFUSED: Final = Cause(
    id="cut-refused",
    sentence="memory cannot be cut after {wanted} tokens",
    about=(
        "Recurrent and hybrid memory holds its last state only. Evaluate what all prompts share, "
        "`save_state`, and load it before each."
    ),
)
WINDOW_GONE: Final = Cause(
    id="window-begins-later",
    sentence="{wanted} tokens match, and windows begin at position {first}",
    about="Ollama keeps one window, or 4,096 tokens, before its newest batch.",
)
CHECKPOINT_BEFORE: Final = Cause(
    id="checkpoint-before",
    sentence="states to resume from cover {found} of {wanted} tokens",
    about=(
        "Ollama resumes hybrids from checkpoints only, 1,664 positions apart; KoboldCpp from what "
        "it holds, or the longest saved state, if the prompt contains all of it."
    ),
)
SLOT_BUSY: Final = llamacpp.SLOT_BUSY
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
LAST_TOKEN: Final = last_computed(
    "A prompt's last token is evaluated, since 0.3.32 unless the instance holds exactly the prompt."
)

CAUSES: Final = declared(globals())
