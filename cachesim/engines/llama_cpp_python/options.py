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
        "context; llama.cpp rounds it up to a multiple of 256, the array of tokens stays; KoboldCpp"
        " and Ollama take 4,096 or more by default",
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
    num_parallel: int = option(
        "OLLAMA_NUM_PARALLEL",
        "slots, each with a context of its own; one where the model has a state",
        default=1,
        low=1,
        high=64,
        patch="ollama",
        tried=(1, 2, 3),
    )
    multiuser_cache: bool = option(
        "OLLAMA_MULTIUSER_CACHE",
        "share matching cells with the slot used longest ago, where no slot would be continued",
        default=False,
        patch="ollama",
        tried=(False, True),
    )
    num_keep: int = option(
        "num_keep",
        "first tokens that a shift or a truncation keeps; -1: the prompt",
        default=4,
        low=-1,
        high=1 << 24,
        unit="tokens",
        patch="ollama",
        tried=(4, 4, 1, -1),
    )
    shift: bool = option(
        "shift", "discard half of a full context; else the reply ends", default=True, patch="ollama"
    )
    truncate: bool = option(
        "truncate", "cut a prompt that is too long; else it fails", default=True, patch="ollama"
    )
    smartcache: int = option(
        "--smartcache",
        "save slots that KoboldCpp uses by itself; 1 means five, 0 none but for recurrent models",
        default=0,
        low=0,
        high=64,
        patch="koboldcpp",
        tried=(0, 1, 2),
    )
    smartcontext: bool = option(
        "--smartcontext",
        "halve a prompt that fills the context; only where contexts are not shifted",
        default=False,
        patch="koboldcpp",
    )
    noshift: bool = option("--noshift", "never shift the context", default=False, patch="koboldcpp")
    nofastforward: bool = option(
        "--nofastforward", "evaluate every prompt whole", default=False, patch="koboldcpp"
    )
    noswa: bool = option(
        "--noswa", "give window layers a cell for every token", default=False, patch="koboldcpp"
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
