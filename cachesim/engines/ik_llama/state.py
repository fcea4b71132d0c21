"""A saved sequence: what `llama_state_seq_get_data` writes, the bytes it takes, and checkpoints.

The real server's bytes: they decide evictions.
"""

from dataclasses import dataclass

from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Count, Pos


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
class Checkpoint:
    """The state needed to resume a hybrid sequence at `pos_max + 1`.

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

    def as_dict(self) -> dict[str, int]:
        """The numbers by which people know it."""
        return {
            "pos_min": int(self.pos_min),
            "pos_max": int(self.pos_max),
            "n_tokens": int(self.n_tokens),
        }


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
