"""`DynamicCache`: the content of each kind of layer, and its crop, reorder and select.

Keys are represented by their tokens, a state by a number folded from its tokens:

    row      the tokens of a sequence in a layer      [5, 7, 9]
    kernel   the last inputs of a convolution         [0, 5, 7, 9]
    state    each token folded into the one before    a number

Trap: layers are cropped one after another, so what a later one refuses the earlier ones have done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cachesim.typed import Json

Rows: TypeAlias = list[list[int]]

FOLD: Final = 31
MODULUS: Final = 1_000_003
"""A state is the one before times FOLD, and the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRules:
    """Rules of a release, one field per difference."""

    crops_to_length: bool = False
    """A positive crop of full attention is the length that remains."""

    crops_unused: bool = True
    """A layer that holds nothing yet may be cropped."""


class Keys:
    """Keys of all tokens (`DynamicLayer`)."""

    croppable = True

    def __init__(self, rules: LayerRules) -> None:
        self.rules = rules
        self.rows: Rows | None = None  # none yet
        self.recording = False

    @property
    def length(self) -> int:
        """Tokens of the sequences, as the layer counts them."""
        return len(self.rows[0]) if self.rows else 0

    def feed(self, new: Rows) -> Rows:
        """Append tokens; return those that attention sees."""
        self.rows = joined(self.rows, new)
        return self.rows

    def crop(self, count: int) -> None:
        """Follows `DynamicLayer.crop`."""
        if count > 0:
            if not self.rules.crops_to_length:
                raise ValueError("a positive number of tokens")
            # The older meaning: the length that remains; a negative number is what is removed.
            count = max(self.length - count, 0)
        if count and (self.rows is not None or not self.rules.crops_unused):
            self.rows = [row[: -abs(count)] for row in held(self.rows)]

    def reorder(self, order: Sequence[int]) -> None:
        """Select rows by number, for beam search."""
        if self.length > 0:
            self.rows = taken(self.rows, order)

    def select(self, order: Sequence[int]) -> None:
        """Select rows by number, as `reorder` does."""
        Keys.reorder(self, order)

    def repeat(self, count: int) -> None:
        """Repeat each row."""
        if self.length > 0:
            self.rows = [row[:] for row in held(self.rows) for _ in range(count)]

    def reset(self) -> None:
        """Drop all rows."""
        self.rows = None

    def record(self) -> None:
        """Do nothing: all keys are kept."""

    def content(self) -> Json:
        return {"keys": self.rows, "length": self.length, "croppable": self.croppable}


class WindowKeys(Keys):
    """Keys of the last tokens, or, recording, since the last crop (`DynamicSlidingWindowLayer`)."""

    def __init__(self, rules: LayerRules, window: int) -> None:
        super().__init__(rules)
        self.window, self.count = window, 0

    @property
    def length(self) -> int:
        return self.count

    def feed(self, new: Rows) -> Rows:
        self.count += len(new[0])
        whole = joined(self.rows, new)
        # One token less than the window: the next token is the last of it.
        if not self.recording:
            self.rows = [row[1 - self.window :] for row in whole]
            return whole
        # Recording keeps what left the window, so that a crop can bring it back.
        self.rows = whole
        return [row[-(self.window - 1 + len(new[0])) :] for row in whole]

    def crop(self, count: int) -> None:
        """Follows `DynamicSlidingWindowLayer.crop`."""
        # Nothing has left yet, so it is cropped as full attention is.
        if self.count < self.window:
            super().crop(count)
            if self.rows is None:
                raise AttributeError("no keys, whose shape is asked for")
            self.count = len(self.rows[0])
            return
        if not self.recording or count > 0:
            raise RuntimeError("not recorded, or a positive number of tokens")
        # Trap: the slice may be shorter than the window, and is counted as if it were whole.
        first, last = 1 - self.window + count, count or None
        self.rows = [row[first:last] for row in held(self.rows)]
        self.count += count

    def reset(self) -> None:
        super().reset()
        self.count = 0

    def record(self) -> None:
        self.recording = True


class IndexedKeys(Keys):
    """Keys of all tokens, and as many of an indexer (`DynamicIndexedLayer`)."""

    def __init__(self, rules: LayerRules) -> None:
        super().__init__(rules)
        self.index = Keys(rules)

    def feed(self, new: Rows) -> Rows:
        self.index.feed(new)
        return super().feed(new)

    def crop(self, count: int) -> None:
        super().crop(count)
        if self.index.length:
            self.index.crop(count)

    def reorder(self, order: Sequence[int]) -> None:
        super().reorder(order)
        self.index.reorder(order)

    def select(self, order: Sequence[int]) -> None:
        self.reorder(order)

    def repeat(self, count: int) -> None:
        super().repeat(count)
        self.index.repeat(count)

    def reset(self) -> None:
        super().reset()
        self.index.reset()

    def content(self) -> Json:
        return super().content() | {"index": self.index.rows}


