"""A hunt searches a release from several targets, proves what it finds, and goes on past it."""

import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cachesim.cli import check
from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.errors import ScenarioError
from cachesim.play.findings import Finding, play
from cachesim.prove.hunt import loop as room
from cachesim.prove.hunt import proof
from cachesim.prove.hunt.loop import ProvenFinding, hunt, targets, unmasked
from cachesim.prove.hunt.proof import ProofResult, by_metadata, refuted_by
from cachesim.prove.hunt.report import COUNTED, commands, write
from cachesim.prove.llama_cpp import scenarios as llama_cpp
from cachesim.prove.llama_cpp.calls import call_for
from cachesim.prove.llama_cpp.fitting import fits
from cachesim.prove.llama_cpp.scenarios import PROVER, Proof, alone_of, divergence_of
from cachesim.prove.llama_cpp.workload import CRASH, Outcome
from cachesim.prove.llama_cpp_python import scenarios as llama_cpp_python
from cachesim.prove.mlx_lm import scenarios as mlx_lm
from cachesim.prove.playing import Difference, StepPlayed
from cachesim.scenario.files import load
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE
from cachesim.scenario.shipped import shipped_file
from cachesim.testing.search import Counterexample, Report
from cachesim.testing.survey import Cause, Sighting, Survey, causes
from cachesim.units import Token, as_tokens
from tests.fixtures import Capture, Patch

OCTOBER = Profile.parse("llama.cpp@b11549")
READING = Step(prompt=tuple(range(265, 500)) * 10, reply=(300,))
ARRIVING = Step(prompt=(300,), reply=(300,), with_previous=True, turns=1, slot=0)


def scenario(*steps: Step, **options: object) -> Scenario:
    return Scenario(
        format=FORMAT,
        name="hunted",
        model=Model(preset="swa", window=8),
        engine=Server(name="llama.cpp", profiles=("b11549",), options=options),
        step=steps,
    )


@pytest.fixture(name="caught")
def _caught(monkeypatch: Patch) -> list[Counterexample]:
    """Findings sent to the real server, which confirms all but the first."""
    brought: list[Counterexample] = []

    def prove(found: Counterexample, _: Profile) -> ProofResult:
        brought.append(found)
        return ProofResult(confirmed=len(brought) > 1, seen=f"number {len(brought)}")

    fake = replace(PROVER, prove=prove, ready=lambda _: None, kinds=())
    monkeypatch.setattr(proof, "real_prover", {"llama.cpp": fake}.get)
    monkeypatch.setattr(room, "SMALL", 12)
    monkeypatch.setattr(room, "known_causes", lambda _: {})
    monkeypatch.setattr(room, "ARRIVALS", 0)
    monkeypatch.setattr(room, "survey", always_the_same)
    return brought


def always_the_same(profile: Profile, model: str, **_: object) -> Survey:
    """A search that comes upon the three requests of the first screen, whatever it looks at."""
    prompts = (range(300, 305), range(400, 440), (*range(400, 420), *range(450, 470)))
    steps = (
        Step(name=f"r{n}", prompt=tuple(prompt), reply=(300,)) for n, prompt in enumerate(prompts)
    )
    drawn = replace(scenario(*steps), model=Model(preset=model))
    found = Survey(report=Report(profile=profile, model=model, workloads=1))
    for cause, (step, detail) in causes(drawn, profile, "ring", "wrong").items():
        found.see(cause, Sighting(number=0, scenario=drawn, step=step, detail=detail))
    return found


def limited(calls: int) -> Callable[[Report], bool]:
    left = iter(range(calls))
    return lambda _: next(left, None) is not None


def test_each_defect_is_looked_for_with_all_others_cured() -> None:
    assert [
        "llama.cpp@b11549",
        "llama.cpp@b11549+search-read-again+resume-behind+dry-run-restores",
        "llama.cpp@b11549+erase-equal+resume-behind+dry-run-restores",
        "llama.cpp@b11549+erase-equal+search-read-again+dry-run-restores",
        "llama.cpp@b11549+erase-equal+search-read-again+resume-behind",
        "llama.cpp@b11549+erase-equal+search-read-again+resume-behind+dry-run-restores",
    ] == [str(each) for each in unmasked(OCTOBER)]
    seen = list(targets(OCTOBER, ("dense", "swa")))
    assert {OCTOBER} == {each.profile for each in seen if each.model == "dense"}
    assert {"context_shift": True, "ctx_size": 256} in [each.flags for each in seen]


