"""Rules in words: one sentence for each entry of "why".

`SENTENCES` has better words for rules that readers meet often. A rule that is not in it, or comes
with other details than its words need, is told in its own: its name and what it compared.
"""

from collections.abc import Mapping
from typing import Any, Final

from cachesim.engines.events import Loss

SENTENCES: Final[dict[str, str]] = {
    "cache-prompt-off": "the request asks for no reuse",
    "slot-tokens": "this is what slot {slot} itself has in common with the prompt",
    "chunk-reuse": "chunks of {n_cache_reuse} tokens or more were moved into place",
    "memory-depth": (
        "memory begins at position {pos_min}; to go on from here it must begin below {threshold}"
    ),
    "full-reprocessing": (
        "memory begins at position {pos_min}; to go on from here it must begin below {threshold}, "
        "and no checkpoint will do ({checkpoints})"
    ),
    "checkpoint-restored": (
        "the checkpoint at {n_tokens}, positions {pos_min} to {pos_max}, is restored"
    ),
    "seq-rm-refused": "memory cannot be cut at position {p0}, so it is cleared",
    "last-token": "the last token's logits are wanted, so it is processed again",
    "slot-busy": "slot {slot} is busy with another request",
    "slot-similarity": "slot {slot} shares no more than {threshold} of the prompt",
    "slot-pinned": "the request names its slot, and the prompt cache is not looked at",
    "f-keep": (
        "slot {slot} keeps {f_keep} of its own tokens, which is not below 0.5: "
        "the prompt cache is not looked at"
    ),
    "cache-keep": (
        "of the parked {n_tokens} tokens only {f_keep} would be kept, below {below}: not loaded"
    ),
    "cache-not-better": (
        "the parked {n_tokens} tokens are not better than the slot's own on both counts "
        "(kept {f_keep}, shared {f_sim})"
    ),
    "cache-better-entry": "another parked conversation beats the one of {n_tokens} tokens",
    "cache-obsolete-entry": "the parked {n_tokens} tokens begin a longer conversation and go",
    "cache-making-room": "the parked {n_tokens} tokens go to make room for others",
    "cache-load-failed": "the parked state does not load",
    "text-match": "the texts are compared too, and their tokens end elsewhere",
    "full-reset": (
        "the {who} context cannot be cut at position {p0}, so both are cleared and the prompt is "
        "read from its start"
    ),
    "cache-ram-n-min": "{match} equal tokens are fewer than --cache-ram-n-min {n_min}",
    "prompt-truncated": "the prompt is too long for the context: {dropped} tokens are left out",
}
"""Rule -> words with the names of the rule's own details in braces; rooms may add theirs."""


def sentence(loss: Loss) -> str:
    """One entry of "why": what happened, and from how many tokens to how many."""
    values = {name: in_words(value) for name, value in loss.detail.items()}
    try:
        words = SENTENCES[loss.rule].format_map(values)
    except KeyError:
        words = _plain_words(loss)
    return f"{words[:1].upper()}{words[1:]}: {loss.before} to {loss.after}."


def _plain_words(loss: Loss) -> str:
    rule = loss.rule.replace("-", " ").replace("_", " ")
    return f"{rule} ({in_words(loss.detail)})" if loss.detail else rule


def in_words(value: Any) -> str:  # noqa: ANN401 - JSON values
    """A detail's value as a reader takes it in: no quotes, no braces."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(in_words, value)) or "none"
    return str(value)
