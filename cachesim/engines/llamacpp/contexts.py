"""The target's memory and its companion's, moved together (upstream: `common_memory`)."""

from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.errors import UpstreamAbort

SEQ_RM: Final = "common_memory::seq_rm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The blobs of one sequence and the bytes they take on the real machine."""

    target: Blob | None
    companion: Blob | None
    header: int  # bytes that the sequence calls put in front of each
    size: int = field(init=False, compare=False)
    """Bytes of both: asked for at every look at the prompt cache, so counted once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.target_size + self.companion_size)

    @property
    def target_size(self) -> int:
        """Bytes of the target's blob, as the sequence calls count them."""
        return 0 if self.target is None else self.target.size + self.header

    @property
    def companion_size(self) -> int:
        """Bytes of the companion's blob."""
        return 0 if self.companion is None else self.companion.size + self.header

    def __deepcopy__(self, memo: object) -> "SavedState":
        """Itself: it never changes."""
        return self

    def emptied(self) -> "SavedState":
        """The states after a half-failed load: the target's blob is gone; loading it "works"."""
        return replace(self, target=None)


class Contexts:
    """Two contexts under the same sequence ids; most servers have only the first.

    Upstream: `common_memory`.
    """

    def __init__(
        self,
        target: Context,
        companion: Context | None = None,
        *,
        saves_companion: bool,
        refused_cut_aborts: bool,
    ) -> None:
        self._refused_cut_aborts = refused_cut_aborts
        self.target = target
        self.companion = companion
        self.saves_companion = saves_companion and companion is not None

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> None:
        """Remove a range from both; a refusal ends the real process, or nobody looks."""
        for context in self._both():
            if not context.seq_rm(seq, p0, p1) and self._refused_cut_aborts:
                why = f"sequence {seq} cannot be cut at position {p0}"
                raise UpstreamAbort(SEQ_RM, why)

    def try_seq_rm(self, seq: int, p0: int) -> bool:
        """Remove a tail from the target; the companion follows if that worked."""
        if not self.target.seq_rm(seq, p0, -1):
            return False
        if self.companion is not None and not self.companion.seq_rm(seq, p0, -1):
            why = f"the companion's sequence {seq} cannot be cut at position {p0}"
            raise UpstreamAbort(SEQ_RM, why)
        return True

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move a range of positions in both."""
        for context in self._both():
            context.seq_add(seq, p0, p1, delta)

    def replace(self, src: int, dst: int) -> None:
        """Give `dst` all that `src` has, and nothing else."""
        for context in self._both():
            context.seq_rm(dst, -1, -1)
            context.seq_cp(src, dst, -1, -1)

    def save(self, seq: int, *, partial: bool) -> SavedState:
        """Write a sequence: all of it, or only what a checkpoint needs."""
        companion = None
        if self.companion is not None and self.saves_companion:
            companion = self.companion.state_seq_get_data(seq, partial=partial)
        return SavedState(
            target=self.target.state_seq_get_data(seq, partial=partial),
            companion=companion,
            header=self.target.rules.sequence_header,
        )

    def load_target(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Put a saved state back; False where it does not fit."""
        return blob is None or self.target.state_seq_set_data(blob, seq, partial=partial) > 0

    def load_companion(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Load a saved state into the companion, if it takes part in saving."""
        if self.companion is None or blob is None:
            return True
        return self.companion.state_seq_set_data(blob, seq, partial=partial) > 0

    def check_integrity(self) -> None:
        """Raise ContractError where the books of a memory disagree."""
        for context in self._both():
            context.check_integrity()

    def _both(self) -> tuple[Context, ...]:
        return (self.target,) if self.companion is None else (self.target, self.companion)
