"""Why `Llama` evaluates tokens again that were evaluated before."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed
from cachesim.engines.llamacpp import causes as llamacpp

REPLACED: Final = Cause(
    id="replaced",
    sentence="of {wanted} tokens that were evaluated, the instance and its cache hold {found}",
    about=(
        "An instance holds one sequence: each prompt replaces what it does not continue. A cache "
        "(`set_cache`, or the server's `--cache true`) keeps whole states up to its capacity."
    ),
    fields=("wanted", "found"),
)
LESS_LOADED: Final = Cause(
    id="less-loaded",
    sentence="the lookup in the cache leaves {found} of {wanted} tokens",
    about=(
        "An entry is chosen by its key, and compared by an array of tokens that is longer than its "
        "state: a token that was sampled and not evaluated, or one of an earlier prompt, counts."
    ),
    fields=("wanted", "found"),
)
STATE_BEHIND: Final = Cause(
    id="state-behind",
    sentence="the prompt leaves the {held} held tokens, and a recurrent state cannot go back",
    about="Releases 0.3.24 to 0.3.31 reset the instance unless the prompt continues what it holds.",
    fields=("held",),
)
CUT_REFUSED: Final = Cause(
    id="cut-refused",
    sentence="the memory refuses to be cut after {wanted} tokens",
    about=(
        "Recurrent and hybrid memory holds its last state only. Evaluate what all prompts share, "
        "`save_state`, and load it before each."
    ),
    fields=("wanted",),
)
WINDOW_GONE: Final = Cause(
    id="window-begins-later",
    sentence="{wanted} tokens match, and windows begin at position {first}",
    about="Ollama keeps one window, or 4,096 tokens, before its newest batch.",
    fields=("wanted", "first"),
)
CHECKPOINT_BEFORE: Final = Cause(
    id="checkpoint-before",
    sentence="the last checkpoint has {found} of {wanted} tokens",
    about="Ollama resumes hybrids from checkpoints only, 1,664 positions apart.",
    fields=("wanted", "found"),
)
SLOT_BUSY: Final = llamacpp.SLOT_BUSY
LAST_TOKEN: Final = last_computed("Since 0.3.32 not where the instance holds exactly the prompt.")

CAUSES: Final = declared(globals())
