"""Options of an instance: the arguments of `Llama`, of its cache and of its draft model."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.option import option, request_field

TYPES: Final = ("f16", "f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The defaults are those of `Llama(model_path)`."""

    n_ctx: int = option(
        "n_ctx",
        "context; llama.cpp rounds it up to a multiple of 256, the array of tokens stays",
        default=512,
        low=1,
        unit="tokens",
        tried=(512, 256),
    )
    n_batch: int = option(
        "n_batch",
        "maximum tokens per decode call",
        default=512,
        low=1,
        unit="tokens",
        tried=(512, 64, 32),
    )
    n_ubatch: int = option(
        "n_ubatch",
        "maximum tokens per ubatch",
        default=512,
        low=1,
        unit="tokens",
        tried=(512, 32, 16),
    )
    swa_full: bool = option(
        "swa_full",
        "give window layers as many cells as the others; llama.cpp's default where it is left out",
        default=True,
        tried=(True, True, False),
    )
    logits_all: bool = option(
        "logits_all", "logits of every token; a draft model turns it on", default=False
    )
    embedding: bool = option(
        "embedding",
        "make embeddings too, in memory for as many sequences as a batch has tokens, at most 256",
        default=False,
    )
    type_k: str = option(
        "type_k", "type of stored keys; here it changes sizes only", default="f16", choices=TYPES
    )
    type_v: str = option(
        "type_v", "type of stored values; here it changes sizes only", default="f16", choices=TYPES
    )
    cache: str = option(
        "set_cache",
        "states saved after each completion: none, LlamaRAMCache, LlamaDiskCache",
        default="none",
        choices=("none", "ram", "disk"),
        tried=("none", "ram", "disk"),
    )
    capacity_bytes: int = option(
        "capacity_bytes",
        "size of the cache: the states of llama.cpp, without the logits that are kept with them",
        default=2 << 30,
        kind="size",
        needs="cache",
        tried=(2 << 30, 200_000),
    )
    draft_model: str = option(
        "draft_model",
        "who drafts tokens; prompt-lookup: LlamaPromptLookupDecoding",
        default="none",
        choices=("none", "prompt-lookup"),
        tried=("none", "none", "prompt-lookup"),
    )
    max_ngram_size: int = option(
        "max_ngram_size", "longest n-gram that is looked up", default=2, low=1, high=64
    )
    num_pred_tokens: int = option(
        "num_pred_tokens", "tokens of a draft", default=10, low=1, unit="tokens", tried=(10, 3)
    )


FIELDS: Final = (
    request_field(
        "endpoint",
        "choice",
        "the method: create_completion, or create_embedding, which clears the memory",
        default="completion",
        choices=("completion", "embedding"),
    ),
)
