"""Proposals that never merged, on the server: what they report, and what their states hold."""

from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import SnapshotRules


def test_the_mends_of_929_add_up() -> None:
    rules = FAMILY.rules(Profile.parse("mlx-lm@after-906+923+929.1+929.3")).server

    assert SnapshotRules(always_the_last_boundary=True, trims_each_layer_it_can=True) == (
        rules.snapshots
    )