def test_a_cause_that_the_real_server_denies_is_tried_again_and_one_that_it_shows_is_not(
    caught: list[Counterexample],
) -> None:
    told: list[ProvenFinding] = []

    findings = hunt(OCTOBER, models=("hybrid",), going=limited(10), report=told.append)

    assert [False, True] == [each.result.confirmed for each in told]
    assert ["erase-equal"] == [each.cure for each in findings.proven]
    assert {} == findings.missed
    assert findings.survey.report.workloads > 2 == len(caught)
    assert all("hunt-llama.cpp-b11549" in each.scenario.name for each in caught)
    assert all(fits(each.scenario) for each in caught)


def test_a_pool_searches_ahead_and_proves_the_same(caught: list[Counterexample]) -> None:
    with ThreadPoolExecutor(1) as pool:
        findings = hunt(OCTOBER, models=("hybrid",), going=limited(10), pool=pool, ahead=2)

    assert ["erase-equal"] == [each.cure for each in findings.proven]
    assert findings.survey.report.workloads > 2 == len(caught)


def test_only_what_no_clock_decides_is_played_fits() -> None:
    assert fits(scenario(READING, ARRIVING))
    assert not fits(scenario(READING, ARRIVING, batch_size=64))
    assert not fits(scenario(replace(READING, prompt=(300, 301)), ARRIVING))
    assert not fits(scenario(READING, Step(do="cancel")))
    assert not fits(scenario(READING, spec_type="draft-mtp"))


def test_a_model_that_a_release_does_not_load_is_not_run_on_it() -> None:
    step = Step(name="r0", prompt=(300,))
    model, old = Model(preset="hybrid-mtp"), Server(name="llama.cpp", profiles=("b8672",))

    assert fits(replace(scenario(step), model=model))
    assert not fits(replace(scenario(step), model=model, engine=old))


def test_a_report_holds_every_request_as_a_line_for_a_shell(tmp_path: Path) -> None:
    shipped = load(shipped_file("llama.cpp-restore-old-checkpoints"))
    again = replace(scenario(*shipped.step, swa_full=True), spans=shipped.spans)
    lines = list(commands(again, "b11549", len(shipped.step) - 1))
    flags = "--parallel 1 --ctx-size 4096 --swa-full --slot-save-path ./"

    assert "cachesim real gguf swa -o swa.gguf --window 8" == lines[0]
    assert f"llama-server -m swa.gguf {flags} --port 8080 &" == lines[1]
    assert f"llama-server -m swa.gguf {flags} --port 8081 &" == lines[2]
    saved = "'localhost:8080/slots/0?action=save' -d '{\"filename\": \"a.bin\"}'"
    assert f"curl -s -w '\\n' {saved}" in lines
    assert len(shipped.step) == sum(line.startswith("curl") and ":8080" in line for line in lines)

    found = Counterexample(
        number=1,
        finding=proof_of_wrong(),
        scenario=scenario(Step(name="r0", prompt=(300, 301), reply=(302,))),
        arithmetic="ring",
    )
    finding = ProvenFinding(
        cause=Cause("wrong answer", ("any",), "erase-equal"),
        found=found,
        result=ProofResult(confirmed=True, seen="r0: WRONG 1"),
        target=OCTOBER,
        known="llama.cpp-three-requests",
    )
    text = write(finding, OCTOBER, tmp_path, 1, "the wheel").read_text(encoding="utf-8")
    assert "xllamacpp 2026.10.11549" in text
    assert "Seen on the wheel: r0: WRONG 1." in text
    assert "`llama.cpp@b11549+erase-equal`" in text
    assert "cachesim real llama.cpp --scenario 01-hunted.toml" in text
    assert load(tmp_path / "01-hunted.toml").step == found.scenario.step


