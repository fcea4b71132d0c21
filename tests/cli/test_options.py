"""Options that several commands have: where each is, and that it means the same there."""

import re
from typing import Final

import pytest

from cachesim.cli.app import COMMANDS
from cachesim.cli.main import main
from tests.cli.test_main import Capture, spoken

REAL: Final = "llama-cpp-python, llama.cpp, marconi, mlx-lm, sglang, transformers, vllm, gguf"
TABLE: Final = {
    "--profile": ("run why check compare bisect record", "A release with its patches"),
    "--model": (
        "why check compare bisect record real/llama.cpp real/llama-cpp-python",
        "A preset of `cachesim list presets`",
    ),
    "--set": ("run why check compare bisect record", "A flag of the server, such as"),
    "--seed": (
        f"run check compare bisect probe {' '.join(f'real/{each}' for each in REAL.split(', '))}",
        "The seed of everything drawn at random",
    ),
    "--format": ("run why check compare sweep bisect probe list", "How to print."),
    "--report": ("run why check compare sweep bisect record list", "Write the report as one HTML"),
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


def test_an_option_means_the_same_in_every_command_that_has_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    assert main(["real", "--help"]) == 0
    engines = re.findall(r"^│ ([a-z][\w.-]+) ", spoken(capsys)[0], re.MULTILINE)
    commands = [(each,) for each in COMMANDS if each != "real"]
    found = {
        "/".join(words): helped(capsys, *words)
        for words in (*commands, *(("real", each) for each in engines))
    }

    for option, (places, begins) in TABLE.items():
        having = {name: texts[option] for name, texts in found.items() if option in texts}
        assert {*places.split()} == {*having}, option
        assert not {name: text for name, text in having.items() if not text.startswith(begins)}
