"""Runs that could not have found anything, and findings that a fresh server may not show."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cachesim.cli import UNTESTED
from cachesim.cli.main import main
from cachesim.probe import loop
from cachesim.probe.command import Finished, Settings, run
from cachesim.probe.connection import BudgetError
from cachesim.probe.result import Result
from tests.fixtures import Patch
from tests.probe.fakes import Model, Tokens, fake, stale

VLLM, LLAMA = "vllm@0.33.0", "llama.cpp@b11549"


@pytest.fixture(autouse=True)
def _short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop, "TRIALS", 10)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))


def probed(url: str, requests: int = 150, emit: Path | None = None) -> Finished:
    return run(Settings(url=url, requests=requests, longest=60, minutes=2.0, emit=emit))


def lacks(result: Result) -> str:
    (sentence,) = result.missing
    assert next(result.verdict()).startswith(f"NOT TESTED: {sentence} (")
    assert [sentence] == result.as_json()["missing"]
    return sentence


def test_a_server_without_a_cache_is_not_tested(capsys: pytest.CaptureFixture[str]) -> None:
    with fake("vllm", VLLM, enable_prefix_caching=False) as server:
        assert lacks(probed(server.url).result).startswith("no answer came from cache: ")
        words = ["probe", server.url, "--requests", "150", "--longest", "60"]
        assert UNTESTED == main(words)
    assert "NOT TESTED: no answer came from cache" in capsys.readouterr().out


def test_a_run_that_ends_before_its_search_is_not_tested() -> None:
    with fake("llama", LLAMA) as server:
        assert "the run ended before an answer from cache was searched" in lacks(
            probed(server.url, 20).result
        )
        assert () == probed(server.url, 200).result.missing


def test_a_server_whose_answers_are_all_alike_is_not_tested(monkeypatch: Patch) -> None:
    def alike(_: Model, tokens: Tokens, noise: float) -> object:
        del tokens, noise
        row = -np.arange(512.0)
        return row - np.log(np.exp(row).sum())

    monkeypatch.setattr(Model, "logits", alike)
    with fake("llama", LLAMA, context=stale) as server:
        assert lacks(probed(server.url).result).startswith("uncached answers to different prompts ")


def test_no_comparable_answer_has_the_status_of_no_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake("llama", LLAMA, fault=lambda *_: "deny") as server:
        assert UNTESTED == main(["probe", server.url])
    assert "no answer could be compared with an uncached one" in capsys.readouterr().err


def test_the_fixture_fails_if_nothing_was_tested(cachesim_probe: Callable[..., Result]) -> None:
    with (
        fake("vllm", VLLM, enable_prefix_caching=False) as server,
        pytest.raises(pytest.fail.Exception, match="the probe tested nothing: no answer came"),
    ):
        cachesim_probe(url=server.url, requests=150, longest=60)


def out_of_time(*_: object, **__: object) -> None:
    raise BudgetError("the 2 minutes are over")


def test_the_whole_sequence_shows_on_a_fresh_server_what_was_not_made_smaller(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """The time ends before any workload was wrong from a fresh start."""
    monkeypatch.setattr(loop.Probe, "_from_fresh", out_of_time)
    with fake("llama", LLAMA, context=stale) as server:
        finished = probed(server.url, 1500, tmp_path)
    finding = finished.result.outcome.finding
    assert finding is not None
    assert not finding.fresh
    assert "while the workload was made smaller" in finished.result.outcome.ended
    assert ["report.md", "requests.jsonl", "sequence.sh"] == sorted(e.name for e in finished.files)
    report = (tmp_path / "report.md").read_text()
    assert "a fresh server shows the fault after these lines alone was not seen" in report
    with fake("llama", LLAMA, context=stale) as server:
        done = subprocess.run(
            ["sh", "-eu", tmp_path / "sequence.sh"],
            env={"URL": server.url, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
    warm, cold = map(json.loads, done.stdout.splitlines())
    assert warm["tokens"] == cold["tokens"]  # forced
    assert warm["completion_probabilities"] != cold["completion_probabilities"]


def test_the_smallest_workload_so_far_is_kept_if_time_ends_while_it_is_made_smaller(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loop, "shrink", out_of_time)
    with fake("llama", LLAMA, context=stale) as server:
        finding = probed(server.url, 1500, tmp_path).result.outcome.finding
    assert finding is not None
    assert finding.scenario is not None
    sent = [step for step in finding.scenario.step if step.do == "complete"]
    assert len(sent) == len(finding.queries) == len(finding.answers)
    assert finding.cold is not None
    assert finding.answers[finding.wrong].rows != finding.cold.rows
