"""One workload on all engines: the rows that were measured on the engines' own classes."""

import json
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Final

import pytest

from cachesim.cli.compare import row_of
from cachesim.cli.main import main
from cachesim.engines import FAMILIES
from cachesim.engines.base import Reply
from cachesim.engines.causes import Cause, Loss
from cachesim.errors import ScenarioError
from cachesim.play import run
from cachesim.play.comparing import (
    BOUND,
    REFUSED,
    Row,
    compare,
    newest,
    policies,
    read,
    served_by,
)
from cachesim.scenario import full_profile, limits
from cachesim.scenario.files import load
from cachesim.scenario.format import Model
from cachesim.scenario.shipped import shipped_file, shipped_files
from cachesim.units import Count
from cachesim.verify.explain import lost_below
from tests.fixtures import Capture, Patch, output

POLICIES: Final = policies()
HYBRID: Final = Model(preset="hybrid")
TRACE: Final = load(shipped_file("sglang-seven-kinds-of-request"))

MEASURED: Final = (
    (0, 199, 203, 150, 150, 199, 256),  # the bound: Marconi's artifact keeps a reply's last token
    (0, 199, 202, 150, 150, 199, 255),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 128, 192, 192),
    (0, 192, 192, 0, 128, 192, 192),
    (0, 192, 192, 0, 128, 192, 240),
    (0, 176, 176, 0, 0, 176, 224),
    (0, 0, 0, 0, 0, 0, 0),
    (0, 0, 176, 0, 128, 128, 176),
    (0, 176, 176, 0, 128, 176, 224),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),  # not measured: no wheel has the fixes
    (0, 0, 202, 0, 0, 0, 255),
    (0, 192, 192, 0, 128, 128, 192),
    (0, 0, 203, 0, 150, 150, 256),
    (0, 0, 202, 0, 150, 150, 255),
)
"""Every policy's hits, row by row; the last two are Marconi's, as in its artifact and as it should
be counted.
"""


def test_every_policy_reuses_what_was_measured() -> None:
    found = list(compare(TRACE, POLICIES, arithmetic="counts"))

    assert [BOUND, *(row.name for row in POLICIES)] == [each.name for each in found]
    assert MEASURED == tuple(each.cached for each in found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "sglang-seven-kinds-of-request",
        "llama.cpp-21099-too-few-checkpoints",  # checkpoints win back what a refused cut lost
        "llama.cpp-25953-checkpoints-beyond-the-limit",  # some rows refuse what others answer
        "llama.cpp-cancel-and-retry",  # what a cancelled request computed is reused
        "mlx-lm-1215-exact-hit",  # the first row knows more requests than another one
        "sglang-eagle-page-freed-too-early",  # more is granted than was equal
    ],
)
def test_what_was_lost_adds_up_to_a_bound_that_no_row_beats(name: str) -> None:
    scenario = load(shipped_file(name))
    bound, *found = compare(scenario, (*newest(), *POLICIES[-4:]), arithmetic="counts")

    for row in (each for each in found if not each.problem):
        for most, cached in zip_longest(bound.cached, row.cached):
            assert (most or 0) >= (cached or 0)
        assert bound.reused == row.reused + sum(row.lost.values())
        assert all(tokens > 0 for tokens in row.lost.values())


@pytest.mark.thorough
def test_requests_keep_their_columns_where_a_row_refuses_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(limits, "TURNS", 2_000)  # ik_llama.cpp's reply never ends
    scenario = load(shipped_file("llama.cpp-context-limit"))
    bound, *found = compare(scenario, newest(), arithmetic="counts")
    ik = next(each for each in found if each.name.startswith("ik_llama.cpp"))

    assert {3} == {len(each.cached) for each in (bound, *found)}
    assert (None, None, None) == ik.cached
    assert {REFUSED: 7} == ik.lost


def test_a_row_whose_requests_are_all_refused_says_why() -> None:
    scenario = load(shipped_file("llama.cpp-context-limit"))
    row = Row(name="small", profile="vllm@0.33.0", options={"max_model_len": 4})
    beside = Row(name="beside", profile="llama.cpp@b11549")
    _, small, _ = compare(scenario, (row, beside), arithmetic="counts")

    assert small.as_dict()["reused"] is None
    assert small.problem.startswith("no request was answered; the first one: ")
    assert "4" in small.problem


def test_an_answer_that_differs_by_design_is_counted() -> None:
    scenario = load(shipped_file("llama.cpp-chunk-reuse-dense"))
    rows = [
        Row(name="moves", profile="llama.cpp@b11549"),
        Row(name="not", profile="llama.cpp@b11549", options={"cache_reuse": 0}),
    ]
    _, moves, keeps = compare(scenario, rows)

    assert [(0, 1), (0, 0)] == [(each.wrong, each.by_design) for each in (moves, keeps)]


