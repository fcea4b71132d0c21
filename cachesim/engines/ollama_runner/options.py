"""Options of Ollama's runner that affect the cache."""

from dataclasses import dataclass

from cachesim.engines.llama_cpp_python.options import TYPES
from cachesim.engines.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """The defaults are upstream's.

    `Serve` (`server/routes.go`) of 0.24.0 takes a context by the memory of all GPUs: 4,096 tokens
    below 23 GiB, or without a GPU, 32,768 below 47 GiB, and 262,144 from there on.
    """

    n_ctx: int = option(
        "num_ctx",
        "context of a slot; 4096 is Ollama's below 23 GiB of GPU memory, then it takes more",
        default=4096,
        low=1,
        unit="tokens",
        tried=(4096, 512, 256),
    )
    n_batch: int = option(
        "num_batch",
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
    type_k: str = option(
        "OLLAMA_KV_CACHE_TYPE",
        "type of stored keys; here it changes sizes only",
        default="f16",
        choices=TYPES,
    )
    type_v: str = option(
        "OLLAMA_KV_CACHE_TYPE",
        "type of stored values; here it changes sizes only",
        default="f16",
        choices=TYPES,
    )
    num_parallel: int = option(
        "OLLAMA_NUM_PARALLEL",
        "slots, each with a context of its own; one where the model has a state",
        default=1,
        low=1,
        high=64,
        tried=(1, 2, 3),
    )
    multiuser_cache: bool = option(
        "OLLAMA_MULTIUSER_CACHE",
        "share matching cells with the slot used longest ago, where no slot would be continued",
        default=False,
        tried=(False, True),
    )
    num_keep: int = option(
        "num_keep",
        "first tokens that a shift or a truncation keeps; -1: the prompt",
        default=4,
        low=-1,
        high=1 << 24,
        unit="tokens",
        tried=(4, 4, 1, -1),
    )
    shift: bool = option(
        "shift", "discard half of a full context; else the reply ends", default=True
    )
    truncate: bool = option(
        "truncate", "cut a prompt that is too long; else it fails", default=True
    )
