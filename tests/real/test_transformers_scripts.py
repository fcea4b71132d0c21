"""Scripts of cache operations on Transformers' models: drawn, played and reduced without torch."""

from collections.abc import Mapping
from typing import Any

import pytest

from cachesim.errors import OptionError
from cachesim.lab.real.transformers import commands
from cachesim.lab.real.transformers.commands import environment_for
from cachesim.lab.real.transformers.results import Cell, Found, show
from cachesim.lab.real.transformers.script_worker import Play
from cachesim.lab.real.transformers.scripts import OPERATIONS, drawn, shrunk, smaller, text_of
from cachesim.lab.real.worker_process import WorkerError

SCRIPT = [["feed", 14], ["record"], ["feed", 3], ["crop", -2], ["feed", 4]]


class Stub:
    """A worker whose answers are given by family."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    def order(self, wanted: Mapping[str, Any]) -> Any:
        answer = self.answers[wanted["family"]]
        if answer is None:
            msg = "transformers ended"
            raise WorkerError(msg)
        return answer


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_script_is_drawn_from_its_seed_and_has_steps_that_the_worker_plays(
    operation: str,
) -> None:
    script = drawn(operation, "llama", 0)
    assert script == drawn(operation, "llama", 0)
    assert all(hasattr(Play, f"do_{name}") for name, *_ in script)


def test_scripts_of_another_family_or_seed_are_others() -> None:
    assert drawn("chunks", "llama", 0) != drawn("chunks", "mamba2", 0)
    assert drawn("chunks", "llama", 0) != drawn("chunks", "llama", 1)


def test_a_script_is_reduced_to_the_steps_and_numbers_that_fail() -> None:
    def fails(script: list[list[Any]]) -> bool:
        fed = sum(given[0] for name, *given in script if name == "feed")
        return ["record"] in script and fed > 4

    assert "record, feed 1, feed 4" == text_of(shrunk(SCRIPT, fails))


def test_every_simpler_script_is_another_one() -> None:
    simpler = list(smaller(SCRIPT))
    assert SCRIPT not in simpler
    assert len(simpler) == len({text_of(each) for each in simpler})


def test_results_are_counted_and_families_without_results_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [
        {"verdict": "wrong", "gap": 0.5, "place": "layer 0, DynamicLayer.keys"},
        {"verdict": "refused", "error": "RuntimeError: no", "place": "cache_utils.py:1"},
    ]
    worker: Any = Stub(
        {
            "a": {"causal": True, "results": results},
            "b": {"unbuilt": "KeyError: 'x'"},
            "c": {"causal": False},
            "d": None,
        }
    )
    found, scripts = Found("5.23.0"), {"crop": SCRIPT, "fork": SCRIPT[:1]}
    for family in "abcd":
        commands.play_family(worker, family, scripts, "eager", found)
    assert [("crop", "wrong"), ("fork", "refused")] == [
        (each.operation, each.verdict) for each in found.cells
    ]
    show(found, "title")
    printed = capsys.readouterr().out
    assert "1 families, 2 checks" in printed
    assert "a cold run depends on later tokens: c" in printed
    assert "not built: b: KeyError: 'x'" in printed
    assert "not built: d: the process ended" in printed


def test_the_smallest_script_is_printed_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = {"verdict": "wrong", "gap": 0.25, "place": "layer 1, DynamicLayer.keys"}
    worker: Any = Stub({"a": {"results": [wrong], "fields": {}, "key": "past_key_values"}})
    cell = Cell(
        release="5.23.0", family="a", operation="crop", script=[["feed", 2], ["crop", -1]], **wrong
    )
    commands.show_smallest(worker, cell, "eager")
    expected = "a, crop: crop -1: off by 0.25 deviations; first difference in layer 1, Dynamic"
    assert capsys.readouterr().out.replace("\n", " ").startswith(expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"release": ["newest"]}, "--release 'newest' is no release of transformers; write one as"),
        ({"operation": ["cut"]}, "--operation cut is unknown; there are tokens, prefill"),
        ({"attention": "flash"}, "--attention flash is unknown; write eager or sdpa"),
    ],
)
def test_wrong_usage_has_a_sentence(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        commands.real_transformers(**words)


def test_older_releases_get_the_hub_that_they_need() -> None:
    assert "huggingface_hub<2" in environment_for("5.14.1").requirements
    assert "huggingface_hub<2" not in environment_for("5.15.0").requirements
