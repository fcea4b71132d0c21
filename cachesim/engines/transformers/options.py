"""Fields of `ContinuousBatchingConfig`, with upstream's defaults except for a small pool."""

from dataclasses import dataclass

from cachesim.engines.option import option

MOST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersOptions:
    """Options of a server, on a CPU: no fast decode path, no batches that overlap."""

    page_size: int = option(
        "--cb-block-size",
        "tokens in a block",
        default=256,
        low=4,
        high=MOST,
        unit="tokens",
        tried=(256, 16, 4),
    )
    num_blocks: int = option(
        "--cb-num-blocks",
        "blocks of all layers that the memory holds; a real server takes what is free",
        default=256,
        low=1,
        high=MOST,
        unit="blocks",
        tried=(256, 64),
    )
    max_batch_tokens: int = option(
        "--cb-max-batch-tokens",
        "maximum tokens per batch",
        default=8192,
        low=1,
        high=MOST,
        unit="tokens",
        tried=(8192, 32),
    )
    max_requests_per_batch: int = option(
        "",
        "maximum requests per batch",
        default=1024,
        low=1,
        high=MOST,
        unit="requests",
        tried=(1024, 2),
    )
    allow_block_sharing: bool = option(
        "", "whether requests share blocks; models with a window never do", default=True
    )
    scheduler_type: str = option(
        "",
        "which requests come first",
        default="fifo",
        choices=("fifo", "prefill_first"),
        tried=("fifo", "prefill_first"),
    )
    safety_margin: float = option(
        "",
        "share of free memory below which unreferenced blocks are evicted and prefills wait; -1: "
        "0.15 under fifo, 0 under prefill_first",
        default=-1.0,
        low=-1.0,
        high=1.0,
    )
