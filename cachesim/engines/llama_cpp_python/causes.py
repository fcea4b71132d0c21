"""Causes for which `Llama` evaluates tokens again."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed

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
LAST_TOKEN: Final = last_computed(
    "A prompt's last token is evaluated, since 0.3.32 unless the instance holds exactly the prompt."
)

CAUSES: Final = declared(globals())
