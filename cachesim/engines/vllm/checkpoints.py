"""States inside a prefill chunk, which a kernel exports on its way to the chunk's end.

    block       |   0    |   1    |   2    |   3  |       one chunk, no cut at its last boundary
    written                          state    state       exported at the boundary, and at the end

Scheduler, manager and metadata builder apply the same arithmetic: a block that is allocated for a
state is written. Follows `kv_cache_interface.py` and `layers/mamba/checkpoint.py`.
"""

from dataclasses import dataclass

from cachesim.engines.vllm.block_pool import GroupSpec, cdiv


def checkpoint_position(
    num_tokens: int, unit: int, *, drop_eagle_block: bool, hash_lookahead: int
) -> int:
    """Position of the reusable state that a prefill of `num_tokens` leaves.

    Follows `get_mamba_prefill_checkpoint_position`: below the last token and the tokens that the id
    covers, or one unit lower for a drafter whose block is dropped.
    """
    # A repeated prompt computes its last token again, so a state after it is never used. A dropped
    # block is below that already.
    limit = num_tokens if drop_eagle_block else num_tokens - max(1, hash_lookahead)
    position = limit // unit * unit - (unit if drop_eagle_block else 0)
    return max(position, 0)


def is_exportable(
    span: tuple[int, int], position: int, *, unit: int, block: int, alignment: int
) -> bool:
    """True if the state at a position inside a chunk can be exported: into a block of its own.

    Follows `is_mamba_prefill_checkpoint_valid`; an alignment of 0 is its None.
    """
    start, end = span
    return bool(
        alignment
        and start % unit == 0
        # The entry before the last must not be the running state that the chunk begins with.
        and export_index(end, block) > (start - 1) // block
        and start + unit <= position < end
        # The kernel has a state to export only where one of its own chunks ends, counted from the
        # start.
        and (position - start) % alignment == 0
    )


def export_index(end: int, block: int) -> int:
    """Entry of the block table for the exported state: that before the chunk's last one."""
    return cdiv(end, block) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """Exported states by chunk, as the layers' metadata has them."""

    unit: int  # hash_block_size
    alignment: int  # cache_hit_alignment_tokens
    drop_eagle_block: bool
    hash_lookahead: int

    def position(self, group: GroupSpec, start: int, end: int) -> int:
        """Position inside a prefill's chunk whose state is exported, or 0.

        Follows `compute_mamba_prefill_checkpoints`.
        """
        position = checkpoint_position(
            end,
            self.alignment,
            drop_eagle_block=self.drop_eagle_block,
            hash_lookahead=self.hash_lookahead,
        )
        # Scheduler, manager and runner ask this with the same numbers: if one of them differed, a
        # block would have an id and no state.
        valid = is_exportable(
            (start, end),
            position,
            unit=self.unit,
            block=group.block,
            alignment=group.checkpoint_alignment,
        )
        return position if valid and group.mode == "align" else 0
