"""Remedies by cause, with their kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cachesim.why.read.observed import (
    IK,
    KOBOLD,
    LM_STUDIO,
    LM_STUDIO_LLAMA,
    MLX,
    MLX_OPENAI,
    OLLAMA,
    OMLX,
    PYTHON,
    SGLANG,
)

Kind: TypeAlias = Literal["design", "client", "flag", "defect", "unknown"]

DENSER: Final = ("ctx_checkpoints", "checkpoint_min_step", "ubatch_size")
"""Flags for the positions of checkpoints; one is saved before a prompt's last ubatch."""

MORE_SLOTS: Final = ("parallel",)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A cause's kind, advice, and the report upstream where there is one.

    `flags` are those that the advice names. `tune` runs other values of each: advice that holds of
    most logs need not hold of this one. `client` is the part of the advice that names no flag.
    """

    kind: Kind
    advice: str
    upstream: str = ""
    flags: tuple[str, ...] = ()
    client: str = ""


KEEP_HISTORY: Final = "Have the client keep its history."
LARGER: Final = Remedy("flag", "Raise the context's size (`--ctx-size`).", flags=("ctx_size",))

REMEDIES: Final[Mapping[str, Remedy]] = {
    "last-token": Remedy("design", "Nothing: one token is always processed for its logits."),
    "cache-prompt-off": Remedy("client", "Send the request without `cache_prompt: false`."),
    "server-reuses-nothing": Remedy("flag", "Start the server without `--no-cache-prompt`."),
    "embedding-reuses-nothing": Remedy("design", "Nothing: this release reuses nothing for them."),
    "adapters-changed": Remedy("client", "Give requests with other adapters a slot of their own."),
    "slot-busy": Remedy(
        "flag", "Start the server with more slots (`--parallel`).", flags=MORE_SLOTS
    ),
    "slot-pinned": Remedy("client", "Leave `id_slot` out, so that the server may choose."),
    "slot-similarity": Remedy(
        "flag",
        "Lower `--slot-prompt-similarity`, or give each conversation a slot (`--parallel`).",
        flags=("slot_prompt_similarity", *MORE_SLOTS),
    ),
    "slot-age": Remedy("flag", "Leave `--slot-prompt-similarity` at its default instead of 0."),
    "cache-unseen": Remedy(
        "defect",
        "Leave `id_slot` out: pinned requests do not search the prompt cache.",
        "ggml-org/llama.cpp#24746",
    ),
    "f-keep": Remedy(
        "defect",
        "Nothing to set: a slot that keeps half of its tokens is chosen even where an entry of the "
        "prompt cache shares more.",
        "ggml-org/llama.cpp#28276",
    ),
    "cache-keep": Remedy(
        "design", "Nothing to set: less than a quarter of the prompt-cache entry would be kept."
    ),
    "cache-not-better": Remedy(
        "design",
        "More slots (`--parallel`), so that conversations do not share one.",
        flags=MORE_SLOTS,
    ),
    "cache-better-entry": Remedy("design", "Nothing: another prompt-cache entry was better."),
    "cache-obsolete-entry": Remedy(
        "design", "Nothing: an entry with the longer conversation replaced it."
    ),
    "cache-making-room": Remedy(
        "flag", "Raise the prompt cache's limit (`--cache-ram`).", flags=("cache_ram",)
    ),
    "cache-load-failed": LARGER,
    "slot-cleared": LARGER,
    "slot-tokens": Remedy(
        "client",
        "Keep the history as it was sent: the client or its template changed it at that token.",
    ),
    "memory-depth": Remedy(
        "flag",
        "A larger `--ctx-checkpoints`, a smaller `--checkpoint-min-step` or another "
        f"`--ubatch-size` may leave a checkpoint before that place. {KEEP_HISTORY}",
        "ggml-org/llama.cpp#24055",
        DENSER,
        KEEP_HISTORY,
    ),
    "full-reprocessing": Remedy(
        "flag",
        "A larger `--ctx-checkpoints`, a smaller `--checkpoint-min-step` or another "
        f"`--ubatch-size` may leave a checkpoint before that place. {KEEP_HISTORY}",
        "ggml-org/llama.cpp#24055",
        (*DENSER, "swa_full"),
        KEEP_HISTORY,
    ),
    "checkpoint-restored": Remedy(
        "flag",
        "A smaller `--checkpoint-min-step` or another `--ubatch-size` may add a later checkpoint.",
        flags=DENSER,
    ),
    "seq-rm-refused": Remedy(
        "defect",
        "Use a later release: since June it restores a checkpoint instead.",
        "ggml-org/llama.cpp#22534",
    ),
    "state-missing": Remedy(
        "defect",
        "Do not rely on slot files with recurrent or windowed models: they hold no checkpoints.",
        "ggml-org/llama.cpp#25913",
    ),
    "unknown": Remedy("unknown", "Start the server with `-lv 4`: then the log says why."),
    "request-refused": LARGER,
    "block-end": Remedy(
        "design",
        "Nothing to set where a model has recurrent states: oMLX enlarges the blocks for it, and "
        f"drops a last one whose state was not stored. {KEEP_HISTORY}",
        "jundot/omlx#2876",
        client=KEEP_HISTORY,
    ),
}
"""Cause -> remedy."""

IK_CHECKPOINTS: Final = Remedy(
    "flag",
    "A larger `--ctx-checkpoints` or a smaller `--ctx-checkpoints-interval` may leave a checkpoint "
    "before that place. Have the client keep its history.",
    "ikawrakow/ik_llama.cpp#1310",
)

IK_CURES: Final[Mapping[str, Remedy]] = {
    "full-reprocessing": IK_CHECKPOINTS,
    "memory-depth": IK_CHECKPOINTS,
}
"""Remedies for causes with other flags in ik_llama.cpp."""

SNAPSHOTS: Final = Remedy(
    "client", f"The next prompt that parts at the same token resumes there. {KEEP_HISTORY}"
)

STATES: Final = Remedy(
    "client",
    "Evaluate what all prompts share, keep `save_state()`, and `load_state()` it before each; or "
    "continue the last reply as it was generated.",
    "abetlen/llama-cpp-python#2140",
)

UNKNOWN_CURE: Final = Remedy("unknown", "Not known.")


def remedy_of(cause: str, engine: str = "") -> Remedy:
    """Remedy of a cause."""
    own = IK_CURES.get(cause) if engine == IK else None
    if engine == OLLAMA and cause == "state-missing":
        return SNAPSHOTS
    if cause == "cut-refused":
        return STATES
    return own or REMEDIES.get(cause, UNKNOWN_CURE)


FACTS_WITHOUT_REPLAY: Final[Mapping[str, str]] = {
    IK: "Its lines have every count of each request at the default verbosity. Record the requests "
    "(`cachesim record`) to ask what another release or flag would do.",
    MLX: "Its lines say how much of each prompt was processed. With `--log-level DEBUG` they have "
    "the requests too, and, since 0.31 and for answers that are not streamed, what was cached; "
    "or record the requests (`cachesim record`).",
    PYTHON: "Its lines name neither prompts nor instances: counts are of one instance at a time, "
    "and a draft model's tokens count among those of a prompt that nothing matches.",
    OLLAMA: "Its lines have each prompt's length, its match and the reused tokens.",
    SGLANG: "Its lines have each prompt's length and its cached tokens, and not how many match. "
    "With `--log-requests-level 3 --log-requests-format json` they have the prompts: `cachesim "
    "compare` replays such a log.",
    OMLX: "Its lines have each prompt's length, its reused tokens, and how many a stored sequence "
    "shares with it.",
    KOBOLD: "Its lines have how much of each prompt was processed, and not how many tokens match: "
    "record the requests (`cachesim record`) to know why others were not reused.",
    MLX_OPENAI: "Its lines have how much of each prompt was processed; at the log level DEBUG, its "
    "length and its cached tokens too.",
    LM_STUDIO_LLAMA: "Its lines have each prompt's length, how many tokens match the last one, and "
    "how many were processed.",
    LM_STUDIO: "Its lines have the reused and the other tokens of each prompt, and not how many "
    "match: record the requests (`cachesim record`) to know why others were not reused.",
}
"""Information in the lines of other engines' logs, and the flags that print more."""
