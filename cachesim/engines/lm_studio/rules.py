"""What differs between LM Studio's kits of mlx-engine."""

from dataclasses import dataclass

from cachesim.engines.mlx_lm.rules import PrefixCacheRules


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules(PrefixCacheRules):
    """mlx-lm's own store, with one position near the end of a prompt, or none."""

    before_end: int = 11  # DEFAULT_CHECKPOINT_TAIL_TOKENS
    most: int = 10  # entries
    counts_by_offset: bool = True  # a list of caches without an `offset` is not stored
    asks_again: bool = True  # a prompt without a match is looked up again without its last token


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRules(PrefixCacheRules):
    """Since #326, for text since #352 (July 2026): one entry, and records on disk."""

    interval: int = 256  # DEFAULT_PREFIX_CHUNK_SIZE
    provisional_bytes: int = 30 << 30  # of the records, until a context's are known
    max_kv_size: int | None = None  # tokens of a context, which then limits the records