def test_the_wrong_answer_is_asked_of_a_cold_server_too_and_no_grammar_hides_it() -> None:
    steps = (
        Step(name="r0", prompt=(300, 301), reply=(302,), slot=0),
        Step(name="r1", prompt=(300, 301, 302, 303), reply=(304, 305), slot=0),
        Step(name="r2", prompt=(300,), reply=(304,)),
    )
    lines = list(commands(scenario(*steps), "b11549", 1))
    first, warm, cold = (line for line in lines if line.startswith("curl"))

    assert "grammar" in first
    assert "n_probs" not in first
    for line, port in ((warm, 8080), (cold, 8081)):
        assert f"localhost:{port}/completion" in line
        assert "grammar" not in line
        assert '"n_probs": 10' in line
        assert '"n_predict": 2' in line
        assert "[300, 301, 302, 303]" in line
    assert "id_slot" in warm
    assert "id_slot" not in cold


def test_a_server_that_ends_has_no_cold_one_beside_it() -> None:
    lines = list(commands(scenario(READING, ARRIVING), "b11549", None))

    assert [] == [line for line in lines if "8081" in line]
    assert [" -m 30 " in line for line in lines if line.startswith("curl")] == [True, True]
    assert lines[-3].endswith(" &")
    assert "wait $!" == lines[-1]


def test_adapters_have_files_and_strengths_are_the_cold_servers_too() -> None:
    lines = list(
        commands(load(shipped_file("llama.cpp-26207-adapter-switched-off-live")), "b11549", 2)
    )
    names = [line.split()[5] for line in lines if "--adapter" in line]

    assert names
    assert all(f"--lora {name}" in line for name in names for line in lines if "--port" in line)
    assert [True, False] == [":8081" in line for line in lines if "/lora-adapters" in line]
    assert ":8081/completion" in lines[-1]


def test_a_flag_is_spelled_as_its_release_does() -> None:
    def server(release: str, **options: object) -> str:
        asked = scenario(Step(name="r0", prompt=(300,)), **options)
        return next(line for line in commands(asked, release, 0) if "llama-server" in line)

    assert " --no-clear-idle " in server("b8672", cache_idle_slots=False)
    assert " --no-cache-idle-slots " in server("b8929", cache_idle_slots=False)
    assert "swa-full" not in server("b11549", swa_full=False)


def test_a_hunt_that_finds_nothing_counts_what_it_played(
    caught: list[Counterexample], capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    nothing = Survey(report=Report(profile=OCTOBER, model="dense", workloads=25, requests=80))
    monkeypatch.setattr(room, "survey", lambda *_, **__: nothing)
    clock = count()
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock) / 1000)

    assert 0 == main(
        [
            "check",
            "--prove",
            "llama.cpp@b11549",
            "--minutes",
            "0.001",
            "--emit",
            str(tmp_path),
            "--jobs",
            "1",
        ]
    )
    assert [] == caught
    assert re.search(
        r"b11549, all models: [\d,]+ workloads, [\d,]+ requests", capsys.readouterr().out
    )


def test_a_hunt_prints_its_findings_as_a_survey_does_with_their_reports(
    caught: list[Counterexample], capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    clock = count()
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock))
    command = ["check", "llama.cpp@b11549", "--prove", "--jobs", "1", "--emit", str(tmp_path)]

    assert 1 == main([*command, "--model", "hybrid", "--minutes", "1", "--format", "json"])

    (search,) = json.loads(capsys.readouterr().out)["searches"]
    assert [CONFIRMED] == [finding["evidence"] for finding in search["findings"]]
    assert ["number 2"] == [finding["proof"] for finding in search["findings"]]
    assert ["01-hunt-llama.cpp-b11549-hunted.md", "01-hunt-llama.cpp-b11549-hunted.toml"] == sorted(
        file.name for file in tmp_path.iterdir()
    )
    assert 2 == len(caught)


def proof_of_wrong() -> Finding:
    return Finding(kind="wrong answer", step=0, detail="1 of 2 tokens cached")


def played(name: str, *, agrees: bool = True, confirmed: bool = False) -> StepPlayed:
    return StepPlayed(
        name=name, prompt_tokens=2, real=1, simulated=2, agrees=agrees, confirmed=confirmed
    )


def refused(*_: object) -> NoReturn:
    raise ScenarioError("a step is cancelled")


ELSEWHERE = Difference(step=3, real=1, simulated=2)


