"""A sample of answers is computed from the cache and cold: what is reused wrongly is found."""

import json

import pytest

from cachesim.cli.main import main
from cachesim.engines.tokens import Rope
from cachesim.errors import InputError
from cachesim.lab.traces.replay import Cell
from cachesim.lab.traces.source import Source
from cachesim.lab.traces.verifying import Spelling, spread, verified

SERVERS = (
    "llama.cpp@b11549", "ik_llama.cpp@8337e4cd3", "mlx-lm@0.32.2", "vllm@0.33.0",
    "sglang@0.5.23", "marconi@paper",
)  # fmt: skip


def cell(profile: str, model: str, **source: int) -> Cell:
    return Cell(source=Source(name="made:60:4", scale=32, **source), profile=profile, model=model)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", [0, 20])
@pytest.mark.parametrize("profile", SERVERS)
def test_arithmetic_decides_as_counts_do_and_answers_as_a_cold_run_does(
    profile: str, turn: int
) -> None:
    found = verified(cell(profile, "dense", turn=turn), 10)

    assert (10, (), 0) == (found.sampled, found.wrong, found.otherwise)
    assert found.reusing >= 10


@pytest.mark.parametrize("profile", ["mlx-lm@0.32.2+1186", "ik_llama.cpp@d2da6da05+1689"])
def test_a_state_that_is_reused_where_it_does_not_belong_is_found(profile: str) -> None:
    found = verified(cell(profile, "hybrid"), 8)

    assert (8, 8) == (found.sampled, len(found.wrong))
    assert not found.right


def test_a_wrong_answer_is_told_and_ends_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "made:60:4", "-p", "mlx-lm@0.32.2+1186", "--verify", "2"]

    assert 1 == main(words)
    told = " ".join(capsys.readouterr().out.split())
    assert "2 of 27 requests that reused something were computed with and without" in told
    assert "request 1, 16 of 42 tokens reused: the logits of its reply differ from a cold" in told


def test_right_answers_end_with_status_0_and_are_in_the_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["compare", "made:60:4", "-p", "vllm@0.33.0", "--verify", "3", "--format", "json"]

    assert 0 == main(words)
    bound, row = json.loads(capsys.readouterr().out)
    assert "verified" not in bound
    assert (3, [], 0) == tuple(row["verified"][name] for name in ("sampled", "wrong", "otherwise"))


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="--verify is 0"):
        verified(cell("vllm@0.33.0", "dense"), 0)


def test_a_sample_is_spread_over_all_that_reuse() -> None:
    assert [1, 5, 9] == spread([1, 5, 9], 4)
    assert [0, 33, 66, 99] == spread(list(range(100)), 4)
    assert [99] == spread(list(range(100)), 1)


def test_blocks_are_spelt_alike_wherever_they_stand_and_begin_differently() -> None:
    spelling = Spelling()
    one = spelling.of(Rope([(7, 0, 16), (9, 0, 3)]))  # type: ignore[arg-type]
    other = spelling.of(Rope([(7, 0, 16), (8, 0, 3)]))  # type: ignore[arg-type]

    assert one[:16] == other[:16]
    assert one[16] != other[16]
    assert 16 == len(set(one[:16]))
