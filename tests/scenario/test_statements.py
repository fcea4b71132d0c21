"""Statements on a step: a wrong memory, the outcome, the owners of tokens."""

from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.model.arithmetic import Place
from cachesim.model.trace import Fault
from cachesim.play import run
from cachesim.play.result import Run
from cachesim.play.runner import culprit
from cachesim.play.statements import because, side_by_side
from cachesim.report.story import prompt_parts
from cachesim.scenario import full_profile, load, scenario_of
from cachesim.scenario.shipped import shipped_file
from cachesim.units import Pos, Token, as_tokens
from tests.fixtures import Capture

FOLDER = Path(__file__).parents[2] / "scenarios" / "llama.cpp"
PAD = Token(0)


def played(name: str, profile: str) -> Run:
    scenario = load(shipped_file(name))
    return run(scenario, full_profile(scenario.engine.name, profile), arithmetic="ring")


def said(
    place: Place, holds: list[int], expected: list[int], position: int = 0, **more: bool
) -> str:
    fault = Fault(
        layer=2,
        place=place,
        token=Pos(len(expected)),
        position=Pos(position),
        holds=as_tokens(holds),
        expected=as_tokens(expected),
        **more,
    )
    return because(culprit(fault, [], PAD)).partition(" of layer 2 ")[2]


@pytest.mark.parametrize(
    ("holds", "expected", "words"),
    [
        ([5, 6, 7, 8], [5, 6], "is correct for 2 tokens, then 2 tokens too many"),
        ([5, 6, 0, 0, 0], [5, 6], "is correct for 2 tokens, then 3 padding tokens too many"),
        ([5, 6, 7], [5, 6], "is correct for 2 tokens, then 1 token too many"),
        ([5], [5, 6, 7], "is correct for 1 token, then 2 tokens missing"),
        ([], [5, 6, 7], "has 3 tokens missing"),
        ([9, 6], [5, 6], "starts with token 9, where this prompt has 5"),
        (
            [5, 9],
            [5, 6],
            "is correct for 1 token; token 2 in it is 9, here it is 6",
        ),
        (
            [5, 9, 9],
            [5, 6],
            (
                "is correct for 1 token; token 2 in it is 9, here it is 6;"
                " 1 token more than it should"
            ),
        ),
        ([0, 0, 5], [5], "has 2 padding tokens where this request has 5"),
    ],
)
def test_a_row_is_right_up_to_a_token_and_then_has_too_many_too_few_or_others(
    holds: list[int], expected: list[int], words: str
) -> None:
    assert words == said("recurrent", holds, expected)


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        ([], "holds nothing at position 1, where token 6 belongs"),
        ([5, 7], "holds token 7 at position 1, where this request has 6"),
        ([4, 6], ("holds the right token at position 1, but computed after other tokens:"
                  " its history is correct for 0 tokens")),
    ],
)  # fmt: skip
def test_a_cell_holds_nothing_another_token_or_the_right_one_of_another_history(
    holds: list[int], words: str
) -> None:
    assert words == said("attention", holds, [5, 6], position=1)


@pytest.mark.parametrize(
    ("holds", "expected", "more", "words"),
    [
        ([5, 6, 7, 8], [5, 6], {"extra": True}, "is correct for 2 tokens, then 2 tokens too many"),
        ([4, 6, 7], [5, 6], {"extra": True}, "holds a token too many at position 2: 7"),
        ([], [5, 6], {"extra": True},
         "has an empty row at position 2, beside that of the token there"),
        ([5, 6], [5, 6, 7], {"short": True}, "is correct for 2 tokens, then 1 token missing"),
    ],
)  # fmt: skip
def test_a_query_sees_cells_too_many_or_too_few(
    holds: list[int], expected: list[int], more: dict[str, bool], words: str
) -> None:
    assert words == said("attention", holds, expected, position=2, **more)


def test_hangs_aborts_and_refusals_are_three_things() -> None:
    fates = {
        name: {step.finding.fate for step in played(name, profile).steps}
        for name, profile in (
            ("llama.cpp-pinned-loops-forever", "b11549"),
            ("llama.cpp-pinned-ends-the-process", "b11549"),
            ("llama.cpp-context-limit", "b9538"),
        )
    }
    assert "hung" in fates["llama.cpp-pinned-loops-forever"]
    assert "aborted" in fates["llama.cpp-pinned-ends-the-process"]
    assert "refused" in fates["llama.cpp-context-limit"]


def test_a_foreign_token_is_not_drawn_as_reused() -> None:
    wrong = played("llama.cpp-three-requests", "b11549").steps[2]
    assert [("=", 0), ("^", 1), ("~", 0), ("+", 39)] == prompt_parts(wrong)


@pytest.mark.thorough
def test_a_step_that_loses_tokens_says_why_in_every_shipped_scenario() -> None:
    silent = []
    for file in sorted(FOLDER.glob("llama.cpp-24*.toml")):
        scenario = load(file)
        for profile in scenario.engine.profiles:
            steps = played(file.stem, profile).steps
            silent += [
                f"{file.stem} {step.name}"
                for step in steps
                if step.finding.fate == "lost"
                and not {"rule", "gone", "consumed", "together"}
                & {fact.word for fact in step.facts}
            ]
    assert [] == silent


def test_a_slot_that_cannot_be_restored_is_not_as_expected() -> None:
    mapping = {
        "format": 1,
        "name": "restore",
        "model": {"preset": "dense"},
        "engine": {"name": "llama.cpp", "profiles": ["b11549"]},
        "step": [{"prompt": [300, 301]}, {"do": "slot-restore", "file": "nothing.bin"}],
    }
    done = run(scenario_of(mapping), full_profile("llama.cpp", "b11549"), arithmetic="ring")
    assert not done.as_expected
    assert ["right", "failed"] == [step.finding.fate for step in done.steps]


@pytest.mark.parametrize(
    ("profiles", "name", "sides"),
    [
        (("b9538", "b11549+erase-equal"), "llama.cpp-three-requests",
         ("checkpoint 1[0..0] stays", "checkpoint 1[0..0] is erased")),
        (("b9093", "b9538"), "llama.cpp-window-checkpoint-one-token-beyond",
         ("nothing of the kind", "checkpoint 36[0..35] is saved")),
    ],
)  # fmt: skip
def test_diff_names_the_first_decision_that_differs_with_both_its_sides(
    profiles: tuple[str, str], name: str, sides: tuple[str, str], capsys: Capture
) -> None:
    one, other = profiles
    main(["compare", name, "-p", one, "-p", other])
    printed = " ".join(capsys.readouterr().out.split())
    _, _, parting = printed.partition("the first decision that differs is in request B: ")
    one, _, other = parting.partition(f"llama.cpp@{profiles[1]} ")
    assert sides[0] in one
    assert sides[1] in other


def test_only_a_step_that_was_run_names_a_release_where_it_goes_better() -> None:
    runs = [
        played("sglang-34870-eagle-window-counted-in-tokens", each)
        for each in ("0.5.23+no-34870", "0.5.23")
    ]
    ended, _ = side_by_side(runs)
    better = [[fact.sentence for fact in s.facts if fact.word == "but with"] for s in ended.steps]

    assert ["aborted", "not-run"] == [step.error for step in ended.steps]
    assert [["0.5.23: answer matches, 0 of 1024 cached"], []] == better
