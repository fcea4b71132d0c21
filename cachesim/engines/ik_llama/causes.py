"""Why ik_llama.cpp's server reuses fewer tokens than it holds: one cause for each branch."""

from typing import Final

from cachesim.engines.causes import Cause, declared

SLOT_TOKENS: Final = Cause(
    id="slot-tokens",
    sentence="slot {slot}'s own tokens match the prompt only this far",
    about="Only what the chosen slot itself holds can be used.",
    fields=("slot",),
)
CACHE_PROMPT_OFF: Final = Cause(
    id="cache-prompt-off",
    sentence="the request asks for no reuse",
    about="The request was sent with `cache_prompt: false`.",
)
TEXT_MATCH: Final = Cause(
    id="text-match",
    sentence="compared as text, {exact} tokens of the prompt match exactly and {tolerant} loosely",
    about=(
        "The server compares texts, not token ids: a text cut into other tokens still matches, "
        "and the loose comparison skips white space."
    ),
    fields=("exact", "tolerant"),
)
CACHE_RAM_N_MIN: Final = Cause(
    id="cache-ram-n-min",
    sentence="{match} matching tokens are fewer than --cache-ram-n-min {n_min}",
    about="A short match is thrown away, with the slot's checkpoints.",
    fields=("match", "n_min"),
)
LAST_TOKEN: Final = Cause(
    id="last-token",
    sentence="all {n_tokens} tokens are there; the last one is processed again for its logits",
    about="Sampling needs the logits of the last token, so one token is always processed.",
    fields=("n_tokens",),
)
MEMORY_DEPTH: Final = Cause(
    id="memory-depth",
    sentence=(
        "memory reaches back only to position {pos_min}; resuming here needs one below {threshold}"
    ),
    about="A recurrent state stands at one position and cannot go back. Only a checkpoint helps.",
    fields=("pos_min", "threshold", "checkpoints"),
)
FULL_REPROCESSING: Final = Cause(
    id="full-reprocessing",
    sentence=(
        "memory reaches back only to position {pos_min}; resuming here needs one below "
        "{threshold}, and no checkpoint qualifies ({checkpoints})"
    ),
    about="The state cannot go back, and none of the checkpoints can be resumed from.",
    fields=("pos_min", "threshold", "checkpoints"),
)
CHECKPOINT_RESTORED: Final = Cause(
    id="checkpoint-restored",
    sentence="checkpoint {n_tokens}[{pos_min}..{pos_max}] was restored",
    about="A saved state brings back a part of what the memory could not.",
    fields=("n_tokens", "pos_min", "pos_max"),
)
FULL_RESET: Final = Cause(
    id="full-reset",
    sentence=(
        "the {who} context cannot be cut at position {p0}, so both are cleared and the prompt is "
        "processed from its start"
    ),
    about="A refused trim of one context empties both, the reset site of #1860 and #1889.",
    fields=("who", "p0"),
)
PROMPT_TRUNCATED: Final = Cause(
    id="prompt-truncated",
    sentence="the prompt is too long for the context: {dropped} tokens are left out",
    about="With context shift on, whole blocks after `n_keep` are dropped until the prompt fits.",
    fields=("dropped",),
)

CAUSES: Final = declared(globals())
