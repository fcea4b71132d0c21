"""Searches that start from given requests: `check --like`."""

import gzip
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from cachesim.cli import like
from cachesim.cli.like import SIZES, scenarios_like
from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.play.findings import play
from cachesim.prove.hunt import proof
from cachesim.prove.hunt.proof import ProofResult
from cachesim.prove.llama_cpp.scenarios import PROVER
from cachesim.scenario.files import load, loads, to_toml
from cachesim.scenario.format import Model, Scenario
from cachesim.scenario.labels import CONFIRMED, SOURCE
from cachesim.scenario.shipped import load_all
from cachesim.testing import survey
from cachesim.testing.around import Around
from cachesim.testing.guided import MOST
from cachesim.testing.search import Counterexample, trials
from cachesim.testing.workloads import Shape

LOG = "docs/examples/hybrid.log"
THREE = "llama.cpp-three-requests"
CODES = "llama.cpp-two-codes"
NOT_RUN = "cannot be run on the wheel"
CHAT = "llama.cpp-reasoning-stripped"
KEPT = Path(__file__).parents[2] / "conformance" / "end_to_end" / "data"
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
    model, profile = str(given(THREE).model.preset), Profile.parse(OCTOBER)
    drawn = (Around(profile, model, n, seed=0, shape=around(THREE)) for n in range(16))
    flags = [client.scenario.engine.options for client in drawn]

    assert 4 < flags.count(dict(given(THREE).engine.options)) < 12


def test_flags_that_a_given_model_refuses_are_left_out() -> None:
    """Layers of DeepSeek V4 have no connector; those of the preset have."""
    own = dict(given(COMPRESSED).engine.options)
    model, profile = str(given(COMPRESSED).model.preset), Profile.parse("vllm@0.33.0")
    drawn = (Around(profile, model, n, seed=0, shape=around(COMPRESSED)) for n in range(12))
    flags = [client.scenario.engine.options for client in drawn]

    assert all(own.items() <= flag.items() for flag in flags)
    assert 12 > flags.count(own) > 4


def test_a_workload_depends_on_its_seed_and_number_alone() -> None:
    forwards = [played(CODES, OCTOBER, number).scenario for number in range(4)]
    backwards = [played(CODES, OCTOBER, number).scenario for number in reversed(range(4))]

    assert forwards == backwards[::-1]


@pytest.mark.parametrize("name", [THREE, CHAT, IMAGES])
def test_a_workload_is_a_scenario_that_fails_again_from_its_file(name: str) -> None:
    profile = Profile.parse(OCTOBER)
    drawn = trials(profile, str(given(name).model.preset), shape=around(name))
    for _, scenario, trial in islice(drawn, 5):
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
    found = scenarios_like(LOG, "dense")

    servers = {(scenario.engine.name, scenario.engine.profiles) for scenario in found.scenarios}
    assert {("llama.cpp", ("b9538",))} == servers
    assert (Profile.parse("llama.cpp@b9538"),) == found.profiles
    longest = [max(len(step.ids) for step in scenario.step) for scenario in found.scenarios]
    assert min(longest) <= SIZES[0] < max(longest) <= SIZES[1]


def test_the_requests_of_a_log_are_searched_on_another_engine_too() -> None:
    vllm = (Profile.parse("vllm@0.33.0"),)
    found = scenarios_like(LOG, "dense", vllm)

    assert vllm == found.profiles
    assert {("", "dense")} == {
        (scenario.engine.name, scenario.model.preset) for scenario in found.scenarios
    }


def test_flags_at_the_default_of_a_logs_release_are_not_taken_to_another() -> None:
    """`checkpoint_min_step` is printed nowhere, and b8672 does not have it."""
    older = tuple(map(Profile.parse, ("llama.cpp@b8672", OCTOBER)))
    found = scenarios_like(LOG, "dense", older)

    assert older == found.profiles
    assert {"ctx_size", "parallel"} <= found.scenarios[0].engine.options.keys()
    assert "checkpoint_min_step" not in found.scenarios[0].engine.options


def default_level() -> str:
    """A log that prints neither its release nor the model's layers."""
    with gzip.open(KEPT / "b11549-lv3-36-12.json.gz", "rt", encoding="utf-8") as file:
        log: str = json.load(file)["log"]
    return log


