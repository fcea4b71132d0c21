"""A scenario on a server binary of ik_llama.cpp: its command line, its model, its refusals."""

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cachesim.engines.chat import FIRST_BYTE
from cachesim.errors import OptionError, ScenarioError
from cachesim.model.presets import preset
from cachesim.prove.command import proof_command
from cachesim.prove.llama_cpp.gguf import exact_spec
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario import full_profile
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.shipped import load_all
from cachesim.units import as_tokens
from conformance.real.agreement import Race
from conformance.real.ik_llama.binary import BinaryError, Server, arguments
from conformance.real.ik_llama.commands import line_of, real_ik_llama_cpp, without_goodbyes
from conformance.real.ik_llama.orders import judged

SCENARIO = "ik_llama.cpp-2105-last-token-in-the-state-twice"
DRAFTS = {"companion": "attn", "draft_max": 3, "draft_p_min": 0.0, "context_shift": False}


def shipped(name: str) -> Scenario:
    return load_all([name])[0][1]


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("d2da6da05", "-mtp --draft-max 3 --draft-p-min 0.0 --no-context-shift"),
        ("8337e4cd3", "--spec-type mtp:n_max=3,p_min=0.0 --no-context-shift"),
    ],
)
def test_drafts_are_asked_for_in_the_words_of_the_commit(release: str, line: str) -> None:
    assert line.split() == arguments(DRAFTS, release)


def test_a_companion_that_no_server_has_is_refused() -> None:
    with pytest.raises(OptionError, match="a what-if"):
        arguments({"companion": "strict_tail"}, "8337e4cd3")


def test_models_are_written_in_sizes_that_the_server_computes_exactly() -> None:
    delta, window = exact_spec(preset("hybrid-mtp")), exact_spec(preset("swa"))

    assert (64, 64 * delta.state_heads) == (delta.state_size, delta.inner)
    assert (6, "attention") == (len(window.layers), window.layers[-1])
    assert preset("dense") == exact_spec(preset("dense"))
    for name in ("recurrent", "hybrid", "hybrid-swa"):
        with pytest.raises(OptionError, match=f"loads no '{name}'"):
            exact_spec(preset(name))


def test_a_binary_that_does_not_start_is_named_with_its_last_lines(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(f"#!{sys.executable}\nprint('unknown argument: -tb')\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)

    with pytest.raises(BinaryError, match="unknown argument: -tb"):
        real_ik_llama_cpp(binary=binary, scenario=SCENARIO)
    with pytest.raises(ScenarioError, match="is no file"):
        real_ik_llama_cpp(binary=tmp_path / "none", scenario=SCENARIO)


def test_what_was_played_is_replayed_from_the_line_that_is_recorded() -> None:
    scenario = shipped(SCENARIO)
    a = as_tokens(range(300, 450))
    steps = [Step(name="A", prompt=a, predict=1), Step(name="again", prompt=a, predict=2)]
    first = Outcome(cached=0, processed=150, reply=as_tokens([301]), slot=0)
    second = Outcome(cached=145, processed=5, reply=as_tokens([302, 303]), slot=0)

    groups = [[step] for step in steps]
    right = line_of(scenario, "8337e4cd3", groups, [first, second])
    wrong = line_of(scenario, "8337e4cd3", groups, [first, first])

    assert judged(right) is None
    assert judged(wrong) is not None


def test_requests_that_are_sent_together_are_one_entry_and_may_arrive_in_any_order() -> None:
    scenario = shipped(SCENARIO)
    a, b = (as_tokens(range(start, start + 100)) for start in (300, 400))
    steps = [Step(name=name, prompt=prompt, predict=1) for name, prompt in (("A", a), ("b", b))]
    replies = [Outcome(cached=0, processed=100, reply=as_tokens([301]), slot=0)] * 2
    again = Step(name="again", prompt=a, predict=1)
    last = Outcome(cached=95, processed=5, reply=as_tokens([301]), slot=0)

    line = line_of(scenario, "8337e4cd3", [steps, [again]], [*replies, last])

    assert ["A", "b"] == [step["name"] for step in line["steps"][0]]
    found = judged({**line, "options": {"cache_ram": 0}})
    assert isinstance(found, Race)
    assert "order 2, 1" in found.order


def test_a_reply_is_forced_by_a_grammar_of_its_text_without_bytes_that_spell_it() -> None:
    server = Server(Path("llama-server"), Path("m.gguf"), [], Path())
    space = FIRST_BYTE + ord(" ")
    step = Step(name="A", prompt=as_tokens([300]), reply=as_tokens([408, space]), predict=2)

    body = server.body(replace(step, options={"before_first_idle": True}))

    assert 'root ::= "[408] "' == body["grammar"]
    assert {*range(FIRST_BYTE, FIRST_BYTE + 256)} - {space} == {
        each for each, _ in body["logit_bias"]
    }
    assert not {"before_first_idle", "id_slot"} & {*body}
    assert "grammar" not in server.body(replace(step, reply=None))


def test_a_client_that_leaves_after_its_reply_is_one_like_all_others() -> None:
    late, early = (
        shipped("ik_llama.cpp-1673-stop-flag-stays"),
        shipped("ik_llama.cpp-1889-draft-context-behind-after-cancel"),
    )

    assert ["A", "B", "A-again"] == [e.name for e in without_goodbyes(late, "8337e4cd3").step]
    with pytest.raises(ScenarioError, match="leaves before the reply"):
        without_goodbyes(early, "d2da6da05")


def test_the_command_is_printed_where_the_binary_can_play_the_scenario() -> None:
    scenario = shipped(SCENARIO)
    what_if = shipped("ik_llama.cpp-1889-refused-trim-empties-both-contexts")
    profile = full_profile("ik_llama.cpp", "8337e4cd3")

    binary = "YOUR-LLAMA-SERVER-OF-8337e4cd3"
    options = f"--binary {binary} --scenario {SCENARIO} --release 8337e4cd3"
    assert f"cachesim real ik_llama.cpp {options}" == proof_command(scenario, profile, SCENARIO)
    assert not proof_command(what_if, full_profile("ik_llama.cpp", "d2da6da05"), "x")