def test_a_row_with_a_model_keeps_the_flags_of_its_own_engine() -> None:
    scenario = load(shipped_file("llama.cpp-context-limit"))
    row = Row(name="hybrid", profile="llama.cpp@b11549", model=HYBRID, options={"parallel": 1})

    assert {"ctx_size": 256, "parallel": 1} == dict(served_by(scenario, row).engine.options)


def test_a_token_is_lost_to_the_rule_that_lowered_the_number_last() -> None:
    def lost(*changes: tuple[str, int, int], equal: int, cached: int, bound: int) -> Counter[str]:
        losses = tuple(
            Loss(
                cause=Cause(id=rule, sentence="a", about="b"),
                before=Count(before),
                after=Count(after),
            )
            for rule, before, after in changes
        )
        reply = replace(Reply.empty(), equal=Count(equal), cached=Count(cached), losses=losses)
        return lost_below(reply, bound)

    cut, back = ("cut", 600, 0), ("back", 0, 596)
    assert {"cut": 4} == lost(cut, back, equal=600, cached=596, bound=600)
    assert {"cut": 3} == lost(cut, back, equal=600, cached=596, bound=599)
    assert {"cut": 4, "not-held": 100} == lost(cut, back, equal=600, cached=596, bound=700)
    assert {"late": 96, "cut": 4} == lost(
        cut, back, ("late", 596, 500), equal=600, cached=500, bound=600
    )
    assert {"none": 16} == lost(("more", 0, 16), ("none", 16, 0), equal=0, cached=0, bound=16)
    assert {} == lost(("more", 0, 16), equal=0, cached=16, bound=16)


def test_answers_are_judged_and_bytes_are_counted() -> None:
    rows = (
        Row(name="right", profile="sglang@0.5.23", model=HYBRID),
        Row(name="wrong", profile="sglang@0.5.23+no-29368", model=HYBRID),
    )
    _, right, wrong = compare(TRACE, rows)

    assert (0, True) == (right.wrong, (right.bytes or 0) > 0)
    assert wrong.wrong is not None
    assert wrong.wrong > 0


def test_all_engines_are_rows_and_what_cannot_be_played_says_why() -> None:
    assert set(FAMILIES) == {row.profile.partition("@")[0] for row in newest()}
    rows = (Row(name="x", profile="sglang@0.5.23", options={"page_size": 0}),)
    [found] = compare(TRACE, rows)
    assert "page_size" in found.problem


def test_the_command_prints_json_and_a_row_of_ones_own(capsys: Capture) -> None:
    words = ["compare", "sglang-seven-kinds-of-request", "--row", "sglang@0.5.23,page_size=64"]

    told = json.loads(output(capsys, [*words, "--arithmetic", "counts", "--format", "json"]))

    assert [BOUND, "sglang@0.5.23,page_size=64"] == [row["name"] for row in told["rows"]]
    assert told["rows"][0]["reused"] > told["rows"][1]["reused"]


def test_a_row_may_name_a_release_alone_as_a_profile_may(capsys: Capture) -> None:
    words = ["compare", "llama.cpp-context-limit", "--row", "b9538", "--format", "json"]

    assert [BOUND, "b9538"] == [row["name"] for row in json.loads(output(capsys, words))["rows"]]


def test_the_command_draws_a_picture(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "compared.svg"

    assert 0 == main(
        ["compare", "sglang-seven-kinds-of-request", "--arithmetic", "counts", "--plot", str(file)]
    )

    drawn = file.read_text()
    assert "sglang@0.5.23" in drawn
    assert "832 of 1,559" in drawn
    assert BOUND in capsys.readouterr().out


def test_the_table_fits_into_eighty_columns(capsys: Capture) -> None:
    lines = output(
        capsys, ["compare", "sglang-seven-kinds-of-request", "--arithmetic", "counts"]
    ).splitlines()
    assert any("against the bound" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"write one or more \[\[row\]\]"),
        ("row = 3", r"write one or more \[\[row\]\]"),
        ("[[row]]\nname = 'x'", "row 1: profile is missing"),
        ("[[row]]\nname = 'x'\nprofile = 'y'\nsize = 3", "row 1: there is no 'size'"),
        ("[[row]]\nname = 'x'\nprofile = 'y'\nmodel = {width = 3}", "takes preset and window"),
        ("[[row]", "Expected"),
    ],
)
def test_a_wrong_file_of_rows_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read(text, "mine.toml")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("sglang@0.5.23,page_size=16,mode=a", {"page_size": 16, "mode": "a"}),
        ('llama.cpp@b11549,lora="a,b",parallel=2', {"lora": "a,b", "parallel": 2}),
        ("llama.cpp@b11549,lora=a,b,--ctx-size=64", {"lora": "a,b", "ctx_size": 64}),
        ("vllm@0.33.0", {}),
    ],
)
def test_a_row_is_divided_before_its_flags_and_not_within_a_value(
    text: str, options: dict[str, object]
) -> None:
    row = row_of(text)

    assert (text.partition(",")[0], options) == (row.profile, row.options)


