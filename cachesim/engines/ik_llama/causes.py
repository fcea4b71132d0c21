"""Causes of lost reuse in ik_llama.cpp's server, one for each branch.

Those in common with llama.cpp are declared there.
"""

from dataclasses import replace
from typing import Final

from cachesim.engines.causes import Cause, declared
from cachesim.engines.llamacpp import causes as parent

SLOT_TOKENS: Final = parent.SLOT_TOKENS
LIST_MOVED_OUT: Final = Cause(
    id="list-moved-out",
    sentence="searching the prompt cache emptied slot {slot}'s token list",
    about=(
        "Without reasoning tags the search moves every token list out to compare it, the slot's "
        "own too, and puts none back: the tokens are still in memory, but no longer listed."
    ),
)
CACHE_PROMPT_OFF: Final = parent.CACHE_PROMPT_OFF
TEXT_MATCH: Final = Cause(
    id="text-match",
    sentence="compared as text, {exact} tokens of the prompt match exactly and {tolerant} loosely",
    about=(
        "The server compares text, not token ids: text that was tokenised differently still "
        "matches, and the loose comparison ignores white space."
    ),
)
CACHE_RAM_N_MIN: Final = Cause(
    id="cache-ram-n-min",
    sentence="{match} matching tokens are fewer than --cache-ram-n-min {n_min}",
    about="A short match is thrown away, with the slot's checkpoints.",
)
LAST_TOKEN: Final = parent.LAST_TOKEN
MEMORY_DEPTH: Final = replace(
    parent.MEMORY_DEPTH,
    about=(
        "A recurrent state is valid at one position and cannot be rewound. Only a checkpoint helps."
    ),
    fields=("threshold", "checkpoints"),
)
FULL_REPROCESSING: Final = replace(
    parent.FULL_REPROCESSING,
    about="The state cannot be rewound, and no checkpoint qualifies.",
    fields=("threshold",),
)
CHECKPOINT_RESTORED: Final = parent.CHECKPOINT_RESTORED
FULL_RESET: Final = Cause(
    id="full-reset",
    sentence=(
        "the {who} context cannot be cut at position {p0}, so both are cleared and the whole "
        "prompt is reprocessed"
    ),
    about="If one context refuses a trim, both are emptied: the reset site of #1860 and #1889.",
)
PROMPT_TRUNCATED: Final = Cause(
    id="prompt-truncated",
    sentence="the prompt is too long for the context: {dropped} tokens are dropped",
    about="With context shift on, whole blocks after `n_keep` are dropped until the prompt fits.",
)

CAUSES: Final = declared(globals())
