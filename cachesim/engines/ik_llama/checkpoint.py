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


def evicted_index(checkpoints: list[Checkpoint], policy: str, *, keeps_earliest: bool) -> int:
    """Which checkpoint gives way to a new one in a full list.

    `variance` keeps the first and the last and drops the interior one whose neighbours lie
    closest, the first of equals (server: checkpoint eviction, #2020).
    """
    count = len(checkpoints)
    if policy == "fifo":
        return 1 if keeps_earliest and count > 1 else 0
    if count < 3:
        return 0
    if count == 3:
        return 1
    at = [checkpoint.pos_max for checkpoint in checkpoints]
    return min(
        range(1, count - 1), key=lambda i: (at[i] - at[i - 1]) * (at[i + 1] - at[i]) / at[-1]
    )
