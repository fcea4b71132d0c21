"""A checkpoint: a saved copy of the part of the memory that cannot be cut back."""

from dataclasses import dataclass

from cachesim.engines.llamacpp.approximation import Approximation
from cachesim.engines.llamacpp.contexts import SavedState
from cachesim.units import Array, Count, Pos


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A state to go on from (upstream: `common_prompt_checkpoint`).

    `pos_min` and `pos_max` are what the live memory reported when it was taken. A window blob
    holds less than that: only what lies inside the window of `pos_max`.
    """

    n_tokens: Count
    pos_min: Pos
    pos_max: Pos
    id_task: int
    state: SavedState
    drafter: Array | None = None  # what the companion carried beside its memory
    approximate: Approximation | None = None  # what was approximate when it was taken

    def __deepcopy__(self, memo: object) -> "Checkpoint":
        """It never changes."""
        return self

    @property
    def size(self) -> int:
        """Bytes of all it keeps; a carried row is f32."""
        return self.state.size + (0 if self.drafter is None else 4 * self.drafter.size)

    @property
    def pos_end(self) -> Pos:
        """The position right after its last token (#24035)."""
        return Pos(self.n_tokens)

    def as_dict(self) -> dict[str, int]:
        """What the log prints of it."""
        return {"pos_min": self.pos_min, "pos_max": self.pos_max, "n_tokens": self.n_tokens}
