"""Runs: what a step shows, what is expected of it, and what an end in the middle leaves."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import OptionError, ProfileError, ScenarioError
from cachesim.play import run_scenario
from cachesim.play.session import Session
from cachesim.scenario.shipped import shipped_file
from tests.scenario.stories import story


def play(profile: str | None = "r1", **changes: Any) -> dict[str, Any]:
    run = run_scenario(story(**changes), profile=profile, arithmetic="ring", verify=False)
    return run.to_json()


def cached(run: dict[str, Any]) -> list[int | None]:
    return [step["cached"] for step in run["steps"]]


def test_a_run_has_exactly_the_keys_it_promises() -> None:
    run = play()

    assert list(run)[:4] == ["scenario", "profile", "as_expected", "steps"]
    assert [run["scenario"], run["profile"], run["as_expected"]] == ["three-steps", "fake@r1", True]
    assert list(run["steps"][0]) == [
        "name", "do", "prompt_tokens", "cached", "processed", "generated", "answer",
        "max_difference", "reuse", "why", "slot", "truncated", "checkpoints", "prompt_cache",
        "events", "error", "message", "explanation", "slots", "forced", "finding", "facts",
        "drafted", "accepted", "companion", "evidence",
    ]  # fmt: skip


def test_replies_are_part_of_later_prompts_and_forced_replies_are_taken() -> None:
    run = play()

    assert cached(run) == [0, 27, 0]
    assert [step["prompt_tokens"] for step in run["steps"]] == [25, 34, 2]
    assert run["steps"][1]["generated"] == [300, 301]
    assert [step["name"] for step in run["steps"]] == ["A", "B", "3"]


def test_without_verification_nothing_is_said_of_answers() -> None:
    step = play()["steps"][0]

    assert (step["answer"], step["max_difference"], step["reuse"]) == (None, None, None)


def test_losses_are_the_entries_of_why() -> None:
    step = play("r2")["steps"][1]

    assert step["why"] == [
        {
            "rule": "forgetful",
            "from": 27,
            "to": 13,
            "detail": {"held": 27},
            "sentence": "Half of the 27 tokens held is forgotten",
        }
    ]


def test_an_expectation_that_is_not_met_says_what_was_found() -> None:
    run = play(
        expect=[{"cached": [0, 26, "any"], "error": "none", "checkpoints": [[2], "any", "any"]}]
    )

    assert not run["as_expected"]
    assert run["mismatches"] == [
        "B: cached is 27, expected 26",
        "A: checkpoints are [1], expected [2]",
    ]


def test_a_refused_request_has_the_servers_word_and_the_run_goes_on() -> None:
    steps = [{"prompt": [300] * 4001}, {"name": "B", "prompt": "S"}]

    run = play(step=steps, expect=[{"error": ["exceed_context_size_error", "none"]}])

    assert run["as_expected"]
    assert cached(run) == [None, 0]
    assert run["steps"][0]["processed"] is None


def test_an_abort_ends_the_run_and_later_steps_say_so() -> None:
    steps = [{"prompt": [300]}, {"prompt": [300] * 77}, {"prompt": [300]}]

    run = play(step=steps, expect=[])

    assert [step["error"] for step in run["steps"]] == [None, "aborted", "not-run"]
    assert [step["prompt_tokens"] for step in run["steps"]] == [1, 77, None]
    assert run["steps"][1]["message"] == "llama_decode: unlucky prompt"
    assert run["mismatches"] == [
        "2: aborted, and no expectation says so",
        "3: not-run, and no expectation says so",
    ]


def test_steps_sent_together_share_a_turn_and_keep_their_own_events() -> None:
    steps = [{"prompt": "S"}, {"prompt": "S a", "with_previous": True}, {"prompt": "b"}]

    run = play(step=steps, expect=[])

    assert cached(run) == [0, 20, 0]
    assert [[event["task"] for event in step["events"]] for step in run["steps"]] == [[0], [1], [2]]


def test_a_cancelled_request_leaves_no_reply() -> None:
    steps = [
        {"name": "A", "prompt": "S"},
        {"name": "B", "prompt": "S", "with_previous": True},
        {"do": "cancel", "of": "B", "turns": 1},
        {"prompt": "S B.reply"},
    ]

    run = play(step=steps, expect=[])

    assert cached(run) == [0, None, None, 19]
    assert run["steps"][1]["generated"] == []


def test_messages_become_tokens_with_spans_and_replies_put_in() -> None:
    steps = [
        {"name": "A", "messages": [{"role": "user", "content": "{a}"}], "reply": "b"},
        {
            "messages": [
                {"role": "user", "content": "{a}"},
                {"role": "assistant", "content": "{A.reply}"},
                {"role": "user", "content": "hi"},
            ]
        },
    ]

    run = play(step=steps, expect=[])

    assert [step["prompt_tokens"] for step in run["steps"]] == [5 + 5 + 3, 13 + 6 + 2 + 7 + 3]
    assert cached(run) == [0, 13 + 5]


def test_the_profile_asked_for_overrides_the_list() -> None:
    assert play("fake@r2")["profile"] == "fake@r2"
    assert play(None)["profile"] == "fake@r1"
    with pytest.raises(ProfileError, match="r9"):
        play("r9")


def test_an_option_the_server_does_not_have_names_its_place() -> None:
    with pytest.raises(ScenarioError, match=r"engine\.options: fake@r1 has no option 'paralel'"):
        play(engine={"name": "fake", "options": {"paralel": 1}})
    assert issubclass(OptionError, ValueError)


def test_a_server_without_slot_files_says_so() -> None:
    with pytest.raises(ScenarioError, match=r"step\[0\].do: fake has no slot-save"):
        play(step=[{"do": "slot-save", "file": "a.bin"}], expect=[])


@pytest.mark.parametrize(
    ("engine", "step", "expected"),
    [
        ("mlx-lm@0.32.2", {"do": "slot-save", "file": "a"}, "do (save): mlx-lm has no slot-save"),
        ("vllm@0.33.0", {"do": "slot-save", "file": "a"}, "do (save): vllm has no slots to save"),
        ("vllm@0.33.0", {"do": "set-lora", "options": {}}, "do (save): vllm has no adapters"),
        ("llama.cpp@b11549", {"do": "set-lora", "options": {"lora": 3}},
         "options.lora (save): request field 'lora' is no list"),
        ("llama.cpp@b11549", {"do": "restart", "options": {"parallel": 2}},
         "do (save): llama.cpp restarts with its own flags"),
    ],
)  # fmt: skip
def test_a_step_that_a_server_refuses_is_named(
    engine: str, step: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"step[0].{expected}")):
        play(
            engine,
            engine={"name": engine.partition("@")[0]},
            expect=[],
            step=[{"name": "save", **step}],
        )


def test_the_same_run_twice_gives_the_same_bytes() -> None:
    assert json.dumps(play()) == json.dumps(play())


def test_steps_sent_together_keep_their_own_events_after_several_completions() -> None:
    steps = [
        {"prompt": "S", "completions": 2, "predict": 1},
        {"prompt": "S a", "predict": 1},
        {"prompt": "b", "predict": 1, "with_previous": True},
    ]
    engine = {"name": "llama.cpp", "profiles": ["b9538"], "options": {"parallel": 2}}

    run = play(None, engine=engine, step=steps, expect=[])

    tasks = [{event["task"] for event in step["events"]} - {-1} for step in run["steps"]]
    assert tasks == [{0, 1}, {2}, {3}]


def chat_with(options: str) -> dict[str, Any]:
    return tomllib.loads(f"""
        format = 1
        name = "tools"
        about = "A chat with tools."
        class = "limits"
        engine = {{ name = "mlx-lm", profiles = ["0.32.2"] }}
        model = {{ preset = "hybrid-delta" }}
        [[step]]
        name = "A"
        messages = [{{ role = "user", content = "hello" }}]
        predict = 2
        options = {{ {options} }}
        [[expect]]
        profile = "0.32.2"
    """)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tools = 64", "'tools' is 64; write a text or a list of texts"),
        ("chat_template_kwargs = 1", "chat_template_kwargs is 1; write {"),
    ],
)
def test_tools_and_arguments_of_another_type_are_refused_in_words(given: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)):
        run_scenario(chat_with(given), arithmetic="ring", verify=False)


def test_one_text_is_a_list_of_one_tool() -> None:
    runs = [
        run_scenario(chat_with(given), arithmetic="ring", verify=False).to_json()["steps"]
        for given in ('tools = "w1"', 'tools = ["w1"]')
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("told", "expected"), [(True, [True]), (False, [False, True])])
def test_a_wrong_answer_that_is_expected_is_traced_at_once_and_told_alike(
    told: bool, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = tomllib.loads(shipped_file("llama.cpp-three-requests").read_text(encoding="utf-8"))
    whole = run_scenario(mapping, profile="llama.cpp@b11549", arithmetic="ring")
    traced: list[bool] = []

    class Counted(Session):
        def __init__(self, *scenario: Any, **how: Any) -> None:
            traced.append(how["traced"])
            super().__init__(*scenario, **how)

    monkeypatch.setattr("cachesim.play.runner.Session", Counted)
    plain = mapping if told else {key: mapping[key] for key in mapping if key != "expect"}
    run = run_scenario(plain, profile="llama.cpp@b11549", arithmetic="ring")

    assert expected == traced
    assert whole.to_json()["steps"] == run.to_json()["steps"]


def test_a_scenario_is_run_by_its_name_or_its_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    file = shipped_file("llama.cpp-three-requests")
    asked = {"profile": "b11549", "arithmetic": "ring"}

    named, given = run_scenario(file.stem, **asked), run_scenario(str(file), **asked)
    assert named.to_json() == given.to_json()
    (tmp_path / "one.toml").write_text(file.read_text())
    (tmp_path / "two.toml").write_text(file.read_text())
    with pytest.raises(ScenarioError, match="a folder of 2 scenarios; name one of them"):
        run_scenario(str(tmp_path), **asked)