WRONG = proof_of_wrong()
END = Finding(kind="crash", step=0, detail="an assertion fails")
FAILED = Finding(kind="refusal", step=0, detail="server_error: no room")
KEPT = Finding(kind="broken invariant", step=0, detail="an entry of 4 tokens is gone")
COUNTS = Finding(kind="broken invariant", step=0, detail="1 cached and 7 processed of 2 tokens")
LOST = Finding(kind="lost reuse", step=0, detail="1 of 8 tokens cached that ...", due=8)
LEAK = Finding(kind="leak", step=0, detail="a value of r0 is replied")


def brought(finding: Finding) -> Counterexample:
    return Counterexample(number=1, finding=finding, scenario=scenario(READING), arithmetic="ring")


@pytest.mark.parametrize(
    ("finding", "step", "differs_in", "confirmed", "evidence"),
    [
        (WRONG, played("r0"), lambda *_: None, True, DERIVED),
        (WRONG, played("r0"), lambda *_: ELSEWHERE, False, SOURCE),
        (WRONG, played("r0"), refused, True, SOURCE),
        (WRONG, played("r0", agrees=False), lambda *_: None, False, SOURCE),
        (WRONG, played("r0"), None, True, SOURCE),
        (WRONG, played("r0", confirmed=True), None, True, SOURCE),
        (END, played("r0", confirmed=True), refused, True, CONFIRMED),
        (LOST, played("r0"), None, True, CONFIRMED),
        (LOST, played("r0", agrees=False), None, False, SOURCE),
        (replace(LOST, due=0), played("r0"), lambda *_: None, True, SOURCE),
        (KEPT, played("r0", confirmed=True), lambda *_: None, True, SOURCE),
    ],
)
def test_the_label_of_a_finding_is_that_of_what_was_played_on_scheduler_and_runner(
    finding: Finding,
    step: StepPlayed,
    differs_in: Callable[..., Any] | None,
    confirmed: bool,
    evidence: str,
) -> None:
    prove = by_metadata(lambda *_: (step,), differs_in)

    result = prove(brought(finding), Profile("vllm", "0.33.0"))

    assert (confirmed, evidence) == (result.confirmed, result.evidence)


def on_llama_cpp(*, wrong: bool, error: str | None) -> StepPlayed:
    real = Outcome(error=error) if error else Outcome(cached=1, processed=7)
    proof = None if error else Proof(distance=5.0 * wrong, token=0, noise=0.0)
    return replace(played("r0"), real=real, proof=proof)


def on_mlx_lm(*, wrong: bool, error: str | None) -> StepPlayed:
    answer = None if error else "diverged" if wrong else "same"
    return replace(played("r0"), real=(None if error else 1, answer, error))


def on_the_binding(*, wrong: bool, error: str | None) -> StepPlayed:
    real = {"error": error} if error else {"cached": 1}
    cells = ("1", "off by 2" if wrong else "same", "-", "-")
    return replace(played("r0", confirmed=wrong or bool(error)), real=real, cells=cells)


@pytest.mark.parametrize(
    ("room", "name", "form"),
    [
        (llama_cpp, "play_scenario", on_llama_cpp),
        (mlx_lm, "play_mlx_scenario", on_mlx_lm),
        (llama_cpp_python, "play_scenario", on_the_binding),
    ],
)
@pytest.mark.parametrize(
    ("finding", "wrong", "error", "evidence"),
    [
        (WRONG, True, None, CONFIRMED),
        (WRONG, False, None, SOURCE),
        (replace(WRONG, step=1), True, None, SOURCE),
        (WRONG, False, "server_error", SOURCE),
        (END, True, None, SOURCE),
        (FAILED, True, None, SOURCE),
        (FAILED, False, "server_error", CONFIRMED),
        (KEPT, True, None, SOURCE),
        (LEAK, True, None, SOURCE),
        (LOST, False, None, CONFIRMED),
        (replace(LOST, detail="0 of 8 tokens cached that ..."), True, None, SOURCE),
    ],
)
def test_a_finding_has_the_label_of_what_its_own_kind_says(
    *,
    room: Any,
    name: str,
    form: Callable[..., StepPlayed],
    finding: Finding,
    wrong: bool,
    error: str | None,
    evidence: str,
    monkeypatch: Patch,
) -> None:
    step = form(wrong=wrong, error=error)
    monkeypatch.setattr(room, name, lambda *_, **__: (step,))

    assert evidence == room.PROVER.prove(brought(finding), OCTOBER).evidence


