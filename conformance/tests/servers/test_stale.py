"""A model whose answers hardly depend on what is cached is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from cachesim.errors import InputError
from cachesim.model.presets import preset
from conformance.servers import vllm
from conformance.servers.stale import refuse_forgetful, refuse_stale

pytestmark = pytest.mark.workbench


@pytest.mark.parametrize("name", ["dense", "hybrid-delta"])
def test_the_presets_are_models_whose_stale_states_show(name: str) -> None:
    refuse_forgetful(preset(name))


def test_a_model_whose_blocks_add_almost_nothing_certifies_nothing() -> None:
    forgetful = replace(preset("hybrid-delta"), mix=1e-4)

    with pytest.raises(InputError, match="certifies nothing"):
        refuse_forgetful(forgetful)


def test_what_a_stale_state_moves_is_held_against_the_rounding_of_the_same_model() -> None:
    far = {"0": 0.0, "1": 0.5, "16": 2.0, "100": 6.0}
    refuse_stale("toy", {"mamba": far})

    with pytest.raises(InputError, match="its mamba layers keep may be of 1 other tokens"):
        refuse_stale("toy", {"mamba": far | {"0": 0.06}})


def test_a_release_without_a_wheel_is_named_with_one_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no 0\.33\.0: name an older release, such as vllm@"):
        next(vllm("0.33.0", tmp_path, ()))
