"""Causes of lost reuse in llama-server: one for each branch that lowers the number of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cachesim.engines.causes import Cause, declared
from cachesim.engines.words import filled

# --- slot selection and prompt cache ------------------------------------------------------

SLOT_BUSY: Final = Cause(
    id="slot-busy",
    sentence="slot {slot} is busy with another request",
    about="A busy slot is not considered. More slots, or waiting, would have helped.",
)
SLOT_PINNED: Final = Cause(
    id="slot-pinned",
    sentence="the request names slot {chosen}, so slot {slot} is not considered",
    about="A request with `id_slot` takes that slot, whatever the others hold.",
)
SLOT_SIMILARITY: Final = Cause(
    id="slot-similarity",
    sentence="slot {slot} shares no more than {threshold} of the prompt",
    about="A slot is chosen for what it shares only above `--slot-prompt-similarity`.",
)
SLOT_AGE: Final = Cause(
    id="slot-age",
    sentence="slot {chosen} was used least recently and is taken; slot {slot} is not considered",
    about="With `--slot-prompt-similarity 0` the server picks the least recently used slot.",
)
CACHE_UNSEEN: Final = Cause(
    id="cache-unseen",
    sentence="slot {chosen} is taken as it is: the prompt cache is not searched",
    about="A pinned request does not always search the prompt cache (`--cache-ram`).",
)
MODEL_UNLOADED: Final = Cause(
    id="model-unloaded",
    sentence="the child server of {model} had ended for {asked} with all that it held",
    about=(
        "A router ends the server of the least recently used model for another one. A larger "
        "`--models-max`, or slot files saved before, would have helped."
    ),
)
F_KEEP: Final = Cause(
    id="f-keep",
    sentence=(
        "slot {slot} keeps {f_keep} of its own tokens, which is not below 0.5: "
        "the prompt cache is not searched"
    ),
    about="A slot that keeps half of its tokens is taken as it is, even for a better entry.",
    fields=("sim",),
)
CACHE_KEEP: Final = Cause(
    id="cache-keep",
    sentence=(
        "prompt-cache entry ({n_tokens} tokens): {f_keep} of it would be kept, below {below}: "
        "not loaded"
    ),
    about="A prompt-cache entry is not loaded if only a small part of it would be kept.",
)
CACHE_NOT_BETTER: Final = Cause(
    id="cache-not-better",
    sentence=(
        "prompt-cache entry ({n_tokens} tokens, kept {f_keep}, shared {f_sim}) does not beat "
        "{best_keep} and {best_sim}: not loaded"
    ),
    about=(
        "An entry must beat the slot, and each entry that won before it, on both ratios: what "
        "would be kept of its own tokens, and what it shares of the prompt."
    ),
)
CACHE_BETTER_ENTRY: Final = Cause(
    id="cache-better-entry",
    sentence="another prompt-cache entry beats the one of {n_tokens} tokens",
    about="Of several entries the last one that beats all before it is loaded.",
    fields=("f_keep", "f_sim"),
)
CACHE_OBSOLETE_ENTRY: Final = Cause(
    id="cache-obsolete-entry",
    sentence=(
        "the prompt-cache entry ({n_tokens} tokens) is a prefix of a longer entry, saved instead"
    ),
    about="Saving a prompt erases every entry that is a prefix of it.",
)
CACHE_MAKING_ROOM: Final = Cause(
    id="cache-making-room",
    sentence="the prompt-cache entry ({n_tokens} tokens, {size} bytes) was evicted to make room",
    about="The oldest entries are evicted before a new one is added, even the one needed next.",
)
CACHE_LOAD_FAILED: Final = Cause(
    id="cache-load-failed",
    sentence="the state of the prompt-cache entry ({n_tokens} tokens) does not load",
    about="Memory had no room for the state, or it does not fit; nothing of it is reused.",
)
SLOT_CLEARED: Final = Cause(
    id="slot-cleared",
    sentence="slot {slot} was cleared after a failed load",
    about="A failed load leaves the slot empty; its own tokens are lost too.",
)

# --- usable tokens of the slot -------------------------------------------------------------

ADAPTERS_CHANGED: Final = Cause(
    id="adapters-changed",
    sentence="slot {slot} is emptied: the request's adapters are not those of its last request",
    about="A request with a `lora` set of its own that is not the slot's empties the slot.",
)
READ_WHOLE: Final = Cause(
    id="read-whole",
    sentence="a prompt to be embedded is processed whole, from its start (--pooling {pooling})",
    about="All embeddings of a prompt come from one ubatch, unless only the last one is wanted.",
)
CACHE_PROMPT_OFF: Final = Cause(
    id="cache-prompt-off",
    sentence="the request asks for no reuse",
    about="The request was sent with `cache_prompt: false`.",
)
SERVER_REUSES_NOTHING: Final = Cause(
    id="server-reuses-nothing",
    sentence="the server reuses nothing unless a request asks for it (--no-cache-prompt)",
    about="The server was started with `--no-cache-prompt`, and the request does not override it.",
)
EMBEDDING_REUSES_NOTHING: Final = Cause(
    id="embedding-reuses-nothing",
    sentence="an embedding or rerank request reuses nothing in this release",
    about="From b11549 on, only requests that generate reuse what a slot holds.",
)
SLOT_TOKENS: Final = Cause(
    id="slot-tokens",
    sentence="slot {slot}'s own tokens match the prompt only this far",
    about="Only what the chosen slot itself holds can be used.",
)
CHUNK_REUSE: Final = Cause(
    id="chunk-reuse",
    sentence="chunks of {n_cache_reuse} tokens or more were moved into place",
    about=(
        "`--cache-reuse` keeps later parts of the old prompt under new positions. Their values "
        "were computed in another context: the answer differs by design."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCause(Cause):
    """A state or a window that begins too late; the sentence depends on the kind."""

    derived: ClassVar[frozenset[str]] = frozenset({"before", "latest"})

    def render(self, detail: Mapping[str, Any]) -> str:
        latest, window = detail["threshold"] - 1, detail.get("n_swa", 0)
        words = self.sentence
        if latest < 0 or window:
            memory, _, rest = words.partition("; ")
            memory = "the oldest position in memory is {pos_min}"
            rest = rest.replace("needs one at {latest}", "needs position {latest}")
            words = f"{memory}; {rest}"
        if latest < 0:
            words = words.replace("position {latest} or earlier", "an earlier position")
        return filled(words, {**detail, "before": detail.get("before"), "latest": latest})


MEMORY_DEPTH: Final = DepthCause(
    id="memory-depth",
    sentence=(
        "recurrent state at position {pos_min}; resuming at token {before} needs one at {latest} or"
        " earlier"
    ),
    about=(
        "A recurrent state is valid at one position and cannot be rewound; a window has dropped "
        "older positions. Only a checkpoint helps."
    ),
    fields=("threshold", "n_swa", "checkpoints"),
)
FULL_REPROCESSING: Final = DepthCause(
    id="full-reprocessing",
    sentence=(
        "recurrent state at position {pos_min}; resuming at token {before} needs one at {latest} or"
        " earlier, and no checkpoint qualifies ({checkpoints})"
    ),
    about=(
        'The server\'s log says "forcing full prompt re-processing due to lack of cache data": '
        "the state cannot be rewound, and each checkpoint failed the test shown with it."
    ),
    fields=("threshold", "n_swa"),
)
CHECKPOINT_RESTORED: Final = Cause(
    id="checkpoint-restored",
    sentence="checkpoint {n_tokens}[{pos_min}..{pos_max}] was restored",
    about="A checkpoint recovers part of what memory alone could not.",
)
CHECKPOINT_FALLBACK: Final = Cause(
    id="checkpoint-fallback",
    sentence=(
        "memory cannot be cut at position {p0}; the newest checkpoint before it, "
        "{n_tokens}[{pos_min}..{pos_max}], was restored"
    ),
    about="With #20428 a refused cut falls back to a checkpoint instead of starting over.",
)
LAST_TOKEN: Final = Cause(
    id="last-token",
    sentence="all {n_tokens} tokens match; the last one is reprocessed for its logits",
    about="Sampling needs the logits of the last token, so one token is always processed.",
)
SEQ_RM_REFUSED: Final = Cause(
    id="seq-rm-refused",
    sentence="memory cannot be cut at position {p0}, so it was cleared",
    about="A recurrent state cannot be cut; the release clears the slot and starts over.",
)
REQUEST_REFUSED: Final = Cause(
    id="request-refused",
    sentence="the request ended with {error}: nothing counts as reused",
    about="A request that fails reports no cached tokens.",
)

CAUSES: Final = declared(globals())
