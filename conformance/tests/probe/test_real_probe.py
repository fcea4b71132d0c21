"""A real llama-server, probed blind: the stale checkpoint is found, full attention stays quiet."""

import json
import subprocess
from pathlib import Path

import pytest

from cachesim.model.presets import preset
from cachesim.probe import loop
from cachesim.probe.command import Settings, run
from cachesim.probe.judging import ERROR
from cachesim.probe.target import ServerProcess
from cachesim.prove.llama_cpp.gguf import write_model
from conformance.servers import llama_server

pytestmark = pytest.mark.wheel

ONE_SLOT = ("-t", "1", "-np", "1", "-c", "4096")


def differs_on_screen(report: str, start: str, folder: Path) -> bool:
    """The report's lines, pasted into a shell: the last answer is not the cold one."""
    lines = report.partition("```sh\n")[2].partition("```")[0]
    port = lines.partition("\n")[0].rpartition(":")[2]
    server = ServerProcess(start)
    server.port = int(port)
    server.start()
    try:
        pasted = ["bash", "-eu", "-c", lines]
        done = subprocess.run(pasted, capture_output=True, text=True, check=True, cwd=folder)
    finally:
        server.close()
    warm, cold = map(json.loads, done.stdout.splitlines()[-2:])
    places = zip(warm["completion_probabilities"], cold["completion_probabilities"], strict=True)
    return any(
        abs(one["logprob"] - other["logprob"]) > ERROR
        for ours, theirs in places
        for one in ours["top_logprobs"]
        for other in theirs["top_logprobs"]
        if one["id"] == other["id"]
    )


@pytest.mark.parametrize(
    ("model", "right"), [("hybrid", False), pytest.param("dense", True, marks=pytest.mark.nightly)]
)
def test_a_stale_checkpoint_is_found_within_a_thousand_requests(
    model: str, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TRIALS", 20)
    file = tmp_path / "model.gguf"
    write_model(preset(model), file)
    start = llama_server("b11549", file, *ONE_SLOT)
    result = run(Settings(start=start, requests=1000, minutes=4.0, emit=tmp_path / "out")).result
    assert right == result.right
    assert any("b11549" in each.releases for each in result.outcome.fingerprint.left)
    if result.outcome.finding is not None:
        report = (tmp_path / "out" / "report.md").read_text()
        port = report.partition("URL=")[2].partition("\n")[0].rpartition(":")[2]
        assert f"just been started (`{start.replace('{port}', port)}`):" in report
        assert differs_on_screen(report, start, tmp_path)
        assert (5, 5) == result.outcome.finding.proofs
        assert any("b11549" in each for each in result.outcome.finding.mechanism)


@pytest.mark.nightly
def test_lines_of_a_server_that_was_not_restarted_show_it_on_a_fresh_one(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_model(preset("hybrid"), file)
    start = llama_server("b11549", file, *ONE_SLOT)
    server = ServerProcess(start)
    server.start()
    try:
        settings = Settings(url=server.url, requests=2000, minutes=4.0, emit=tmp_path / "out")
        finding = run(settings).result.outcome.finding
    finally:
        server.close()
    assert finding is not None
    assert finding.fresh
    report = (tmp_path / "out" / "report.md").read_text()
    assert "has just been started, where a simulated one is wrong" in report
    assert differs_on_screen(report, start, tmp_path)
