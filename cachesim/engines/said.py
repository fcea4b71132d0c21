"""Sentences that several engines say of the same thing, written once."""

from typing import Final

LAST_COMPUTED: Final = (
    "all {prompt_tokens} tokens are known; the last one is computed for its logits"
)
NO_STATE: Final = "no state was saved between {found} and {wanted} tokens"
CHUNK: Final = "tokens {start} to {end} are computed in this step"
