"""Causes of lost reuse in mlx-lm's server, one for each branch."""

from typing import Final

from cachesim.engines.causes import Cause, declared

STILL_AT_WORK: Final = Cause(
    id="still-at-work",
    sentence=(
        "request {request} has these tokens, but is still running: its state is not stored yet"
    ),
    about="A state is stored when its request ends, or at a checkpoint of its prompt.",
)
ONE_TOKEN_IS_FED: Final = Cause(
    id="one-token-is-fed",
    sentence="the stored prompt covers all {n_tokens} tokens; one of them is reprocessed",
    about="A longer entry is trimmed until at least one token is left to feed.",
)
SHORTER_ENTRY_FIRST: Final = Cause(
    id="shorter-entry-first",
    sentence=(
        "the stored prompt of {used} tokens is used; a longer one that shares more is not "
        "considered"
    ),
    about="The search stops at a shorter entry where the release does not look for a longer one.",
)
TRIMMED_TOO_LITTLE: Final = Cause(
    id="trimmed-too-little",
    sentence="the stored prompt of {entry} tokens cannot be trimmed as far as needed",
    about="A rotating cache that has wrapped around cannot restore what it overwrote.",
)
NOT_TRIMMABLE: Final = Cause(
    id="not-trimmable",
    sentence="the stored prompt of {entry} tokens cannot be trimmed: layer {layer} is {cache}",
    about="A recurrent layer, or a full rotating one, cannot be trimmed: the entry cannot be used.",
)

STATES_ON_A_GRID: Final = Cause(
    id="states-on-a-grid",
    sentence=(
        "of this prompt a state is kept every {interval} tokens; the last one that may be used is "
        "after {used}"
    ),
    about="oMLX and Ollama's MLX runner keep the states of a prompt at fixed positions only.",
)
DRAFTER_LOOKAHEAD: Final = Cause(
    id="drafter-lookahead",
    sentence="the drafter reads one token ahead: {used} of {equal} matching tokens can be reused",
    about="With a drafter, Ollama's MLX runner matches one token beyond the keys that it cuts to.",
)
PLACEHOLDER: Final = Cause(
    id="placeholder",
    sentence=(
        "in the stored prefix of {used} tokens the state of layer {layer}, one array, is a "
        "placeholder: the prefix is rejected"
    ),
    about="oMLX stores a state of fewer than two arrays as a placeholder, and rejects it later.",
)
RECORD_MISSING: Final = Cause(
    id="record-missing",
    sentence=(
        "{matched} matching tokens are on disk; {used} of them have all records, and leave a token "
        "to feed"
    ),
    about="mlx-engine keeps states where a prefill step ended, or every 256 tokens of a reply.",
)

TOO_SHORT: Final = Cause(
    id="too-short",
    sentence="fewer than {least} tokens match: such a prefix is not reused",
    about="vllm-mlx stores and reuses no prefix of fewer tokens than its limit.",
)
NO_TOKEN_LEFT: Final = Cause(
    id="no-token-left",
    sentence=(
        "the stored prompt of {entry} tokens covers all {n_tokens}: none is left to feed, and it "
        "is not used"
    ),
    about="vllm-mlx does not take a token back from an entry that covers the whole prompt.",
)

MEDIA_UNCACHED: Final = Cause(
    id="media-uncached",
    sentence="a prompt with images is neither looked up nor stored: all {n_tokens} are processed",
    about="vllm-mlx's prefix cache has prompts of text alone, since its keys do not name images.",
)
IMAGE_AHEAD: Final = Cause(
    id="image-ahead",
    sentence="an image comes after the first {used} tokens, which match: none of them is reused",
    about="vllm-mlx until 0.5.0 continues a stored prompt only with text.",
)

SAME_PROMPT_ALONE: Final = Cause(
    id="same-prompt-alone",
    sentence="only the same text with the same images is found: none of {n_tokens} is reused",
    about="vllm-mlx's default engine keeps a prompt with images under a hash of all of it.",
)
STORED_UNUSED: Final = Cause(
    id="stored-unused",
    sentence="the same prompt is stored, and not used: all {n_tokens} are processed",
    about="vllm-mlx's default engine leaves it to mlx-vlm, which is not given the stored state.",
)
FED_AGAIN: Final = Cause(
    id="fed-again",
    sentence="the stored state of the same prompt is used, and all {n_tokens} are fed after it",
    about="vllm-mlx's default engine streams from a stored state without leaving out its tokens.",
)

CAUSES: Final = declared(globals())
