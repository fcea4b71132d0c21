"""Causes of lost reuse in mlx-lm's server, one for each branch."""

from typing import Final

from cachesim.engines.causes import Cause, declared

STILL_AT_WORK: Final = Cause(
    id="still-at-work",
    sentence=(
        "request {request} has these tokens, but is still running: its state is not stored yet"
    ),
    about="A state is stored when its request ends, or at a checkpoint of its prompt.",
    fields=("request",),
)
ONE_TOKEN_IS_FED: Final = Cause(
    id="one-token-is-fed",
    sentence="the stored prompt covers all {n_tokens} tokens; one of them is reprocessed",
    about="A longer entry is trimmed until at least one token is left to feed.",
    fields=("n_tokens",),
)
SHORTER_ENTRY_FIRST: Final = Cause(
    id="shorter-entry-first",
    sentence=(
        "the stored prompt of {used} tokens is used; a longer one that shares more is not "
        "considered"
    ),
    about="The search stops at a shorter entry where the release does not look for a longer one.",
    fields=("used",),
)
TRIMMED_TOO_LITTLE: Final = Cause(
    id="trimmed-too-little",
    sentence="the stored prompt of {entry} tokens cannot be trimmed as far as needed",
    about="A rotating cache that has wrapped around cannot restore what it overwrote.",
    fields=("entry",),
)
NOT_TRIMMABLE: Final = Cause(
    id="not-trimmable",
    sentence="the stored prompt of {entry} tokens cannot be trimmed: layer {layer} is {cache}",
    about="A recurrent layer, or a full rotating one, cannot be trimmed: the entry cannot be used.",
    fields=("entry", "layer", "cache"),
)

CAUSES: Final = declared(globals())
