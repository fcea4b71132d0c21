"""Differences of llama.cpp's releases in the memory layer, as data.

B9094   May 2026, the release b9093: before recurrent states could be rolled back
B9509   June 2026, the releases b9509 and b9538
B11434  autumn 2026, the releases b11434 and b11549
"""

from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias

from cachesim.model.spec import LayerKind

RollbackSplit: TypeAlias = Literal["equal", "sequence", "keep-tail"]
"""Split of a batch when recurrent states keep planes for a rollback."""

ShortUbatch: TypeAlias = Literal["undefined", "kept"]
"""Effect of a ubatch shorter than the planes on the remaining planes."""

ProbeAnswer: TypeAlias = Literal["unknown", "after-probe", "at-once"]
"""Point at which the capability query returns RS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Rules of the memory layer; one field per difference."""

    name: str

    # recurrent rows
    rollback_layers: frozenset[LayerKind]
    """Kinds of recurrent layer whose architectures may roll back (#22673; more later)."""
    rollback_split: RollbackSplit
    """`keep-tail` keeps the last tokens of a sequence in one ubatch (#25278)."""
    single_use_rollback: bool
    """A second rollback is refused while one is pending (was: overwrites the depth)."""
    rolls_back_shared: bool
    """A state that sequences share may roll back, for all of them (later: refused)."""
    short_ubatch: ShortUbatch
    """Planes that a short ubatch did not compute: copied as undefined data, or left alone."""
    refuses_foreign_ids: bool
    """Recurrent `seq_rm` refuses ids outside 0 .. n_seq_max-1 (was: wipes cells, keeps tails)."""
    saves_rolled_back: bool
    """A state is saved while a rollback is pending (#22673 before its merge: the process ends)."""
    middle_cut_passes: bool
    """A cut that ends before a state's position has no effect (#17009; was: refused)."""
    impossible_rollback_passes: bool
    """#24797, declined: a rollback without a plane moves only the position."""
    hybrid_starts_with_attention: bool
    """#24797, declined: a hybrid's `pos_min` is that of its attention part alone."""
    zero_layer_rollback: bool
    """A recurrent memory without layers moves its position back by any depth."""

    # state blobs
    saves_plain_partially: bool
    """A partial state of a plain attention cache has its cells (#28873: nothing at all)."""
    saves_unmasked_window: bool
    """A sequence's window blob has only cells that the window does not hide (#23981)."""
    sequence_header: int
    """Bytes of the header that sequence calls add to a blob: magic and source id."""
    attention_header: int
    """Bytes between cells and rows of an attention section; 16 with the rotation sizes (#21038)."""
    ext_bytes: int
    """Bytes of extra data per cell where a model has several position sections (#16825)."""
    clears_failed_restore: bool
    """A failed restore leaves no content and drops queued data (#27530)."""
    checks_count_first: bool
    """More saved cells than exist are an error before the destination changes."""
    undoes_hybrid_restore: bool
    """A hybrid restore that fails in the recurrent part undoes the attention part."""
    restores_every_stream: bool
    """A whole restore clears once and fills all streams (was: only the last stream survives)."""
    on_device_chunks: bool
    """Device buffers are copied across the borders of cell ranges (was: abort)."""

    # batches
    checks_positions: bool
    """A batch must continue its sequences; before, any position was accepted (#14177)."""
    batch_ids_when_unified: int | None
    """Number of ids allowed in a batch with a unified cache; None: the number of sequences."""
    hashed_ids: bool
    """A token's ids are kept in a hash set: the last listed is first."""
    advances_all_ids: bool
    """Generated positions advance every id of a token (later: the first one only)."""
    refuses_decreasing: bool
    """Positions of a sequence must not decrease within a batch (#25449)."""

    # cells
    counts_positions: bool
    """Positions are counted, so a sequence copied twice leaves phantom positions."""
    dry_run_restores: bool
    """A dry run of a batch leaves all cells as they were (was: without those that it purged)."""

    # capability
    probe: ProbeAnswer
    """Behaviour of `common_context_can_seq_rm` with bounded rollback (#22673)."""


B9094: Final = MemoryRules(
    name="b9094",
    rollback_layers=frozenset(),
    rollback_split="equal",
    single_use_rollback=False,
    rolls_back_shared=True,
    short_ubatch="undefined",
    refuses_foreign_ids=False,
    saves_rolled_back=True,
    middle_cut_passes=True,
    impossible_rollback_passes=False,
    hybrid_starts_with_attention=False,
    zero_layer_rollback=False,
    saves_plain_partially=True,
    saves_unmasked_window=False,
    sequence_header=8,
    attention_header=8,
    ext_bytes=8,
    clears_failed_restore=False,
    checks_count_first=False,
    undoes_hybrid_restore=False,
    restores_every_stream=False,
    on_device_chunks=False,
    checks_positions=True,
    batch_ids_when_unified=256,
    hashed_ids=False,
    advances_all_ids=True,
    refuses_decreasing=False,
    counts_positions=True,
    dry_run_restores=False,
    probe="unknown",
)

B9509: Final = replace(
    B9094,
    name="b9509",
    rollback_layers=frozenset({"delta"}),
    rollback_split="sequence",
    saves_unmasked_window=True,
    probe="after-probe",
)

B11434: Final = replace(
    B9509,
    name="b11434",
    rollback_layers=frozenset({"delta", "conv"}),
    rollback_split="keep-tail",
    single_use_rollback=True,
    short_ubatch="kept",
    refuses_foreign_ids=True,
    zero_layer_rollback=True,
    attention_header=16,
    ext_bytes=12,
    clears_failed_restore=True,
    checks_count_first=True,
    undoes_hybrid_restore=True,
    restores_every_stream=True,
    on_device_chunks=True,
    batch_ids_when_unified=None,
    hashed_ids=True,
    advances_all_ids=False,
    refuses_decreasing=True,
    counts_positions=False,
    dry_run_restores=False,
    probe="at-once",
)


def differing(one: MemoryRules, other: MemoryRules) -> tuple[str, ...]:
    """The fields in which two releases differ, names aside."""
    names = (field.name for field in fields(MemoryRules) if field.name != "name")
    return tuple(name for name in names if getattr(one, name) != getattr(other, name))
