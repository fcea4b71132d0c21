"""The program as its own process: closed files, a full disk, an interrupt, its imports."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures import complaint

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m cachesim"
STALE = "llama.cpp-three-requests"
HEAVY = {
    "numpy",
    "hypothesis",
    "cachesim.engines",
    "cattrs",
    "cachesim.engines.base",
    "cachesim.scenario.checks",
}

LOADED = "import sys; from cachesim.cli.main import main; main({words!r}); print(*sys.modules)"


def shell(command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT
    )


def modules(words: list[str]) -> str:
    """Everything that is loaded once a command has ended."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(words=words)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", STALE], ["list", "presets"]])
def test_what_is_only_looked_up_loads_neither_numpy_nor_a_server(words: list[str]) -> None:
    assert set() == HEAVY & set(modules(words).split())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "engines"),
    [
        (["list"], set()),
        (["list", "llama.cpp"], {"llamacpp"}),
        (["list", "vllm@0.24.0"], {"vllm"}),
        (["run", STALE], {"llamacpp"}),
    ],
)
def test_one_engine_is_played_and_shown_without_the_others(
    words: list[str], engines: set[str]
) -> None:
    assert engines == set(re.findall(r"cachesim\.engines\.(\w+)\.family\b", modules(words)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "closed"),
    [
        ("list presets", "<&-"),
        ("learn", ">&-"),
        ("list presets", "2>&-"),
        (f"run {STALE} --no-verify", "<&- >&- 2>&-"),
    ],
)
def test_a_closed_standard_file_is_no_error(words: str, closed: str) -> None:
    done = shell(f"{PROGRAM} {words} {closed}")

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.thorough
def test_a_scenario_from_a_closed_standard_input_is_wrong_usage() -> None:
    done = shell(f"{PROGRAM} run - <&-")

    assert 2 == done.returncode
    assert "standard input: is empty" in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", ["list", "--help", f"run {STALE} --no-verify"])
def test_a_full_disk_is_said_once(words: str) -> None:
    done = shell(f"{PROGRAM} {words} > /dev/full")

    assert (2, "cachesim: standard output: No space left on device\n") == (
        done.returncode,
        done.stderr,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", ["list", "--help", f"run {STALE} --watch"])
def test_a_reader_that_goes_is_no_error(words: str) -> None:
    done = shell(f"bash -c '{PROGRAM} {words} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}'")

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("delay", [0, 0.05])
def test_an_interrupt_while_it_starts_is_130_in_one_line(delay: float) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "cachesim", "run", "scenarios"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    while "_multiarray_umath" not in Path(f"/proc/{run.pid}/maps").read_text():
        time.sleep(0.002)
    time.sleep(delay)
    run.send_signal(signal.SIGINT)
    said = run.communicate()[1]

    assert (130, "cachesim: interrupted\n") == (run.returncode, said)


@pytest.mark.thorough
def test_the_end_of_input_ends_watching() -> None:
    """Ctrl-D at a terminal."""
    leader, follower = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "cachesim", "run", STALE, "--watch"],
        stdin=follower, stdout=follower, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(follower)
    os.write(leader, b"\n\x04")
    said = run.communicate(timeout=60)[1]
    os.close(leader)

    assert "a bug" not in said
    assert run.returncode in {0, 1}


@pytest.mark.parametrize(
    "line", ['{"profile": 5}', "[]", "5", "{}", '{"memory": 1, "ops": 7}',
             '{"version": 1, "steps": [[1]]}',
             '{"profile": "llama.cpp@b9538", "steps": [{}], "id": 1}', "nonsense", ""]
)  # fmt: skip
def test_a_malformed_line_of_a_vector_file_is_wrong_usage(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(line + "\n")

    assert f"cachesim: {file}" in complaint(capsys, ["real", "vectors", str(file)])


@pytest.mark.parametrize("opening", ["[", "{ a = "])
def test_deeply_nested_tables_are_wrong_usage(
    opening: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closing = {"[": "]", "{ a = ": "}"}[opening]
    for depth in (20, 100, 400, 20_000):
        file = tmp_path / f"{depth}.toml"
        file.write_text(f"format = 1\nname = {opening * depth}1{closing * depth}\n")

        assert "nested" in complaint(capsys, ["run", str(file)])


def test_ctrl_c_before_the_package_is_loaded_is_answered_too() -> None:
    code = (
        "import os, signal, sys, _cachesim_program\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.startswith('cachesim'): os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "_cachesim_program.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (130, "cachesim: interrupted\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "shown"), [(f"compare {STALE}", "#######"), ("completion fish", "complete -c")]
)
def test_an_output_without_our_signs_gets_plainer_ones(words: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cachesim", *words.split()],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )

    assert b"" == done.stderr
    assert shown in done.stdout.decode("ascii")
