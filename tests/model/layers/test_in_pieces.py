"""A recurrent layer that cuts a long prompt for itself says and keeps what it would as a whole."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.model.build import build
from cachesim.model.layers import pieces
from cachesim.model.plain import PlainStore
from cachesim.model.presets import preset, tiny
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Ubatch
from cachesim.units import Array


class Keeping(PlainStore):
    """A plain store that remembers all planes it was given."""

    def keep_states(self, layer: int, states: Array) -> None:
        super().keep_states(layer, states)
        self.planes_of = {**getattr(self, "planes_of", {}), layer: states}


def played(
    spec: ModelSpec, count: int, planes: int, asked: list[int]
) -> tuple[Array, dict[int, Array]]:
    network = build(spec)
    store = Keeping(network, planes=planes)
    tokens = np.random.default_rng(count).integers(0, 512, 7 + count)
    network.run(Ubatch(tokens=tokens[:7], positions=np.arange(7)), store)
    ubatch = Ubatch(
        tokens=tokens[7:], positions=np.arange(7, 7 + count), outputs=np.array(asked, np.int64)
    )
    return network.run(ubatch, store).logits, store.planes_of


def in_one_piece(
    spec: ModelSpec, count: int, planes: int, asked: list[int]
) -> tuple[Array, dict[int, Array]]:
    with patch("cachesim.model.layers.ssm.is_long", lambda _: False):
        return played(spec, count, planes, asked)


@pytest.mark.parametrize("name", ["recurrent", "hybrid"])
@settings(max_examples=25)
@given(
    count=st.sampled_from([127, 128, 129, 130, 200, 256, 257, 300]),
    planes=st.integers(1, 5),
    asked=st.lists(st.integers(0, 126), max_size=40),
    last=st.booleans(),
)
def test_pieces_do_not_show(
    name: str, count: int, planes: int, asked: list[int], last: bool
) -> None:
    asked = [*asked, *([count - 1] if last else [])]

    expected, states = in_one_piece(tiny(name), count, planes, asked)
    logits, kept = played(tiny(name), count, planes, asked)

    assert np.array_equal(expected, logits)
    assert [each.shape for each in states.values()] == [each.shape for each in kept.values()]
    assert all(map(np.array_equal, states.values(), kept.values()))


def test_a_preset_does_not_care_either() -> None:
    expected, _ = in_one_piece(preset("recurrent"), 300, 1, [299, 4, 131])

    assert np.array_equal(expected, played(preset("recurrent"), 300, 1, [299, 4, 131])[0])


def test_a_relay_that_forgets_what_earlier_pieces_kept_is_caught() -> None:
    def forgetful(self: pieces.Relay, layer: int, states: Array) -> None:
        del layer
        self._before, self.kept = states[:, 0], states

    _, states = in_one_piece(tiny("recurrent"), 130, 4, [])
    with patch.object(pieces.Relay, "keep_states", forgetful):
        _, kept = played(tiny("recurrent"), 130, 4, [])

    assert states[0].shape != kept[0].shape