@pytest.mark.parametrize("profile", ["vllm@0.33.0", "llama.cpp@b9093"])
def test_starts_of_messages_are_left_out_where_a_server_has_none(profile: str) -> None:
    marked = {"message_spans": [{"role": "user", "start": 8}]}
    steps = tuple(replace(step, options=marked) for step in TRACE.step)
    rows = (Row(name="it", profile=profile),)

    without, with_them = compare(TRACE, rows), compare(replace(TRACE, step=steps), rows)

    assert [each.as_dict() for each in without] == [each.as_dict() for each in with_them]


def test_another_field_of_a_request_is_refused_where_a_server_has_none() -> None:
    steps = tuple(replace(step, options={"cache_salt": "a"}) for step in TRACE.step)
    (found,) = compare(replace(TRACE, step=steps), (Row(name="it", profile="sglang@0.5.23"),))

    assert "has no request field 'cache_salt'" in found.problem


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [path.stem for path in shipped_files()])
def test_a_scenario_is_compared_as_it_is_run(name: str) -> None:
    scenario = load(shipped_file(name))
    profiles = [full_profile(scenario.engine.name, each) for each in scenario.engine.profiles[:3]]
    rows = [Row(name=str(each), profile=str(each), as_written=True) for each in profiles]
    compared = list(compare(scenario, rows, arithmetic="counts"))[-len(rows) :]

    for profile, row in zip(profiles, compared, strict=True):
        played = run(scenario, profile, arithmetic="counts", verify=False)
        answered = [
            None if step.error else step.cached
            for step, asked in zip(played.steps, scenario.step, strict=True)
            if asked.do == "complete"
        ]

        assert all(each is None for each in answered) == bool(row.problem)
        assert answered == list(row.cached)


RESET: Final = [
    "compare",
    "ik_llama.cpp-1889-refused-trim-empties-both-contexts",
    "--arithmetic",
    "counts",
]
REFUSING: Final = ["-p", "d2da6da05", "-p", "d2da6da05+1889"]


def test_three_profiles_keep_the_flags_of_the_scenario_as_two_do(capsys: Capture) -> None:
    assert 1 == main([*RESET, *REFUSING, "--format", "json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    two = [[step["cached"] for step in each["steps"]] for each in runs]
    third = ["-p", "d2da6da05+1888"]
    told = json.loads(output(capsys, [*RESET, *REFUSING, *third, "--format", "json"]))

    assert [[0, 0, 410], [0, 395, 410]] == two
    assert [*two, [0, 0, 410]] == [row["cached"] for row in told["rows"][1:]]


def test_a_flag_of_the_command_replaces_that_of_the_scenario(capsys: Capture) -> None:
    words = [*RESET, *REFUSING, "-p", "d2da6da05,companion=attn", "--format", "json"]
    told = json.loads(output(capsys, words))

    assert [0, 395, 395] == [row["cached"][1] for row in told["rows"][1:]]


def test_another_engine_refuses_flags_that_it_does_not_have(capsys: Capture) -> None:
    shown = output(capsys, [*RESET, *REFUSING, "-p", "llama.cpp@b9538", "--format", "json"])

    assert (
        "engine.options: llama.cpp@b9538 has no option 'companion'; "
        "--row llama.cpp@b9538: with flags of its own"
    ) == json.loads(shown)["rows"][-1]["problem"]


def test_rows_without_the_flags_of_the_scenario_are_named(capsys: Capture) -> None:
    assert 0 == main([*RESET, *REFUSING, "--row", "llama.cpp@b9538"])

    noted = " ".join(capsys.readouterr().err.split())
    flags = "the scenario's flags (companion, draft_max) are ik_llama.cpp's"
    assert f"{flags}: not set on llama.cpp@b9538" == noted


def test_a_row_with_a_model_is_sent_the_same_prompts() -> None:
    seeded = replace(TRACE, model=replace(TRACE.model, preset="hybrid", seed=7))
    kept = Row(name="a", profile="vllm@0.33.0")
    named = replace(kept, model=HYBRID)
    _, *rows = compare(seeded, (kept, named), arithmetic="counts")

    assert rows[0].cached == rows[1].cached
    assert 7 == served_by(seeded, named).model.seed