def test_what_a_log_does_not_print_is_inferred_printed_and_may_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"
    log.write_text(default_level(), encoding="utf-8")
    monkeypatch.setattr(like, "SIZES", (100, 400))
    check = ["check", "--like", str(log), "--examples", "1", "--jobs", "1"]

    main(check)
    inferred = "server.log; inferred: b11549 (a profile names another), swa (--model names another)"
    assert inferred in capsys.readouterr().out.replace("\n", " ")
    main([*check, OCTOBER, "--model", "hybrid-delta"])
    printed = capsys.readouterr().out
    assert "inferred" not in printed
    assert "llama.cpp@b11549, hybrid-delta: 1 workload" in printed


@pytest.mark.parametrize(
    "raw",
    [
        b"[transformers] PyTorch was not found.\n" + default_level().encode(),
        b"[8081] \xe2\x82 half a character\n" + default_level().encode(),
        b"\xff\xfe" + default_level().encode("utf-16-le"),
    ],
    ids=["brackets", "half a character", "PowerShell"],
)
def test_a_log_is_read_as_explained(raw: bytes, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(raw)

    assert scenarios_like(str(log), "dense").summary.startswith("around 12 requests of server.log")


def test_a_trace_is_searched_on_the_named_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = ({"timestamp": n, "prompt": [[0, 0, 90], [n, 0, 9]], "reply": []} for n in range(5))
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))

    command = ["check", "vllm@0.33.0", "--like", str(trace), "--model", "dense", "--jobs", "1"]
    assert 0 == main([*command, "--examples", "6"])
    assert "vllm@0.33.0, dense: 6 workloads" in capsys.readouterr().out


def test_a_scenario_is_searched_on_its_own_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["check", "--like", THREE, OCTOBER, "--examples", "9", "--jobs", "1"])
    printed = capsys.readouterr().out
    assert "llama.cpp@b11549, hybrid" in printed
    assert "WRONG ANSWER" in printed


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_found_is_run_on_the_real_engine(
    fits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prove(found: Counterexample, _: Profile) -> ProofResult:
        return ProofResult(confirmed=True, seen=f"workload {found.number}")

    prover = replace(PROVER, prove=prove, fits=lambda _: fits, ready=lambda _: None)
    monkeypatch.setattr(proof, "real_prover", {"llama.cpp": prover}.get)
    monkeypatch.setattr(survey, "TRIALS", 20)
    command = ["check", "--like", THREE, OCTOBER, "--prove", "--examples", "3", "--jobs", "1"]

    assert 1 == main([*command, "--format", "json"])
    (search,) = json.loads(capsys.readouterr().out)["searches"]
    assert 0 == search["exercised"]["cancel"]  # the real server is sent none
    seen = [(finding["evidence"], finding["proof"]) for finding in search["findings"]]
    own = [f"workload {finding['workload']}" for finding in search["findings"]]
    assert seen == [(CONFIRMED, each) if fits else (SOURCE, NOT_RUN) for each in own]


@pytest.mark.parametrize("layers", [("ssm", "attention"), ("attention",)])
def test_a_search_around_a_model_with_layers_of_its_own_runs_these(
    layers: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = replace(given(THREE), name="own", model=Model(layers=layers)).without_promises()
    (tmp_path / "own.toml").write_text(to_toml(own))
    command = ["check", OCTOBER, "--like", str(tmp_path / "own.toml"), "--jobs", "1", "--examples"]

    status = main([*command, "4", "--emit", str(tmp_path / "found")])

    assert "llama.cpp@b11549, its own layers: " in capsys.readouterr().out
    found = [load(path) for path in (tmp_path / "found").iterdir()]
    assert [layers] * status == [each.model.layers for each in found]
    assert 2 == main([*command, "4", "--model", "swa"])
    assert "it has its own layers; leave --model out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["vllm@0.33.0", "--like", THREE], "its server is llama.cpp"),
        (["--like", "none.toml"], "none.toml"),
        (["--like", THREE, "--model", "dense"], "leave --model out"),
        (["llama.cpp@b11549", "--prove", "--arithmetic", "float"], "--arithmetic cannot be used"),
        (["llama.cpp@b11549", "--prove", "--examples", "0"], "--examples cannot be used with"),
        (["llama.cpp@b11549", "--prove", "--jobs", "0"], "--jobs is 0; write a whole number"),
        (["--like", THREE, "--scope", "2"], "--like cannot be used with --scope"),
        (["--like", THREE, "--prove", "--find", "lost"], "--find cannot be used with --prove"),
        (["--like", "README.md"], "README.md"),
        (["--like", "tests/traces/data/conversation-300.jsonl.gz"], "names no release"),
        (["--like", "/dev/null"], "save it in a file"),
        (["--like", "mlx-lm-929-hit-rates", "-p", "mlx-lm@0.29.1+none"], "none"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["check", *words])
    assert why in capsys.readouterr().err
