"""A saved sequence: what `llama_state_seq_get_data` writes, and how many bytes it takes.

The real server's bytes: they decide evictions.
"""

from dataclasses import dataclass

from cachesim.model.spec import ModelSpec
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes per cell and per recurrent row, summed over the layers that have them."""

    cell: int
    row: int
    layers: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "Sizes":
        """Keys and values as f16, recurrent rows as f32."""
        numbers = range(len(spec.layers))
        return cls(
            cell=sum(spec.key_bytes(n) + spec.value_bytes(n) for n in numbers),
            row=sum(spec.conv_bytes(n) + spec.state_bytes(n) for n in numbers),
            layers=len(spec.layers),
        )

    def state(self, cells: int, *, partial: bool) -> int:
        """A state: counts and positions, a head per layer, the data unless it is partial."""
        head = 4 + cells * 8 + 8 + self.layers * 24 + 4
        rows = self.layers * 16 + self.row if self.row else 0
        return head + rows + (0 if partial else cells * self.cell)
