"""Options of native offloading to the host, under upstream's names."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.engines.option import option
from cachesim.engines.vllm.block_pool import GroupSpec, cdiv
from cachesim.errors import OptionError
from cachesim.model.spec import ModelSpec

GIB: Final = 1 << 30
PAGE: Final = 4096
"""A chunk on the host is whole pages (`BLOCK_SIZE_ALIGNMENT`)."""

EXTRA: Final = "--kv-transfer-config.kv-connector-extra-config"
SINCE: Final = "0.30.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions:
    """`kv_offloading_size`, and what its connector reads."""

    kv_offloading_size: float = option(
        "--kv-offloading-size",
        "GiB on the host for the blocks of prompts, which come back when the pool has lost them; "
        "0: none",
        default=0.0,
        kind="number",
        low=0,
        high=1 << 20,
        unit="GiB",
        since=SINCE,
    )
    kv_offloading_backend: str = option(
        "--kv-offloading-backend",
        "what offloads; of the two only vLLM's own OffloadingConnector is simulated, not LMCache",
        default="native",
        choices=("native",),
        since=SINCE,
        needs="kv_offloading_size",
    )
    host_chunks_override: int = option(
        "",
        "chunks that the host holds; 0: as many as kv_offloading_size has room for",
        default=0,
        high=1 << 22,
        unit="chunks",
        since=SINCE,
        needs="kv_offloading_size",
    )
    blocks_per_chunk: int = option(
        f"{EXTRA}.blocks-per-chunk",
        "blocks that are stored, loaded and evicted together",
        default=1,
        low=1,
        high=1 << 16,
        unit="blocks",
        since=SINCE,
        needs="kv_offloading_size",
    )
    eviction_policy: str = option(
        f"{EXTRA}.eviction-policy",
        "which chunk is evicted: the one used last the longest ago, or by ARC one of those used "
        "once or of the others",
        default="lru",
        choices=("lru", "arc"),
        since=SINCE,
        needs="kv_offloading_size",
    )
    store_threshold: int = option(
        f"{EXTRA}.store-threshold",
        "offers of a chunk from which on it is stored; 0 and 1: the first one",
        default=0,
        high=1 << 20,
        unit="offers",
        since=SINCE,
        needs="kv_offloading_size",
    )
    offload_prompt_only: bool = option(
        f"{EXTRA}.offload-prompt-only",
        "whether blocks of generated tokens are left out",
        default=True,
        since=SINCE,
        needs="kv_offloading_size",
    )
    copy_steps: int = option(
        "",
        "steps that a copy to or from the host takes",
        default=1,
        low=1,
        high=1000,
        unit="steps",
        since=SINCE,
        needs="kv_offloading_size",
    )

    @property
    def offloads(self) -> bool:
        """True if blocks are stored on the host."""
        return self.kv_offloading_size > 0

    def host_chunks(self, groups: Sequence[GroupSpec], spec: ModelSpec) -> int:
        """Chunks that the host holds, each as large as the largest group's. Follows
        `CPUOffloadingSpec`.
        """
        if self.host_chunks_override:
            return self.host_chunks_override
        block = max(block_bytes(group, spec) for group in groups)
        chunk = cdiv(block * self.blocks_per_chunk, PAGE) * PAGE
        return int(self.kv_offloading_size * GIB) // chunk

    def check_offloading(
        self, groups: Collection[GroupSpec], beside: str, unit: int, retention: int | None
    ) -> None:
        """Refuse what upstream refuses or is not simulated; `beside` names such an option."""
        if not self.offloads:
            return
        if beside:
            msg = f"option 'kv_offloading_size' is not simulated beside {beside}: leave one of them"
            raise OptionError(f"{msg} out")
        if any(
            group.mode == "align" and group.block != unit
            for group in groups
            if group.kind == "mamba"
        ):
            msg = "option 'kv_offloading_size' is not simulated where ids are of parts of a state's"
            raise OptionError(f"{msg} block: leave prefix_match_unit and mamba_block_size out")
        sparse = [group for group in groups if group.kind in {"window", "chunked", "mamba"}]
        chunk = math.lcm(*(group.block * self.blocks_per_chunk for group in sparse))
        if retention and retention % chunk:
            raise OptionError(
                f"option 'prefix_cache_retention_interval' is {retention}; it must be a multiple of"
                f" the chunks of {chunk} tokens on the host"
            )


def block_bytes(group: GroupSpec, spec: ModelSpec) -> int:
    """Bytes of a group's block, of all its layers."""
    if group.kind == "mamba":
        return sum(spec.state_bytes(layer) for layer in group.layers)
    return sum(
        group.block * (spec.key_bytes(layer) + spec.value_bytes(layer)) for layer in group.layers
    )
