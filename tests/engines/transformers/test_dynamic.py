"""`DynamicCache` by kinds of layers: what is kept, cropped, reordered and selected."""

import pytest

from cachesim.engines.transformers import dynamic
from cachesim.engines.transformers.dynamic import (
    KERNEL,
    Hybrid,
    Keys,
    LayerRules,
    States,
    WindowKeys,
)
from cachesim.engines.transformers.dynamic import DynamicCache as Cache
from cachesim.engines.transformers.family import FAMILY
from conformance.real.transformers.caches import compare_layers, draw_layers, layers_played
from conformance.real.transformers.environments import NEWEST, environment_for

RULES = LayerRules()


def test_full_attention_is_cut_back_to_the_tokens_before() -> None:
    keys = Keys(RULES)
    keys.feed([[5, 7, 9]])
    keys.crop(-2)
    assert [[5]] == keys.rows


def test_a_positive_crop_is_a_length_in_5_18_and_refused_since_5_20() -> None:
    def cropped(release: str) -> object:
        keys = Keys(FAMILY.release(release).rules.layers)
        keys.feed([[5, 7, 9]])
        keys.crop(1)
        return keys.rows

    assert [[5]] == cropped("5.18.0")
    with pytest.raises(ValueError, match="positive"):
        cropped("5.20.2")


def test_a_window_refuses_to_go_back_unless_it_records() -> None:
    keys = WindowKeys(RULES, 3)
    keys.feed([[1, 2, 3, 4]])
    assert [[3, 4]] == keys.rows
    with pytest.raises(RuntimeError):
        keys.crop(-1)


def test_a_window_that_records_goes_back_once_and_then_has_too_few_keys() -> None:
    keys = WindowKeys(RULES, 3)
    keys.record()
    keys.feed([[1, 2, 3, 4, 5]])
    keys.crop(-1)
    assert ([[3, 4]], 4) == (keys.rows, keys.length)
    keys.crop(-1)
    assert ([[3]], 3) == (keys.rows, keys.length)  # a window has two


def test_crop_leaves_the_tokens_that_go_in_a_state() -> None:
    states = States(RULES, KERNEL, recurrent=True)
    states.record()
    states.feed([[1, 2, 3, 4, 5]])
    before = states.states
    states.crop(-2)
    assert [[1, 2, 3]] == states.rows
    assert before == states.states
    assert not states.croppable


def test_a_refused_crop_has_cropped_the_layers_before() -> None:
    cache = Cache(RULES, ["full_attention", "linear_attention"], 3)
    cache.feed([[1, 2, 3]])
    with pytest.raises(RuntimeError):
        cache.call("crop", -1)
    assert [[1, 2]] == cache.layers[0].rows


def test_selection_moves_the_keys_of_a_hybrid_layer_and_not_its_states() -> None:
    states = States(RULES, KERNEL, recurrent=True)
    hybrid = Hybrid(RULES, states, Keys(RULES))
    hybrid.feed([[1], [2]])
    before = states.content()
    hybrid.select([1, 0])
    assert [[2], [1]] == hybrid.keys.rows
    assert before == states.content()
    hybrid.reorder([1, 0])
    assert [[1], [2]] == hybrid.keys.rows
    assert before != states.content()


def test_one_row_fills_the_states_of_a_larger_batch_before_a_reset() -> None:
    states = States(RULES, 2, recurrent=True)
    states.feed([[1], [2], [3]])
    states.reset()
    states.feed([[4]])
    assert ([[0, 4]] * 3, [4, 4, 4]) == (states.rows, states.states)


def test_the_same_seed_draws_the_same_script() -> None:
    assert draw_layers(0, 5) == draw_layers(0, 5)
    assert draw_layers(0, 5) != draw_layers(1, 5)


def test_scripts_reach_every_kind_and_operation() -> None:
    scripts = [draw_layers(0, number) for number in range(60)]
    names = {name for script in scripts for name, _ in script["steps"]}
    assert {"feed", "crop", "record", "reorder", "select", "repeat", "reset"} == names
    assert set(dynamic.KINDS) == {kind for script in scripts for kind in script["kinds"]}
    results = [result for script in scripts for result, _ in layers_played(script, NEWEST)]
    errors = {"AttributeError", "IndexError", "RuntimeError", "TypeError", "ValueError"}
    assert errors == {result for result in results if isinstance(result, str)}


def real(release: str, *marks: pytest.MarkDecorator) -> object:
    ready = environment_for(release).is_ready()
    there = pytest.mark.skipif(not ready, reason="torch is not installed")
    return pytest.param(release, marks=[pytest.mark.wheel, there, *marks])


OLDER = [real(each, pytest.mark.nightly) for each in ("5.18.0", "5.20.2", "5.23.0")]


@pytest.mark.parametrize("release", [real(NEWEST), *OLDER])
def test_layers_agree_with_the_real_classes(release: str) -> None:
    assert 0 == compare_layers(environment_for(release).python, release, 0, 60)


@pytest.mark.parametrize("release", [real(NEWEST)])
def test_a_window_of_one_key_more_is_seen(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(rules: LayerRules, window: int) -> WindowKeys:
        return WindowKeys(rules, window + 1)

    monkeypatch.setitem(dynamic.KINDS, "sliding_attention", larger)  # type: ignore[arg-type]
    assert 1 == compare_layers(environment_for(release).python, release, 0, 60)
