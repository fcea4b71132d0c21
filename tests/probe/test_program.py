"""The installed program: status, output, refusals, and nothing left running."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cachesim.probe import loop
from cachesim.probe.command import Settings, run
from tests.fixtures import complaint
from tests.probe.fakes import fake

PROGRAM = [sys.executable, "-m", "cachesim", "probe"]
SERVER = f"{sys.executable} -m tests.probe.fakes llama llama.cpp@b11549 {{port}}"
ROOT = Path(__file__).parents[2]


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a server, as in http://127.0.0.1:8080"),
        (["http://192.0.2.1:80"], "is on another machine"),
        (["ftp://127.0.0.1"], "is no address of a server"),
        (["http://127.0.0.1:1"], "does not accept connections"),
        (["http://127.0.0.1:1", "--no-repeats"], "does not accept connections"),
        (["http://127.0.0.1:1", "--minutes", "0"], "--minutes is 0.0; write a number above 0"),
        (["http://127.0.0.1:1", "--alarms", "nan"], "--alarms is nan"),
        (["http://127.0.0.1:1", "--like", "none.toml"], "none.toml"),
        (["http://127.0.0.1:1", "--words", "none.txt"], "--words none.txt: cannot be read"),
        (["--start", "llama-server -m m.gguf"], "write the port"),
        (["--start", "no-such-program --port {port}"], "No such file or directory"),
        (["--start", "false --port {port}"], "the server ended with status 1"),
    ],
)
def test_wrong_usage_has_a_sentence_and_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in complaint(capsys, ["probe", *words])


@pytest.mark.thorough
def test_the_installed_program_refuses_without_a_traceback() -> None:
    done = program("ftp://127.0.0.1")
    assert (2, False) == (done.returncode, "Traceback" in done.stderr)


@pytest.mark.thorough
def test_a_port_that_is_taken_is_not_taken_for_the_server() -> None:
    with fake("llama", "llama.cpp@b11549") as server:
        port = server.url.rpartition(":")[2]
        done = program("--start", f"false --port {port}")
    assert (2, True) == (done.returncode, f"port {port} is taken" in done.stderr)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bug", "status"), [("", 0), pytest.param(" bug", 1, marks=pytest.mark.nightly)]
)
def test_a_started_server_is_probed_and_ended(bug: str, status: int, tmp_path: Path) -> None:
    words = ("--start", SERVER + bug, "--requests", "400", "--longest", "60", "--minutes", "1")
    done = program(*words, "--emit", str(tmp_path), "--format", "json")
    found = json.loads(done.stdout)
    assert (status, status == 0) == (done.returncode, found["right"])
    assert found["fingerprint"]["left"]
    assert found["cold_equals_fresh_start"]
    assert any("b11549 dense" in each for each in found["fingerprint"]["left"])
    assert (3 if status else 0) == len(found["files"])
    assert not listening(int(found["server"]["url"].rpartition(":")[2]))


@pytest.mark.thorough
@pytest.mark.nightly
def test_a_broken_plain_law_is_proven_with_the_requests_before_the_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop, "TRIALS", 10)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))
    settings = Settings(start=f"{SERVER} every", requests=900, longest=60, minutes=1.0, alarms=2)
    outcome = run(settings).result.outcome
    assert outcome.proven_cold  # the server was started again before the law was held to
    assert outcome.finding is not None
    assert ("reuse", (5, 5)) == (outcome.finding.kind, outcome.finding.proofs)
    assert 0 < outcome.finding.wrong < len(outcome.finding.queries)


@pytest.mark.nightly
@pytest.mark.thorough
def test_a_cold_answer_that_no_fresh_server_gives_ends_the_run() -> None:
    done = program("--start", f"{SERVER} drift", "--requests", "600", "--longest", "60")
    assert 2 == done.returncode
    assert "is not that of a server that has just been started: off by " in done.stderr


@contextmanager
def probing(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A probe that sends its workloads, and the port of the server that it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = SERVER.replace("{port}", str(port)) + f" '' --port {port}"
    words = [*PROGRAM, "--start", command, "--emit", str(folder)]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup it would be ignored
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        try:
            wait_for((folder / "requests.jsonl").exists)
            wait_for(lambda: listening(port))
            yield running, port
        finally:
            running.kill()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process(sign: signal.Signals, tmp_path: Path) -> None:
    with probing(tmp_path / "out") as (running, port):
        os.kill(running.pid, sign)
        _, said = running.communicate(timeout=30)
    assert running.returncode in {130, -signal.SIGINT}, said.decode()  # a shell has 130 for both
    assert b"interrupted" in said
    assert not listening(port)
    assert [] == list((tmp_path / "out").iterdir())


@pytest.mark.thorough
def test_a_probe_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with probing(tmp_path) as (running, port):
        running.kill()
        running.communicate(timeout=30)
    wait_for(lambda: not listening(port))


def listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not done() and time.monotonic() < ends:
        time.sleep(0.05)
    assert done()
