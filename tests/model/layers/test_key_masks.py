"""Masks of the keys of a lane: computed once, however many layers show it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.store import ABSENT, BLOCK, Lane, Lanes, Ubatch
from cachesim.model.tiles import KeyMask, KeyMasks
from cachesim.units import Array, Integers


def lane(positions: Integers, low: Integers, high: Integers) -> Lane:
    nothing = np.zeros((len(positions), 1, 1))
    rows = np.arange(len(low))
    return Lane(rows=rows, keys=nothing, values=nothing, positions=positions, low=low, high=high)


def visible(what: Lane, masks: KeyMasks, group: int) -> Array:
    """(rows, n): True where a row sees a key by the masks."""
    result = np.zeros((len(what.rows), len(what.positions)), dtype=bool)
    for each in masks.of(what, group):
        rows = what.rows[each.rows]
        blocks = range(*each.blocks.indices(len(what.positions) // BLOCK))
        shown = np.ones((len(blocks), len(rows), 1, BLOCK), dtype=bool)
        for where, mask in each.hidden:
            shown[where] &= ~np.broadcast_to(mask, shown[where].shape)
        for block, keys in zip(blocks, shown, strict=True):
            result[rows, block * BLOCK : (block + 1) * BLOCK] = keys[:, 0]
    return result


@given(st.data())
def test_masks_show_just_what_lies_between_low_and_high(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, 4))
    positions = np.arange(blocks * BLOCK) + BLOCK * data.draw(st.integers(0, 2))
    holes = data.draw(st.lists(st.integers(0, len(positions) - 1), max_size=80))
    high = positions[
        data.draw(st.lists(st.integers(0, len(positions) - 1), min_size=1, max_size=9))
    ]
    low = np.maximum(high - data.draw(st.integers(0, 150)), 0)
    positions = positions.copy()
    positions[holes] = ABSENT
    what = lane(positions, low, high)

    found = visible(what, KeyMasks(rows=data.draw(st.sampled_from([2, 4, 128]))), group=2)

    expected = (positions >= low[:, None]) & (positions <= high[:, None])
    assert np.array_equal(expected, found)


class Sharing(PlainStore):
    """Shows every layer of a part the very same positions and bounds, as servers' memories do."""

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        (shown,) = super().attend(layer, keys, values)
        known: dict[tuple[int, int, int], Lane] = self.__dict__.setdefault("known", {})
        first = known.setdefault((int(shown.low[-1]), int(shown.high[-1]), len(shown.low)), shown)
        bounds = {name: getattr(first, name) for name in ("positions", "low", "high")}
        return (shown._replace(**bounds),)


def test_a_lane_that_many_layers_show_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(preset("swa"))
    tokens = np.random.default_rng(0).integers(265, 512, 100)
    ubatch = Ubatch(tokens=tokens, positions=np.arange(100))
    honest = network.run(ubatch, PlainStore(network)).logits
    looks = []
    look = KeyMask.of
    monkeypatch.setattr(KeyMask, "of", lambda *told: looks.append(told) or look(*told))

    shared = network.run(ubatch, Sharing(network)).logits

    assert np.array_equal(honest, shared)
    parts, tiles = 2, 2  # windows and full attention; 100 queries of 2 heads in tiles of 128 rows
    assert parts * tiles == len(looks)