class States(Keys):
    """A convolution's last inputs, and a state unless it is one alone (`LinearAttentionLayer`)."""

    def __init__(self, rules: LayerRules, kernel: int, *, recurrent: bool) -> None:
        super().__init__(rules)
        self.kernel, self.recurrent = kernel, recurrent
        self.states: list[int] | None = None
        self.used = False  # since the last reset

    @property
    def croppable(self) -> bool:  # type: ignore[override]
        """True for a convolution alone, once it is fed."""
        return self.states is None and self.rows is not None

    def feed(self, new: Rows) -> Rows:
        """Follows `update_conv_state` and `update_recurrent_state`.

        Trap: both are copied in place, so one row fills all that a batch before a reset had.
        """
        size, used = self.kernel, self.used
        if self.rows is None:
            self.rows = [[0] * size for _ in new]
        if used:
            whole = joined(self.rows, new)
        else:
            self.used = True
            # Before the first token a convolution sees zeros.
            missing = 0 if self.recording else max(size - len(new[0]), 0)
            whole = [[0] * missing + row for row in new]
        self.rows = whole if self.recording else copied(self.rows, [row[-size:] for row in whole])
        if self.recurrent:
            before = held(self.states) if used else [0] * len(new)
            if len(before) != len(new):
                raise RuntimeError(f"{len(before)} states for {len(new)} rows")
            after = [folded(state, row) for state, row in zip(before, new, strict=True)]
            self.states = after if self.states is None else copied(self.states, after)
        return whole

    def crop(self, count: int) -> None:
        """Follows `LinearAttentionCacheLayerMixin.crop`."""
        if not self.recording or count > 0:
            raise RuntimeError("not recorded, or a positive number of tokens")
        # Trap: only the inputs are cut; the state keeps the removed tokens (`is_croppable` says
        # so).
        first, last = count - self.kernel, count or None
        self.rows = [row[first:last] for row in held(self.rows)]

    def reorder(self, order: Sequence[int]) -> None:
        if self.rows is not None:
            self.rows = taken(self.rows, order)
        if self.states is not None:
            self.states = [self.states[row] for row in order]

    def select(self, order: Sequence[int]) -> None:
        raise AttributeError(order)  # there is no such method

    def repeat(self, count: int) -> None:
        raise AttributeError(count)

    def reset(self) -> None:
        """Zeros in place: the batch keeps its size."""
        self.rows = None if self.rows is None else [[0] * len(row) for row in self.rows]
        self.states = None if self.states is None else [0] * len(self.states)
        self.used = False

    def record(self) -> None:
        self.recording = True

    def content(self) -> Json:
        return {"inputs": self.rows, "states": self.states, "croppable": self.croppable}


class Hybrid(Keys):
    """States and keys in one layer (`LinearAttentionAnd...Layer`)."""

    def __init__(self, rules: LayerRules, states: States, keys: Keys) -> None:
        super().__init__(rules)
        self.parts = (states, keys)
        self.keys = keys

    @property
    def length(self) -> int:
        return self.keys.length

    def feed(self, new: Rows) -> Rows:
        [*_, seen] = [part.feed(new) for part in self.parts]
        return seen

    def crop(self, count: int) -> None:
        for part in self.parts:
            part.crop(count)

    def reorder(self, order: Sequence[int]) -> None:
        for part in self.parts:
            part.reorder(order)

    def select(self, order: Sequence[int]) -> None:
        """Trap: inherited from `DynamicLayer`, which has keys alone."""
        self.keys.select(order)

    def repeat(self, count: int) -> None:
        self.keys.repeat(count)

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def record(self) -> None:
        for part in self.parts:
            part.recording = True

    def content(self) -> Json:
        """`is_croppable` is that of the states."""
        return self.keys.content() | self.parts[0].content()


KERNEL: Final = 4

KINDS: Final[Mapping[str, Callable[[LayerRules, int], Keys]]] = {
    "full_attention": lambda rules, _: Keys(rules),
    "sliding_attention": WindowKeys,
    "indexed_attention": lambda rules, _: IndexedKeys(rules),
    "linear_attention": lambda rules, _: States(rules, KERNEL, recurrent=True),
    "conv": lambda rules, _: States(rules, KERNEL, recurrent=False),
    "hybrid": lambda rules, _: Hybrid(rules, States(rules, KERNEL, recurrent=True), Keys(rules)),
    "hybrid_sliding": lambda rules, window: Hybrid(
        rules, States(rules, KERNEL, recurrent=False), WindowKeys(rules, window)
    ),
}
"""Layers by the names of `layer_types`."""


class DynamicCache:
    """Layers in order."""

    def __init__(self, rules: LayerRules, kinds: Sequence[str], window: int) -> None:
        self.layers = [KINDS[kind](rules, window) for kind in kinds]

    def feed(self, new: Rows) -> list[Rows]:
        """Append tokens to each layer; return each layer's result."""
        return [layer.feed(new) for layer in self.layers]

    def call(self, name: str, *given: Json) -> None:
        """`crop`, `reorder`, `select`, `repeat`, `reset` or `record` of each layer."""
        for layer in self.layers:
            getattr(layer, name)(*given)

    def content(self) -> Json:
        return [layer.content() for layer in self.layers]


def held(value: Json) -> Json:
    """Content of a layer; TypeError if it is empty."""
    if value is None:
        raise TypeError("nothing is held yet")
    return value


def joined(before: Rows | None, new: Rows) -> Rows:
    """Rows with new tokens; RuntimeError if their numbers differ."""
    if before is None:
        return [row[:] for row in new]
    if len(before) != len(new):
        raise RuntimeError(f"{len(new)} rows for {len(before)}")
    return [row + more for row, more in zip(before, new, strict=True)]


def taken(rows: Rows | None, order: Sequence[int]) -> Rows:
    """Rows by number."""
    return [held(rows)[row][:] for row in order]


def copied(before: list[Json], after: list[Json]) -> list[Json]:
    """As `Tensor.copy_`: one row fills all, another number is an error."""
    if len(after) not in (1, len(before)):
        raise RuntimeError(f"{len(after)} rows for {len(before)}")
    return after * (len(before) // len(after))


def folded(state: int, row: Sequence[int]) -> int:
    """A state after a row's tokens."""
    for token in row:
        state = (state * FOLD + token) % MODULUS
    return state
