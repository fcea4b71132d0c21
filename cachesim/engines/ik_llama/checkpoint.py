"""Context checkpoints of one slot: what they hold, when the oldest goes, which one may serve."""

from dataclasses import dataclass

from cachesim.engines.ik_llama.state import SequenceState
from cachesim.units import Count, Pos


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything needed to resume a hybrid sequence at `pos_max + 1`.

    The `prompt` positions are the same points measured in the request's own tokens, which differ
    from the cache's when texts matched across different token boundaries.
    """

    pos_min: Pos
    pos_max: Pos
    pos_min_prompt: Pos
    pos_max_prompt: Pos
    n_tokens: Count
    made_by: int  # the task that saved it
    state: SequenceState

    @property
    def size(self) -> int:
        """Bytes of the saved state."""
        return self.state.size
