"""Searches whose requests are drawn from what the server has done."""

from dataclasses import replace
from functools import cache
from itertools import islice

import pytest

from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.errors import ContractError, PositionError
from cachesim.play.session import groups_of
from cachesim.scenario.files import loads, to_toml
from cachesim.scenario.format import Model, Scenario, Step
from cachesim.testing import guided
from cachesim.testing.guided import MOST, Guided, Numbers
from cachesim.testing.search import search, trial_of, trials
from cachesim.testing.story import story
from cachesim.testing.survey import survey
from cachesim.testing.workloads import Shape, is_thin, with_alike
from tests.fixtures import Capture, Patch

SHAPE = Shape(incidents=True, chats=True, guided=True)
PROFILES = ("llama.cpp@b11549", "mlx-lm@0.32.2", "vllm@0.33.0", "sglang@0.5.23")


def drawn_of(
    profile: str, number: int, model: str, *, seed: int = 0, shape: Shape = SHAPE
) -> tuple[Scenario, list[int]]:
    """A workload, and how many of its steps were sent together each time."""
    client = Guided(
        Profile.parse(profile), model, number, seed=seed, shape=shape, arithmetic="counts"
    )
    sent = [len(records) for records in client.run()]
    return client.scenario, sent


@cache
def played(profile: str, number: int, model: str = "hybrid") -> tuple[Scenario, list[int]]:
    return drawn_of(profile, number, model)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_workload_depends_on_its_seed_and_number_alone(profile: str) -> None:
    forwards = [played(profile, number) for number in range(6)]
    backwards = [drawn_of(profile, number, "hybrid") for number in reversed(range(6))]

    assert forwards == backwards[::-1]
    assert forwards[1] != drawn_of(profile, 1, "hybrid", seed=1)


def test_requests_of_one_call_are_alike_where_a_hunt_wants_them_so() -> None:
    """A real server takes one reply length, slot and set of fields for a call."""
    shape = Shape(incidents=True, kinds=("slot file", "trips"), guided=True, alike=True)
    for number in range(12):
        scenario, _ = drawn_of("llama.cpp@b11549", number, "hybrid", shape=shape)
        for group in groups_of(scenario):
            steps = [scenario.step[at] for at in group]
            calls = [step for step in steps if step.do == "complete" and not step.turns]
            asked = [(call.slot, call.reply, call.options) for call in calls]

            assert asked == asked[:1] * len(asked)