def test_counts_that_do_not_add_up_are_confirmed_by_those_of_the_server(monkeypatch: Patch) -> None:
    step = on_llama_cpp(wrong=True, error=None)
    for processed, evidence in ((7, CONFIRMED), (1, SOURCE)):
        real = replace(step, real=Outcome(cached=1, processed=processed))
        monkeypatch.setattr(llama_cpp, "play_scenario", lambda *_, steps=(real,), **__: steps)

        assert evidence == PROVER.prove(brought(COUNTS), OCTOBER).evidence


def test_a_server_that_ends_before_the_step_of_a_crash_confirms_another_one(
    monkeypatch: Patch,
) -> None:
    step = on_llama_cpp(wrong=False, error=CRASH)
    monkeypatch.setattr(llama_cpp, "play_scenario", lambda *_, **__: (step,))

    found = brought(END), brought(replace(END, step=1)), brought(KEPT)
    assert [True, False, False] == [PROVER.prove(each, OCTOBER).confirmed for each in found]


@pytest.mark.wheel
def test_a_real_server_confirms_an_answer_and_counts_and_no_law_by_its_wrong_answer(
    monkeypatch: Patch,
) -> None:
    three = load(shipped_file("llama.cpp-three-requests"))
    (wrong,) = play(three, OCTOBER, stop_early=False).findings
    steps = llama_cpp.play_scenario(three, OCTOBER.release)
    lost = f"{steps[wrong.step].real.cached} of 99 tokens cached"
    monkeypatch.setattr(llama_cpp, "play_scenario", lambda *_, **__: steps)
    laws = KEPT, replace(LOST, detail=lost, due=99), replace(LOST, due=99)
    tried = [wrong, *(replace(law, step=wrong.step) for law in laws)]

    results = [PROVER.prove(brought(each), OCTOBER) for each in tried]

    assert all("WRONG" in result.seen for result in results)
    assert [CONFIRMED, SOURCE, CONFIRMED, SOURCE] == [result.evidence for result in results]


def report_of(finding: Finding, result: ProofResult, folder: Path) -> str:
    proven = ProvenFinding(
        cause=Cause(finding.kind, ("any",)), found=brought(finding), result=result, target=OCTOBER
    )
    return write(proven, OCTOBER, folder, 1, "the wheel").read_text(encoding="utf-8")


def test_a_report_of_a_law_names_no_wrong_answer(tmp_path: Path) -> None:
    shown = report_of(COUNTS, ProofResult(confirmed=True, seen="r0: 1 cached"), tmp_path)
    unseen = report_of(KEPT, ProofResult(confirmed=True, label=SOURCE, seen="-"), tmp_path)

    assert COUNTED in shown
    assert "timings/prompt_n" in shown
    assert "cold" not in shown
    assert "llama-server" not in unseen


def test_a_refutation_names_the_first_field_that_differs() -> None:
    agreeing = StepPlayed(
        name="r0", prompt_tokens=2, real={"cached": 1}, simulated=0, agrees=True, confirmed=None
    )
    real = {"cached": 16, "chunks": [[16, 18]], "evicted": []}
    simulated = real | {"chunks": [[16, 17]]}
    differing = replace(agreeing, name="r1", real=real, simulated=simulated, agrees=False)

    result = refuted_by([agreeing, differing])

    assert result is not None
    assert "r1, chunks[0][1]: 18, simulated 17" == result.seen


# Answers of the real server, held against its own cold ones.


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
    assert "matches 0.0002" == str(Proof(distance=2e-4, token=3, noise=0.0))
    assert "WRONG 0.013, token 4" == str(Proof(distance=0.013, token=3, noise=1e-4))
    assert "matches 0.01" == str(Proof(distance=0.013, token=3, noise=0.01))


def test_a_token_without_a_row_is_not_compared() -> None:
    """Servers that verify drafts give no probabilities of what they accept."""
    cold = outcome([1, 2, 3], 0.0, 0.0, 0.0)

    assert (0.0, 0) == divergence_of(replace(cold, top=(cold.top[0], {}, cold.top[2])), cold)
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
    assert {"endpoint": "infill", "lora": [{"id": 0, "scale": 0.5}]} == alone.options
    assert (-1, 1) == (alone.slot, alone.completions)
