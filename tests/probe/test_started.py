"""Servers that `--start` starts and that misbehave: a sentence each, and nothing left running."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachesim.errors import InputError
from cachesim.probe import loop, target
from cachesim.probe.command import Settings, run
from cachesim.probe.result import Result

SERVER = f"{sys.executable} -m tests.probe.fakes llama llama.cpp@b11549"

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))


def probed(start: str) -> Result:
    return run(Settings(start=start, requests=200, longest=60, minutes=1.0)).result


def sleeper() -> str:
    """A command of its own, which `running` finds."""
    return f"sleep 1000.{time.time_ns()}"


def running(command: str) -> bool:
    """True if a process of this command is alive, after a second at most."""
    for _ in range(20):
        shown = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True)  # noqa: PLW1510
        lines = [line for line in shown.stdout.splitlines() if not line.startswith("Z")]
        if not any(line.endswith(command) for line in lines):
            return False
        time.sleep(0.05)
    return True


def test_a_server_that_never_listens_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "READY_SECONDS", 1.0)
    command = sleeper()
    with pytest.raises(InputError, match=r"nothing answers on port \d+ after 1 seconds"):
        probed(f"sh -c 'exec {command}' --port {{port}}")
    assert not running(command)


def test_a_server_that_dies_is_a_finding_with_its_status() -> None:
    result = probed(f"{SERVER} {{port}} dies")
    said = "WRONG: the server answers no request any more: the process ended with status 3"
    assert said == next(result.verdict())
    assert result.outcome.finding is not None
    assert 1 == result.outcome.finding.proofs[1]


def test_the_last_line_with_a_word_is_quoted() -> None:
    with pytest.raises(InputError, match=r"ended with status 4: no memory$"):
        probed("sh -c 'echo no memory; echo; echo ------; exit 4' {port}")


def test_a_finding_outlives_a_server_that_cannot_be_started_again(tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/ended && exit 4; {SERVER} $0 dies; touch {tmp_path}/ended"
    result = probed(f"sh -c '{script}' {{port}}")
    assert "the process ended with status 0" in next(result.verdict())
    assert "--start: the server ended with status 4" == result.outcome.ended


def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PATIENCE", 0.3)
    result = probed(f"{SERVER} {{port}} stays")
    assert result.right
    assert any(note.startswith(target.KILLED) for note in result.outcome.notes)
    assert not running(f" {result.url.rpartition(':')[2]} stays")


@pytest.mark.parametrize(
    ("apart", "said"), [("", 0), ("setsid ", 1)], ids=["in its group", "apart"]
)
def test_a_child_that_a_server_leaves_is_killed(apart: str, said: int) -> None:
    command = sleeper()
    result = probed(f"sh -c '{apart}{command} & exec {SERVER} $0' {{port}}")
    assert result.right
    assert not running(command)
    assert said == sum(note.startswith(target.STRAYS) for note in result.outcome.notes)


def test_a_server_that_goes_to_the_background_is_ended() -> None:
    command = sleeper()
    with pytest.raises(InputError, match="the server ended with status 0"):
        probed(f"sh -c 'setsid {command} & exit 0' --port {{port}}")
    assert not running(command)


def test_a_killed_probe_leaves_no_child_apart(tmp_path: Path) -> None:
    command = sleeper()
    start = f"sh -c 'setsid {command} & exec {SERVER} $0' {{port}}"
    words = [sys.executable, "-m", "cachesim", "probe", "--start", start, "--emit", str(tmp_path)]
    probe = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 60
    while not running(command) and time.monotonic() < ends:
        time.sleep(0.05)
    os.kill(probe.pid, 9)
    probe.wait()
    time.sleep(3)  # the guard waits for 2 seconds
    assert not running(command)
