"""A real llama-server, probed blind: the stale checkpoint is found, full attention stays quiet."""

from pathlib import Path

import pytest

from cachesim.lab.probe import loop
from cachesim.lab.probe.command import Settings, run
from cachesim.lab.real.llama_cpp.gguf import write_model
from cachesim.lab.real.llama_cpp.server import environment_for
from cachesim.model.presets import preset

pytestmark = pytest.mark.wheel

SCRIPT = Path(__file__).with_name("serve_llama.py")


@pytest.mark.parametrize(("model", "right"), [("hybrid", False), ("dense", True)])
def test_a_stale_checkpoint_is_found_within_a_thousand_requests(
    model: str, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TRIALS", 20)
    file = tmp_path / "model.gguf"
    write_model(preset(model), file)
    start = f"{environment_for('b11549').ready()} {SCRIPT} {file} {{port}}"
    result = run(Settings(start=start, requests=1000, minutes=4.0, emit=tmp_path / "out")).result
    assert right == result.right
    assert any("b11549" in each.releases for each in result.outcome.fingerprint.left)
    if result.outcome.finding is not None:
        assert (5, 5) == result.outcome.finding.proofs
        assert any("b11549" in each for each in result.outcome.finding.mechanism)
