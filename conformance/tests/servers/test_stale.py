"""A model whose answers hardly depend on what is cached is refused."""

from dataclasses import replace

import pytest

from cachesim.errors import InputError
from cachesim.model.presets import preset
from conformance.servers.stale import refuse_forgetful

pytestmark = pytest.mark.workbench


@pytest.mark.parametrize("name", ["dense", "hybrid-delta"])
def test_the_presets_are_models_whose_stale_states_show(name: str) -> None:
    refuse_forgetful(preset(name))


def test_a_model_whose_blocks_add_almost_nothing_certifies_nothing() -> None:
    forgetful = replace(preset("hybrid-delta"), mix=1e-4)

    with pytest.raises(InputError, match="certifies nothing"):
        refuse_forgetful(forgetful)
