"""Scenario files as tests of anyone's project."""

import subprocess
import sys
from pathlib import Path

from cachesim.scenario import load

SCENARIO = """
format = 1
name = "chat"
[model]
preset = "dense"
[engine]
name = "llama.cpp"
profiles = ["b9538", "b11549"]
[spans]
S = 20
[[step]]
name = "A"
prompt = "S"
predict = 1
[[expect]]
profile = "b9538"
cached = [0]
[[expect]]
profile = "b11549"
cached = [7]
"""


def test_a_folder_of_scenarios_is_collected_and_failures_are_told(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").write_text(SCENARIO)
    (tmp_path / "wrong.toml").write_text(SCENARIO.replace("preset", "preest"))
    (tmp_path / "other.toml").write_text("format = 'of something else'")
    command = [sys.executable, "-m", "pytest", "-p", "no:cachesim", "-p", "_cachesim_pytest", "-v"]
    root = Path(__file__).parent.parent

    done = subprocess.run(  # noqa: S603 - our own interpreter
        [
            *command,
            "--continue-on-collection-errors",
            "--cachesim-arithmetic=ring",
            "--cachesim-emit=failed",
            ".",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "chat.toml::llama.cpp@b9538 PASSED" in done.stdout
    assert "chat.toml::llama.cpp@b11549 FAILED" in done.stdout
    assert "A: cached is 0, expected 7" in done.stdout
    assert "model.preest: unknown key 'preest'; did you mean 'preset'?" in done.stdout
    assert "other.toml" not in done.stdout
    assert "1 failed, 1 passed, 1 error" in done.stdout
    emitted = load(tmp_path / "failed" / "chat-b11549.toml")
    assert ("b11549",) == emitted.engine.profiles
    assert ["b11549"] == [each.profile for each in emitted.expect]
