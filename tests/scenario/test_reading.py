"""All errors of a scenario are reported at once, with their place and the nearest right word."""

from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.scenario import limits, scenario_of
from cachesim.scenario.files import loads
from tests.scenario.stories import story


def problems(mapping: Any) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        scenario_of(mapping)
    return caught.value.problems


def test_a_right_scenario_is_read_with_its_defaults() -> None:
    scenario = scenario_of(story())

    assert scenario.kind == "lost-reuse"
    assert scenario.step[1].reply == (300, 301)
    assert scenario.step[2].name == ""
    assert scenario.chat.template == "chatml"


def test_the_least_scenario_needs_four_things() -> None:
    least = {
        "format": 1,
        "name": "least",
        "model": {"preset": "dense"},
        "engine": {"name": "fake"},
        "step": [{"prompt": [300]}],
    }

    assert scenario_of(least).name == "least"
    for key in least:
        without = {name: value for name, value in least.items() if name != key}
        assert any(line.startswith(key) for line in problems(without)), key


def test_every_mistake_of_a_file_is_named_in_one_go() -> None:
    wrong = story(
        clas="crash",
        model={"preset": "hybird", "seed": "x"},
        engine={"name": "fake", "profiles": ["r1", "@"], "options": {"parallel": [1]}},
        step=[
            {"name": "A", "promt": "S a", "predict": True},
            7,
            {"name": "A", "prompt": "S q C.reply", "slot": 99},
            {"name": "C", "do": "slot-save", "prompt": "S"},
        ],
    )

    found = "\n".join(problems(wrong))

    for expected in (
        "clas: unknown key 'clas'; did you mean 'class'?",
        "model.preset: there is no preset 'hybird'; did you mean 'hybrid'?",
        "model.seed: must be an integer, found a string: 'x'",
        "engine.profiles[1]: '@' is not a profile",
        "engine.options.parallel: must be a boolean, a number or a string",
        "step[0].promt: unknown key 'promt'; did you mean 'prompt'?",
        "step[0].predict: must be an integer, found a boolean: True",
        "step[1]: must be a table, found an integer: 7",
        "step[2].name: the name 'A' is taken by an earlier step",
        "step[2].prompt: there is no span 'q'",
        "step[2].prompt: 'C.reply' is not known yet",
        "step[2].slot: must lie between -1 and 63, found an integer: 99",
        "step[3].file: missing; slot-save needs it",
        "step[3].prompt: has no meaning for do = 'slot-save'",
        "expect[0].cached: has 3 items for 4 steps",
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": 2}, "format: must be 1, found"),
        ({"name": "a b"}, "name: must be a name such as"),
        ({"name": 3}, "name: must be a string, found an integer: 3"),
        ({"class": "lost"}, "class: must be one of"),
        ({"step": []}, "step: missing"),
        ({"step": {"prompt": "S"}}, "step: must be a list of tables, found a table"),
        ({"step": {"prompt": "S"}}, "; its header has two brackets"),
        ({"engine": {"name": "fake", "profiles": "r1"}}, "found a string: 'r1'; write ['r1']"),
        (
            {"expect": [{"cached": 184}]},
            "expect[0].cached: must be a list, found an integer: 184; ",
        ),
        ({"spans": {"S": 0}}, "spans.S: must lie between 1"),
        ({"spans": {"S S": 3}}, "spans: has a name that cannot be one: 'S S'"),
        ({"model": {}}, "model: needs a preset or layers"),
        ({"model": {"preset": "dense", "layers": ["ssm"]}}, "model.layers: has no place beside"),
        ({"model": {"layers": ["smm"]}}, "model.layers[0]: must be one of"),
        ({"engine": {}}, "engine.name: missing"),
        ({"engine": {"name": "fke"}}, "engine.name: there is no engine 'fke'; did you mean 'fake'"),
        ({"engine": {"name": "fake", "options": {"ctx_size": 10**7}}}, "at most 1048576"),
        ({"step": [{}]}, "step[0]: needs a prompt or messages"),
        ({"step": [{"prompt": [512]}]}, "step[0].prompt: token 512 is outside the vocabulary"),
        ({"step": [{"prompt": [True]}]}, "step[0].prompt[0]: must be a token id"),
        ({"step": [{"prompt": [300], "with_previous": True}]}, "no step before the first"),
        ({"step": [{"do": "cancel"}]}, "[0].of: cancels '', which is not running then"),
        ({"step": [{"name": "A", "prompt": "A.reply"}]}, "'A.reply' is not known yet"),
        (
            {"step": [{"do": "slot-save", "file": "../x"}]},
            "step[0].file: must be a plain file name",
        ),
        ({"step": [{"do": "slot-save", "file": "/etc/x"}]}, "must be a plain file name"),
        ({"step": [{"prompt": [300], "messages": [{"role": "user"}]}]}, "keep one of the two"),
        ({"expect": [{"profile": "r3"}]}, "'r3' is not among engine.profiles"),
        ({"expect": [{"answer": "right"}]}, "expect[0].answer: must be one of same"),
    ],
)
def test_each_mistake_has_its_own_sentence(changes: dict[str, Any], expected: str) -> None:
    assert expected in "\n".join(problems(story(expect=[]) | changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[step]\n[step]", "the header of a repeated table is [[step]], not [step]"),
        ("a = 1\na = 2", ". A key is written once"),
        ("a = [", ""),
        ("slot launch_slot_: id  0 | task 7 | processing", "is explained by `cachesim why`"),
        ("prompt eval time = 1.00 ms / 7 tokens", "is explained by `cachesim why`"),
    ],
)
def test_what_cannot_be_parsed_says_what_may_be_meant(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError, match="is not TOML: ") as refused:
        loads(text.encode(), name="x.toml")

    assert expected in str(refused.value)
    assert bool(expected) == (". " in str(refused.value))


