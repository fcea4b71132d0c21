"""Options that several commands have: where each is, and that it means the same there."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from cachesim.cli.app import COMMANDS
from cachesim.cli.completion import SCENARIOS
from cachesim.cli.main import main
from tests.cli.test_main import spoken
from tests.fixtures import Capture, Patch, output

REAL: Final = "llama-cpp-python, llama.cpp, marconi, mlx-lm, sglang, transformers, vllm, gguf"
REALS: Final = " ".join(f"real/{part}" for part in REAL.split(", "))
TABLE: Final = {
    "--profile": ("run why check compare bisect record conform", "A release with its patches"),
    "--model": (
        "why check compare bisect record conform real/llama.cpp real/llama-cpp-python",
        "A preset of `cachesim list presets`",
    ),
    "--set": ("run why check compare bisect record conform", "A flag of the server, such as"),
    "--seed": (
        f"run check compare bisect probe conform {REALS}",
        "The seed of everything drawn at random",
    ),
    "--format": ("run why check compare sweep bisect probe conform list", "How to print."),
    "--report": (
        "run why check compare sweep bisect record conform list",
        "Write the report as one HTML",
    ),
    "--jobs": ("run check compare sweep", "Number of processes; all processors by default."),
    "--arithmetic": ("run check compare bisect", "float: a real network; ring: exact 64-bit"),
}
"""The commands that have an option, and how its help begins in all of them.

The plan of a sweep names servers, flags and models; a run's scenario names its model. A log and a
live server have no seed, and a probe cannot set what its server is. The file that `record` writes
is printed by `why --format`; `probe` writes its report into the folder of --emit. What takes
seconds has no --jobs.
"""


def helped(capsys: Capture, *words: str) -> dict[str, str]:
    """The options of a command, each with its help."""
    assert main([*words, "--help"]) == 0
    lines = re.findall(r"^│(?: \*)? +(.*?)  +(\S.*?) +│$", spoken(capsys)[0], re.MULTILINE)
    return {option: text for names, text in lines for option in re.findall(r"--[a-z-]+", names)}


@pytest.mark.parametrize(
    ("words", "other", "flag"),
    [
        ("run X --watch --report x.html", "--report", "--watch"),
        ("run X --watch --step C", "--step", "--watch"),
        ("run X --watch --explain", "--explain", "--watch"),
        ("run X --watch --jobs 2", "--jobs", "--watch"),
        ("run X --watch --timeout 3", "--timeout", "--watch"),
        ("run X --watch --no-verify", "--no-verify", "--watch"),
        ("run X --brief --watch", "--watch", "--brief"),
        ("run X --brief --step C", "--step", "--brief"),
        ("list vllm --flags --format json", "--format", "--flags"),
        ("list X --raw --format json", "--format", "--raw"),
        ("new mine --engine mine", "NAME", "--engine"),
        ("new --engine mine --from X", "--from", "--engine"),
        ("new --from X --from-report x.md", "--from", "--from-report"),
    ],
)
def test_an_option_without_a_meaning_beside_another_is_refused(
    words: str, other: str, flag: str, capsys: Capture
) -> None:
    assert 2 == main(words.replace("X", "llama.cpp-three-requests").split())
    assert f"{other} cannot be used with {flag}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run llama.cpp-three-requests --detail", "--detail is a part of JSON: add --format json"),
        ("list engines --raw", "no shipped scenario is called 'engines'"),
        ("new --engine class", "Python has this word already"),
        ("new --engine json", "Python has this word already"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, said: str, capsys: Capture) -> None:
    assert 2 == main(words.split())
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_option_means_the_same_in_every_command_that_has_it(
    capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    assert main(["real", "--help"]) == 0
    engines = re.findall(r"^│ ([a-z][\w.-]+) ", spoken(capsys)[0], re.MULTILINE)
    commands = [(command,) for command in COMMANDS if command != "real"]
    found = {
        "/".join(words): helped(capsys, *words)
        for words in (*commands, *(("real", engine) for engine in engines))
    }

    for option, (places, begins) in TABLE.items():
        having = {name: texts[option] for name, texts in found.items() if option in texts}
        assert {*places.split()} == {*having}, option
        assert not {name: text for name, text in having.items() if not text.startswith(begins)}


# Shells complete commands, options, profiles and the names of shipped scenarios.

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
def test_bash_completes(words: str, completed: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    asked = ASK.format(script=script, words=f"cachesim {words}", at=len(words.split()))

    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)

    assert completed == done.stdout.strip()
    assert "complete -o default -F _cachesim cachesim" in script.read_text()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_scenarios_and_profiles_too(shell: str, capsys: Capture) -> None:
    script = output(capsys, ["completion", shell])
    assert f"{THREE}-dense" in script
    assert "vllm@0.33.0" in script


def test_the_commands_that_take_a_scenario_are_commands() -> None:
    assert COMMANDS.keys() >= SCENARIOS.keys()
