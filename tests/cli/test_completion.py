"""Shells complete commands, options, profiles and the names of shipped scenarios."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cachesim.cli.app import COMMANDS
from cachesim.cli.completion import SCENARIOS
from cachesim.cli.main import main

ASK = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
$(complete -p cachesim | sed 's/.*-F \\([^ ]*\\).*/\\1/')
echo "${{COMPREPLY[@]}}"
"""
THREE = "llama.cpp-three-requests"


@pytest.mark.sampled(5)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("comp", "compare"),
        (f"list {THREE}-d", f"{THREE}-dense"),
        (f"compare {THREE}-w", f"{THREE}-window"),
        (f"run mine.toml {THREE}-w", f"{THREE}-window"),
        (f"new --from {THREE}-w", f"{THREE}-window"),
        ("run --arithmetic ri", "ring"),
        ("run min", ""),
        ("check marconi@pap", "marconi@paper"),
        ("run mine.toml -p vllm@0.33", "vllm@0.33.0"),
        ("why server.log --profile llama.cpp@b115", "llama.cpp@b11549"),
    ],
)
def test_bash_completes(
    words: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    asked = ASK.format(script=script, words=f"cachesim {words}", at=len(words.split()))

    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)

    assert completed == done.stdout.strip()
    assert "complete -o default -F _cachesim cachesim" in script.read_text()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_scenarios_and_profiles_too(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{THREE}-dense" in script
    assert "vllm@0.33.0" in script


def test_the_commands_that_take_a_scenario_are_commands() -> None:
    assert COMMANDS.keys() >= SCENARIOS.keys()