def test_cycles_of_replies_are_refused() -> None:
    steps = [{"name": "A", "prompt": "B.reply"}, {"name": "B", "prompt": "A.reply"}]

    found = problems(story(step=steps, expect=[]))

    assert len(found) == 1
    assert found[0].startswith("step[0].prompt: 'B.reply' is not known yet: step 'B' comes later")


def test_a_reply_of_a_step_sent_together_is_not_known_yet() -> None:
    steps = [
        {"name": "A", "prompt": "S"},
        {"name": "B", "prompt": "A.reply", "with_previous": True},
    ]

    assert "is sent together with this one" in problems(story(step=steps, expect=[]))[0]


def test_what_would_eat_the_machine_is_refused_before_it_runs() -> None:
    doubling = [{"name": "s0", "prompt": "S", "predict": 10_000}]
    doubling += [
        {"name": f"s{i}", "prompt": " ".join([f"s{i - 1}.reply"] * 30), "predict": 10_000}
        for i in range(1, 12)
    ]

    found = "\n".join(problems(story(step=doubling, expect=[], spans={"S": 1000})))

    assert f"a prompt may have {limits.PROMPT_TOKENS}" in found
    assert f"a scenario may take {limits.TOTAL_TOKENS}" in found


def test_what_would_not_fit_into_memory_is_refused_before_it_is_built() -> None:
    model = {"layers": ["attention"] * 8, "kv_heads": 64, "head_size": 256, "heads": 64}

    found = problems(story(model=model, engine={"name": "fake", "options": {"ctx_size": 131072}}))

    assert any("needs about" in line and "make model or ctx_size smaller" in line for line in found)


def test_options_that_need_each_other_are_taken_together() -> None:
    companion = {"spec_type": "draft-simple", "model_draft": "dense"}
    mapping = story(expect=[])
    mapping["engine"] = {"name": "llama.cpp", "profiles": ["b11549"], "options": companion}

    assert companion == scenario_of(mapping).engine.options

    mapping["engine"]["options"] = {"spec_type": "draft-simple"}
    with pytest.raises(ScenarioError, match="needs 'model_draft'"):
        scenario_of(mapping)
