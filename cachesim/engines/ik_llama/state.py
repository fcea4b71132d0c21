"""A saved sequence: what `llama_state_seq_get_data` writes, as a value with its real size."""

from dataclasses import dataclass

from cachesim.units import Array, Pos


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceState:
    """Positions in cell order, keys and values (full states only), recurrent rows.

    A partial state has no keys and values: a restore leaves in the new cells whatever they hold.
    """

    positions: tuple[Pos, ...]
    born: tuple[Pos, ...]  # the positions the keys were rotated to
    keys: dict[int, Array] | None
    values: dict[int, Array] | None
    rows: dict[int, Array]
    size: int