def test_the_length_that_a_stop_word_cuts_short_is_alike_too() -> None:
    first = Step(name="a", prompt=(1,), reply=(2,))
    words = {"stop_words": ("b",)}
    other = Step(prompt=(3,), reply=(4, 5), predict=4, options=words, with_previous=True)

    assert [first, replace(first, name="", prompt=(3,), with_previous=True)] == with_alike(
        [first, other]
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_what_was_sent_together_is_together_in_the_scenario(profile: str) -> None:
    for number in range(12):
        scenario, sent = played(profile, number)
        requests = [step for step in scenario.step if step.do == "complete"]

        assert sent == [len(group) for group in groups_of(scenario)]
        assert len({step.name for step in scenario.step}) == len(scenario.step)
        assert 0 < len(requests) <= MOST + 8  # `trips` sends further ones


@pytest.mark.parametrize("flags", [0, 1])
def test_a_server_of_no_flags_or_one_is_searched_too(flags: int, monkeypatch: Patch) -> None:
    """Such as another project's engine."""
    few = guided._further(Profile.parse("mlx-lm@0.32.2"))[:flags]
    monkeypatch.setattr(guided, "_further", lambda _: few)

    workloads = [drawn_of("mlx-lm@0.32.2", number, "hybrid")[0] for number in range(20)]

    assert 20 == len({workload.name for workload in workloads})


def test_a_server_that_does_nothing_new_gets_no_more_requests() -> None:
    lengths = [len(played("sglang@0.5.23", n, "dense")[0].step) for n in range(40)]

    assert min(lengths) < MOST // 2 < max(lengths)


def test_numbers_are_those_that_the_server_tested_last() -> None:
    numbers = Numbers(100)
    for value in (5, True, "7", 1, 101, (3, 8, 9), 5, None):
        numbers.add(value)

    assert [8, 9, 5] == numbers.latest()


def test_prompts_end_near_the_numbers_of_the_servers_flags() -> None:
    """A prompt of one checkpoint's distance, one ubatch, one token more or less."""
    near = far = 0
    for number in range(30):
        scenario, _ = drawn_of("llama.cpp@b11549", number, "hybrid", seed=1)
        size = scenario.engine.options.get("ubatch_size", 512)
        lengths = [len(step.ids) for step in scenario.step if step.do == "complete"]
        near += sum(abs(length - size) <= 1 for length in lengths)
        far += sum(abs(length - size - 7) <= 1 for length in lengths)

    assert near > far


@pytest.mark.parametrize(
    ("profile", "drawn"),
    [
        ("llama.cpp@b11549", {"cancel", "restart", "held", "space"}),
        ("ik_llama.cpp@8337e4cd3", {"cancel", "space"}),
        ("mlx-lm@0.32.2", {"cancel", "restart", "space"}),
        ("vllm@0.33.0", {"cancel", "space"}),
    ],
)
def test_clients_leave_servers_restart_and_white_space_changes(
    profile: str, drawn: set[str]
) -> None:
    found = set[str]()
    for number in range(60):
        for step in played(profile, number, "dense")[0].step:
            found |= {step.do} & {"cancel", "restart"}
            found |= {"held"} if step.held is not None else set()
            found |= {"space"} if {13, 35} & set(map(int, step.ids)) else set()

    assert drawn == found


@pytest.mark.parametrize(
    ("profile", "model", "drawn"),
    [
        ("mlx-lm@0.32.2", "swa", {"window window window attention, chunks", "window window"}),
        ("mlx-lm@0.32.2", "hybrid-swa", {"conv attention conv attention"}),
        ("vllm@0.33.0", "hybrid-delta", {"delta attention window"}),
    ],
)
def test_some_models_have_layers_that_no_preset_has(
    profile: str, model: str, drawn: set[str]
) -> None:
    models = [
        Guided(Profile.parse(profile), model, number, shape=SHAPE).scenario.model
        for number in range(80)
    ]
    layers = [" ".join(each.layers or ()) + ", chunks" * bool(each.chunked) for each in models]

    assert drawn <= {*layers}
    assert layers.count("") > 40


def test_a_model_with_layers_of_its_own_keeps_them_all() -> None:
    profile = Profile.parse("mlx-lm@0.32.2")
    own = Scenario(format=1, name="own", model=Model(layers=("window", "attention") * 2))
    preset = replace(own, model=Model(preset="swa"))

    assert [False, True] == [is_thin(1, each, profile) for each in (own, preset)]


def test_a_server_that_cannot_restart_is_not_restarted() -> None:
    for number in range(60):
        steps = played("mlx-lm@0.31.3+vllm-mlx", number, "dense")[0].step

        assert "restart" not in {step.do for step in steps}


def test_an_incident_of_a_real_server_is_not_joined_by_others() -> None:
    shape = replace(SHAPE, kinds=("slot file",))
    for number in range(30):
        steps = drawn_of("llama.cpp@b11549", number, "dense", shape=shape)[0].step

        assert not {"cancel", "restart"} & {step.do for step in steps}
        assert {None} == {step.held for step in steps}


@pytest.mark.parametrize("stop_early", [True, False])
def test_what_fails_fails_again_when_its_scenario_is_played(*, stop_early: bool) -> None:
    profile, found = Profile.parse("mlx-lm@0.31.2"), 0
    for _, scenario, trial in islice(
        trials(profile, "swa", shape=SHAPE, stop_early=stop_early), 12
    ):
        again = trial_of(0, scenario, profile, arithmetic="ring", stop_early=stop_early)
        found += bool(trial.findings)
        if trial.findings:
            assert trial.findings == again.findings

    assert found


@pytest.mark.parametrize(
    ("method", "error", "model"),
    [
        ("server.Vllm.check_integrity", ContractError("a block is nobody's"), "hybrid"),
        ("runner.Runner.run", PositionError("2 positions for 1 tokens"), "dense"),
    ],
)
def test_a_broken_book_or_a_wrong_position_is_a_finding(
    method: str, error: Exception, model: str, monkeypatch: Patch
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"cachesim.engines.vllm.{method}", broken)

    _, _, trial = next(trials(Profile.parse("vllm@0.33.0"), model, shape=SHAPE))

    assert [("broken invariant", str(error))] == [(e.kind, e.detail) for e in trial.findings]


def test_chunks_of_a_search_find_what_one_search_finds() -> None:
    profile = Profile.parse("mlx-lm@0.31.2")
    whole = survey(profile, "swa", examples=8, shape=SHAPE)
    half = survey(profile, "swa", examples=4, shape=SHAPE)
    half.join(survey(profile, "swa", examples=4, first=4, shape=SHAPE))

    assert whole.counts == half.counts
    assert whole.report.requests == half.report.requests


def test_a_right_cache_is_quiet() -> None:
    fixed = {"enable_hierarchical_cache": False, "enable_streaming_session": False}
    fixed |= {"max_total_tokens": 16384}  # with a small pool some requests wait for ever
    device = replace(SHAPE, fixed=fixed)
    found = search(Profile.parse("sglang@0.5.23"), "dense", examples=60, shape=device)

    assert (60, None) == (found.workloads, found.counterexample)


def test_a_guided_search_keeps_given_flags() -> None:
    fixed = {"block_size": 8, "max_num_seqs": 2, "connector": "none", "async_scheduling": False}
    shape = replace(SHAPE, fixed=fixed)

    for number in range(40):
        client = Guided(Profile.parse("vllm@0.33.0"), "hybrid", number, shape=shape)
        options = client.scenario.engine.options
        assert fixed == {name: options[name] for name in fixed}


def test_prompts_have_images_where_a_server_reads_them() -> None:
    some = [played("mlx-lm@0.32.2", n, "dense")[0] for n in range(24)]
    every = [played("mlx-lm@0.31.3+vllm-mlx-whole", n, "dense")[0] for n in range(12)]
    sent = [step for each in every for step in each.step if step.do == "complete"]

    assert {True, False} == {bool(each.images) for each in some}
    assert all(isinstance(step.prompt, str) and "i" in step.prompt for step in sent)
    assert not any(played("mlx-lm@0.31.3", n, "dense")[0].images for n in range(12))


def test_a_workload_with_images_is_played_again_from_its_scenario() -> None:
    profile, shown = Profile.parse("mlx-lm@0.31.3+vllm-mlx-718"), 0
    for _, scenario, trial in islice(trials(profile, "dense", shape=SHAPE, stop_early=False), 10):
        again = trial_of(0, scenario, profile, arithmetic="ring", stop_early=False)
        shown += bool(scenario.images)

        assert (trial.findings, trial.cached) == (again.findings, again.cached)

    assert shown


def test_what_fails_with_images_becomes_smaller() -> None:
    profile = Profile.parse("mlx-lm@0.31.3+vllm-mlx-718")
    found = search(profile, "dense", examples=60, shape=SHAPE, seed=1)

    assert found.counterexample is not None
    told = story(found.counterexample, profile)
    assert "a prompt of 18 tokens with 2 images (i0, i1), 1 as before" in told[-1]
    assert 3 >= len(found.counterexample.scenario.step)
    assert 20 >= sum(
        len(span)
        for span in found.counterexample.scenario.spans.values()
        if not isinstance(span, int | str)
    )


def test_prompts_reach_the_lengths_at_which_another_server_branches() -> None:
    scenarios = [played("mlx-lm@0.31.3+omlx", n, "dense")[0] for n in range(16)]
    longest = [max(len(step.ids) for step in scenario.step) for scenario in scenarios]

    assert min(longest) < 200
    assert max(longest) > 2048


def test_some_requests_have_stop_words_tools_or_another_template() -> None:
    scenarios = [played("mlx-lm@0.32.2", n, "dense")[0] for n in range(60)]
    fields = {name for scenario in scenarios for step in scenario.step for name in step.options}

    assert {"seed", "stop_words", "tools"} == fields
    assert {"chatml", "strip-reasoning"} == {scenario.chat.template for scenario in scenarios}


def test_some_prompts_have_a_gap_and_some_servers_load_one_model_at_a_time() -> None:
    scenarios = [played("llama.cpp@b11549", n, "dense")[0] for n in range(40)]
    infills = [
        step for scenario in scenarios for step in scenario.step if step.options.get("endpoint")
    ]
    loaded = {s.engine.options["models_max"] for s in scenarios if s.models}

    assert {1, 2} == loaded
    assert any(step.suffix for step in infills)
    assert not any(step.messages for step in infills)


def test_check_draws_so(capsys: Capture) -> None:
    assert main(["check", "mlx-lm@0.31.2", "--model", "swa", "--jobs", "1"]) == 1
    assert "WRONG ANSWER in workload" in capsys.readouterr().out


def test_a_drawn_server_is_one_that_a_file_can_hold() -> None:
    """Corners of several models have a window, which no other preset takes."""
    step = (Step(prompt=(265,), reply=(266,)),)
    for number in range(40):
        client = Guided(Profile.parse("sglang@0.5.23"), "hybrid", number, seed=1, shape=SHAPE)
        scenario = replace(client.scenario, step=step)

        assert scenario == loads(to_toml(scenario).encode(), name="drawn")


def test_a_story_counts_what_stands_after_a_gap() -> None:
    steps = (
        Step(name="r0", prompt=(265, 266), reply=(270,)),
        Step(name="r1", prompt=(265,), suffix=(420, 434, 405), reply=(271,)),
    )
    profile = Profile.parse("llama.cpp@b11549")
    found = search(profile, "hybrid", first=170, examples=50).counterexample

    assert found is not None
    told = story(replace(found, scenario=replace(found.scenario, step=steps)), profile)
    assert "r1: a prompt of 1 token before a gap, 3 tokens after it, 1 generated" in told[-1]
