"""Checkpoints that are made and that go, by hand from `create_checkpoint` and #2020."""

import pytest

from cachesim.engines.ik_llama.context import Checkpoint, SequenceState, Sizes
from cachesim.engines.ik_llama.server import evicted_index
from cachesim.model.presets import preset
from cachesim.units import Count, Pos


def checkpoint(pos: int) -> Checkpoint:
    state = SequenceState(positions=(), born=(), keys=None, values=None, rows={}, size=0)
    return Checkpoint(
        pos_min=Pos(pos),
        pos_max=Pos(pos),
        pos_min_prompt=Pos(pos),
        pos_max_prompt=Pos(pos),
        n_tokens=Count(pos + 1),
        made_by=0,
        state=state,
    )


@pytest.mark.parametrize(
    ("positions", "gone"),
    [
        ([10], 0),
        ([10, 20], 0),
        ([10, 20, 30], 1),
        ([10, 20, 30, 90], 1),  # 10 * 10 of 20, 10 * 60 of 30
        ([10, 40, 50, 60], 2),  # 30 * 10 of 40, 10 * 10 of 50
        ([10, 20, 30, 40], 1),  # equal: the first
        ([10, 60, 70, 75, 200], 2),  # 50 * 10, 10 * 5, 5 * 125
        ([0, 50, 98, 99, 100], 3),  # 50 * 48, 48 * 1, 1 * 1
    ],
)
def test_the_variance_rule_spares_the_ends(positions: list[int], gone: int) -> None:
    listed = [checkpoint(pos) for pos in positions]

    assert gone == evicted_index(listed, "variance", keeps_earliest=False)


@pytest.mark.parametrize(("count", "spared", "gone"), [(1, True, 0), (2, True, 1), (3, False, 0)])
def test_the_oldest_goes_or_the_second_oldest(count: int, spared: bool, gone: int) -> None:
    listed = [checkpoint(10 * each) for each in range(count)]

    assert gone == evicted_index(listed, "fifo", keeps_earliest=spared)


@pytest.mark.parametrize("model", ["dense", "hybrid", "recurrent"])
def test_bytes_of_a_saved_state(model: str) -> None:
    """Counts and positions, a head for each layer; rows of 4 bytes, keys and values of 2."""
    spec = preset(model)
    sizes = Sizes.of(spec)
    cells = 10
    head = 4 + 8 * cells + 8 + 24 * len(spec.layers) + 4
    rows = 16 * len(spec.layers) + sizes.row if sizes.row else 0

    assert head + rows == sizes.state(cells, partial=True)
    assert head + rows + cells * sizes.cell == sizes.state(cells, partial=False)
    assert (sizes.row == 0) == (model == "dense")
    assert (sizes.cell == 0) == (model == "recurrent")
