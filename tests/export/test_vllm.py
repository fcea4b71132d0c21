"""A scenario as a test of vLLM's own suite."""

import ast

import pytest

from cachesim.export.case import Case, case_of
from cachesim.export.proof import prove
from cachesim.export.vllm import pytest_of
from cachesim.scenario.shipped import load_all


def case(name: str) -> Case:
    [(_, scenario)] = load_all([name])
    return case_of(scenario)


@pytest.mark.parametrize("name", ["vllm-whole-blocks-state", "vllm-54360-drafts-and-no-hits"])
def test_a_test_is_python_and_names_nothing_of_ours(name: str) -> None:
    text = pytest_of(case(name))

    ast.parse(text)
    assert "cachesim" not in text.lower()
    assert [] == [line for line in text.splitlines() if len(line) > 100]


def test_lost_reuse_is_the_count_of_the_release_that_has_it() -> None:
    text = pytest_of(case("vllm-whole-blocks-state"))

    assert 'cached = run(scheduler, make_request("again", P, max_tokens=1))' in text
    assert 'assert cached["again"] >= 80' in text
    assert "xfail" not in text


def test_what_no_release_keeps_is_a_strict_xfail_with_its_report() -> None:
    text = pytest_of(case("vllm-52520-pool-one-block-short"))

    assert '@pytest.mark.xfail(strict=True, reason="vllm-project/vllm#52520")' in text


def test_groups_and_a_drafter_are_those_of_the_server() -> None:
    text = pytest_of(case("vllm-54360-drafts-and-no-hits"))

    assert 'mamba_cache_mode="align"' in text
    assert "prefix_cache_retention_interval=0" in text
    assert 'method="eagle"' in text


def test_a_wrong_answer_needs_a_model() -> None:
    with pytest.raises(Exception, match="scheduler tests have no model"):
        pytest_of(case("vllm-state-of-half-a-block"))


@pytest.mark.wheel
def test_a_test_fails_on_the_release_with_the_defect_and_passes_on_one_without() -> None:
    wrong = case("vllm-whole-blocks-state")
    proof = prove(wrong, pytest_of(wrong))

    assert proof.red is not None
    assert proof.green is not None
    assert ("fails", "passes") == (proof.red.result, proof.green.result)
