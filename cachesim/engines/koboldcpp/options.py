"""Options of KoboldCpp that affect the cache."""

from dataclasses import dataclass

from cachesim.engines.llama_cpp_python.options import TYPES
from cachesim.engines.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class KoboldOptions:
    """The defaults are upstream's.

    `koboldcpp.py` of 1.102 has a context of 8,192 tokens, and so has `state.py` of 1.113.1; that of
    1.76 was 4,096. The defaults of 1.99.4, 1.115.1 and 1.120 were not read: 8,192 is a guess there.
    """

    n_ctx: int = option(
        "--contextsize",
        "context",
        default=8192,
        low=1,
        unit="tokens",
        tried=(8192, 512, 256),
    )
    n_batch: int = option(
        "--batchsize",
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
        "--quantkv", "type of stored keys; here it changes sizes only", default="f16", choices=TYPES
    )
    type_v: str = option(
        "--quantkv",
        "type of stored values; here it changes sizes only",
        default="f16",
        choices=TYPES,
    )
    smartcache: int = option(
        "--smartcache",
        "save slots that KoboldCpp uses by itself; 1 means five, 0 none but for recurrent models",
        default=0,
        low=0,
        high=64,
        tried=(0, 1, 2),
    )
    smartcontext: bool = option(
        "--smartcontext",
        "halve a prompt that fills the context; only where contexts are not shifted",
        default=False,
    )
    noshift: bool = option("--noshift", "never shift the context", default=False)
    nofastforward: bool = option("--nofastforward", "evaluate every prompt whole", default=False)
    noswa: bool = option("--noswa", "give window layers a cell for every token", default=False)
