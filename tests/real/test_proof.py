"""Answers of the real server, held against its own cold ones."""

import math
from dataclasses import replace

from cachesim.lab.real.llama_cpp.calls import call_for
from cachesim.lab.real.llama_cpp.scenarios import Proof, alone_of, divergence_of
from cachesim.lab.real.llama_cpp.workload import Outcome
from cachesim.scenario.format import Step
from cachesim.units import Token, as_tokens


def outcome(reply: list[int], *rows: float) -> Outcome:
    """A reply whose rows differ from a row of zeros by so much, at token 7."""
    return Outcome(reply=as_tokens(reply), top=tuple({Token(7): row} for row in rows))


def test_every_token_is_compared_and_the_first_of_the_farthest_is_named() -> None:
    cold = outcome([1, 2, 3, 4], 0.0, 0.0, 0.0, 0.0)

    assert (0.5, 2) == divergence_of(outcome([1, 2, 3, 4], 0.0, 0.25, 0.5, -0.5), cold)
    assert (0.0, 0) == divergence_of(cold, cold)


def test_rows_behind_the_first_token_that_differs_belong_to_other_texts() -> None:
    cold = outcome([1, 2, 3, 4], 0.0, 0.0, 0.0, 0.0)

    assert (0.25, 1) == divergence_of(outcome([1, 9, 3, 4], 0.0, 0.25, 8.0, 8.0), cold)


def test_an_answer_is_wrong_where_rounding_cannot_explain_it() -> None:
    assert "same 0.0002" == str(Proof(distance=2e-4, token=3, noise=0.0))
    assert "WRONG 0.013, token 4" == str(Proof(distance=0.013, token=3, noise=1e-4))
    assert "same 0.01" == str(Proof(distance=0.013, token=3, noise=0.01))


def test_a_token_without_a_row_is_not_compared() -> None:
    """Servers that verify drafts give no probabilities of what they accept."""
    cold = outcome([1, 2, 3], 0.0, 0.0, 0.0)
    drafted = replace(cold, top=(cold.top[0], {}, cold.top[2]))

    assert (0.0, 0) == divergence_of(drafted, cold)
    assert (math.inf, 1) == divergence_of(replace(cold, top=(cold.top[0], {900: 0.0})), cold)


def test_a_cold_prompt_is_made_as_the_warm_one() -> None:
    gap = Step(
        name="a",
        prompt=as_tokens([300]),
        suffix=as_tokens([301]),
        slot=1,
        completions=2,
        options={"endpoint": "infill", "n_cache_reuse": 4},
    )

    alone = alone_of(gap, [0.5])

    assert ("/infill", "[300]", "[301]") == (
        call_for([alone])["path"],
        call_for([alone])["body"]["input_prefix"],
        call_for([alone])["body"]["input_suffix"],
    )
    lora = [{"id": 0, "scale": 0.5}]
    assert {"endpoint": "infill", "lora": lora} == alone.options
    assert (-1, 1) == (alone.slot, alone.completions)
