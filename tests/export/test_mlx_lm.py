"""A scenario as a test of mlx-lm's own suite."""

import ast

import pytest

from cachesim.export.case import Case, case_of
from cachesim.export.mlx_lm import unittest_of
from cachesim.export.proof import prove
from cachesim.scenario.shipped import load_all


def case(name: str) -> Case:
    [(_, scenario)] = load_all([name])
    return case_of(scenario)


def test_a_store_is_asked_as_the_server_asks_it() -> None:
    text = unittest_of(case("mlx-lm-118-full-window"))

    ast.parse(text)
    assert "cachesim" not in text.lower()
    assert "self.complete(A[:90] + b, [" in text
    assert "self.assertEqual(reused, 0)" in text


def test_chats_are_not_for_the_classes() -> None:
    with pytest.raises(Exception, match="renders and cuts its chats"):
        unittest_of(case("mlx-lm-1035-merged-ring-ends-the-worker"))


@pytest.mark.wheel
def test_an_exact_repeat_fails_on_the_release_that_it_ends() -> None:
    wrong = case("mlx-lm-1215-exact-hit")
    proof = prove(wrong, unittest_of(wrong))

    assert proof.red is not None
    assert "fails" == proof.red.result
