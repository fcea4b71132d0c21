"""Searches that start from given requests: `check --like`."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from cachesim.cli.like import SIZES, scenarios_like
from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.scenario.files import loads, to_toml
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from cachesim.testing.around import Around
from cachesim.testing.guided import MOST
from cachesim.testing.search import play, trials
from cachesim.testing.workloads import Shape

LOG = "docs/examples/hybrid.log"
THREE = "llama.cpp-three-requests"
CODES = "llama.cpp-two-codes"
CHAT = "llama.cpp-reasoning-stripped"
COMPRESSED = "vllm-42948-compressor-states"
IMAGES = "llama.cpp-19877-another-image"
OCTOBER = "llama.cpp@b11549"


def given(name: str) -> Scenario:
    return load_all([name])[0][1]


def around(*names: str) -> Shape:
    return Shape(incidents=True, chats=True, guided=True, around=tuple(map(given, names)))


def played(name: str, profile: str, number: int) -> Around:
    model = str(given(name).model.preset)
    client = Around(Profile.parse(profile), model, number, seed=0, shape=around(name))
    for _ in client.run():
        pass
    return client


def prompts(client: Around) -> list[int]:
    """Lengths of the given prompts, as sent."""
    return [len(step.ids) for step in client.scenario.step if step.name.startswith("given")]


def test_workloads_begin_with_the_given_requests_and_some_change_them() -> None:
    sent = [tuple(prompts(played(THREE, OCTOBER, number))) for number in range(32)]

    assert sent.count((5, 40, 40)) > 8
    assert any(len(each) > 3 for each in sent), "one was sent again"
    assert any(len(each) < 3 for each in sent), "one was left out"
    assert any(set(each) - {5, 40} for each in sent), "one was cut"


def test_drawn_requests_continue_the_given_ones() -> None:
    continued = 0
    for number in range(8):
        steps = played(THREE, OCTOBER, number).scenario.step
        own = [step.ids for step in steps if step.name.startswith("given")]
        drawn = [step.ids for step in steps if step.name.startswith("r")]
        continued += any(ids[: len(one)] == one for ids in drawn for one in own)

    assert continued > 4


def test_a_chat_is_continued_as_a_chat() -> None:
    own, *_ = (step.messages for step in given(CHAT).step)
    steps = played(CHAT, OCTOBER, 0).scenario.step

    assert all(step.messages for step in steps if step.do == "complete")
    assert len(own) == len(steps[0].messages)
    assert max(len(step.messages) for step in steps) > len(given(CHAT).step[-1].messages)


def test_half_of_the_servers_have_further_flags() -> None:
    flags = [played(THREE, OCTOBER, number).scenario.engine.options for number in range(16)]

    assert 4 < flags.count(dict(given(THREE).engine.options)) < 12


def test_flags_that_a_given_model_refuses_are_left_out() -> None:
    """Layers of DeepSeek V4 have no connector; those of the preset have."""
    own = dict(given(COMPRESSED).engine.options)
    drawn = islice(
        trials(
            Profile.parse("vllm@0.33.0"),
            str(given(COMPRESSED).model.preset),
            shape=around(COMPRESSED),
        ),
        12,
    )
    flags = [scenario.engine.options for _, scenario, _ in drawn]

    assert all(own.items() <= each.items() for each in flags)
    assert 12 > flags.count(own) > 4


def test_a_workload_depends_on_its_seed_and_number_alone() -> None:
    forwards = [played(CODES, OCTOBER, number).scenario for number in range(4)]
    backwards = [played(CODES, OCTOBER, number).scenario for number in reversed(range(4))]

    assert forwards == backwards[::-1]


@pytest.mark.parametrize("name", [THREE, CHAT, IMAGES])
def test_a_workload_is_a_scenario_that_fails_again_from_its_file(name: str) -> None:
    profile = Profile.parse(OCTOBER)
    drawn = trials(profile, str(given(name).model.preset), shape=around(name))
    for _, scenario, trial in islice(drawn, 8):
        if not scenario.step:  # images beside a flag that the server takes for texts alone
            continue
        again = loads(to_toml(scenario).encode(), name="drawn")

        assert trial.finding == play(again, profile).finding


def test_a_long_scenario_is_sent_in_parts() -> None:
    few = given(THREE)
    many = replace(few, step=tuple(replace(few.step[0], name=f"s{n}") for n in range(3 * MOST)))
    shape = Shape(incidents=True, guided=True, around=(many,))
    client = Around(Profile.parse(OCTOBER), str(few.model.preset), 0, seed=0, shape=shape)
    for _ in client.run():
        pass

    assert MOST < len(client.scenario.step) < 3 * MOST


# On the command line.


def test_a_log_has_its_own_server_and_its_requests_in_two_sizes() -> None:
    found, profiles = scenarios_like(LOG, "dense")

    assert {("llama.cpp", ("b9538",))} == {(e.engine.name, e.engine.profiles) for e in found}
    assert (Profile.parse("llama.cpp@b9538"),) == profiles
    longest = [max(len(step.ids) for step in each.step) for each in found]
    assert min(longest) <= SIZES[0] < max(longest) <= SIZES[1]


def test_the_requests_of_a_log_are_searched_on_another_engine_too() -> None:
    vllm = (Profile.parse("vllm@0.33.0"),)
    found, profiles = scenarios_like(LOG, "dense", vllm)

    assert vllm == profiles
    assert {("", "dense")} == {(each.engine.name, each.model.preset) for each in found}


def test_a_trace_is_searched_on_the_named_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = ({"timestamp": n, "prompt": [[0, 0, 90], [n, 0, 9]], "reply": []} for n in range(5))
    trace.write_text("".join(json.dumps(each) + "\n" for each in lines))

    command = ["check", "vllm@0.33.0", "--like", str(trace), "--model", "dense", "--jobs", "1"]
    assert 0 == main([*command, "--examples", "6"])
    assert "vllm@0.33.0, dense: 6 workloads" in capsys.readouterr().out


def test_a_scenario_is_searched_on_its_own_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["check", "--like", THREE, OCTOBER, "--examples", "9", "--jobs", "1"])
    printed = capsys.readouterr().out
    assert "llama.cpp@b11549, hybrid" in printed
    assert "WRONG ANSWER" in printed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["vllm@0.33.0", "--like", THREE], "its server is llama.cpp"),
        (["--like", "none.toml"], "none.toml"),
        (["--like", THREE, "--model", "dense"], "leave --model out"),
        (["--like", THREE, "--scope", "2"], "--like cannot be used with --scope"),
        (["--like", THREE, "--prove"], "--like cannot be used with --prove"),
        (["--like", "README.md"], "README.md"),
        (["--like", "mlx-lm-929-hit-rates", "-p", "mlx-lm@0.29.1+none"], "none"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["check", *words])
    assert why in capsys.readouterr().err
