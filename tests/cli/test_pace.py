"""A run ends at its timeout, warns of a long duration, and shows its progress."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.jobs import jobs_of
from cachesim.cli.main import main
from cachesim.cli.run import Clock, Deadline, seconds_of
from cachesim.engines.family import Profile
from cachesim.errors import OutOfTimeError
from cachesim.model.arithmetic import GrowingArray
from cachesim.play import run
from cachesim.report.consoles import plain_text
from cachesim.report.html import page
from cachesim.report.tables import side_by_side
from cachesim.scenario import load
from tests.fixtures import Capture, Patch, output

ROOT = Path(__file__).parents[2]
LONG = """
format = 1
name = "long"
model = {{ preset = "{preset}" }}
engine = {{ name = "llama.cpp", profiles = ["b9538", "b11549"], options = {{ ctx_size = 60000 }} }}
spans = {{ S = {tokens}, T = 20 }}
step = [
  {{ name = "A", prompt = "T", predict = 1 }},
  {{ name = "B", prompt = "S", predict = 200 }},
  {{ name = "C", prompt = "S B.reply", predict = 200 }},
]
"""


def long(folder: Path, *, preset: str = "dense", tokens: int = 40_000) -> str:
    file = folder / "long.toml"
    file.write_text(LONG.format(preset=preset, tokens=tokens))
    return str(file)


@pytest.mark.parametrize("extra", [[], ["--report"]])
def test_a_run_stops_in_time_with_what_there_is(
    extra: list[str], tmp_path: Path, capsys: Capture
) -> None:
    page = [*extra, str(tmp_path / "page.html")] if extra else []
    started = time.monotonic()

    status = main(["run", long(tmp_path), "--timeout", "0.5", "--format", "json", *page])

    assert time.monotonic() - started < 20
    assert 1 == status
    for entry in json.loads(capsys.readouterr().out)["runs"]:
        errors = [step["error"] for step in entry["steps"]]
        done = errors.index("timeout")
        assert [None] * done + ["timeout"] * (3 - done) == errors
        first = "ABC"[done:][:1] + ("", " and 1 step after it", " and 2 steps after it")[2 - done]
        assert [f"{first}: not run, the time given was over"] == entry["mismatches"]


def test_a_time_limit_holds_though_its_first_exception_is_lost() -> None:
    def twice() -> None:
        with Clock(Deadline.after(0.05), lambda: None).limit():
            with suppress(OutOfTimeError):  # as in a callback of the garbage collector
                time.sleep(4)
            time.sleep(4)

    with pytest.raises(OutOfTimeError):
        twice()


def test_a_signal_that_arrives_at_the_end_of_a_run_leaves_no_timer(monkeypatch: Patch) -> None:
    stop, late = signal.setitimer, [OutOfTimeError("the time given is over")]

    def stop_late(which: int, seconds: float, *more: float) -> tuple[float, float]:
        if not seconds and late:
            raise late.pop()
        return stop(which, seconds, *more)

    monkeypatch.setattr(signal, "setitimer", stop_late)
    before = signal.getsignal(signal.SIGALRM)
    with Clock(Deadline.after(60), lambda: None).limit():
        pass

    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)
    assert before == signal.getsignal(signal.SIGALRM)


class OneStep:
    """Time for a single step."""

    def __init__(self) -> None:
        self.done = 0

    @contextmanager
    def limit(self) -> Iterator[None]:
        yield

    def step_done(self) -> None:
        self.done += 1
        raise OutOfTimeError


@pytest.mark.parametrize("detail", [False, True])
def test_steps_that_were_done_in_time_are_kept(detail: bool, tmp_path: Path) -> None:
    scenario = load(long(tmp_path, tokens=50))

    entry = run(scenario, Profile.parse("llama.cpp@b9538"), pace=OneStep(), detail=detail)

    assert ["same", None, None] == [step.answer for step in entry.steps]
    assert [None, "timeout", "timeout"] == [step.error for step in entry.steps]
    assert "Request B was not run: the time given was over." == entry.steps[1].finding.title
    assert ["B and 1 step after it: not run, the time given was over"] == list(entry.mismatches)
    assert re.findall(r"^[BC] +- ", plain_text(side_by_side([entry])), re.MULTILINE)
    if detail:
        whole = run(scenario, Profile.parse("llama.cpp@b9538"), detail=True)
        assert whole.steps[0].detail == entry.steps[0].detail
        assert [(), ()] == [step.detail.at for step in entry.steps[1:] if step.detail]


@pytest.mark.parametrize("done", [2, 9, 16, 23])
def test_a_run_that_is_interrupted_anywhere_still_tells_what_it_saw(
    done: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    left, append = iter(range(done)), GrowingArray.append

    def interrupted(*given: Any) -> None:
        if next(left, None) is None:
            monkeypatch.undo()
            raise OutOfTimeError
        append(*given)

    monkeypatch.setattr(GrowingArray, "append", interrupted)
    scenario = load(long(tmp_path, tokens=50, preset="hybrid"))

    entry = run(scenario, Profile.parse("llama.cpp@b9538"), detail=True, pace=OneStep())

    assert "timeout" == entry.steps[-1].error
    assert 0 < len(page([entry]))
    assert entry.detail is not None
    shown = [each for step in entry.steps if step.detail for each in step.detail.at]
    assert all(number < len(entry.detail.states) for number in shown)


def test_a_timeout_that_is_not_needed_changes_nothing(capsys: Capture) -> None:
    command = ["run", "llama.cpp-three-requests", "--arithmetic", "ring", "--format", "json"]

    assert output(capsys, command) == output(capsys, [*command, "--timeout", "100"])


def test_a_long_float_run_is_announced_with_a_quicker_way(tmp_path: Path, capsys: Capture) -> None:
    file = long(tmp_path)

    main(["run", file, "--timeout", "0.1"])
    announced = " ".join(capsys.readouterr().err.split())
    main(["run", file, "--timeout", "0.1", "--arithmetic", "ring"])

    assert "minutes: --arithmetic ring is much faster" in announced
    assert "" == capsys.readouterr().err


def test_a_long_reply_that_is_played_token_by_token_is_announced_in_ring_too(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "reply.toml"
    file.write_text(
        'format = 1\nname = "long"\nabout = "A reply that takes its time."\nclass = "limits"\n'
        '[model]\npreset = "dense"\n[engine]\nname = "mlx-lm"\nprofiles = ["0.32.2"]\n'
        f"[spans]\nS = 20\n[[step]]\nprompt = 'S'\nreply = {[300] * 65_535}\n"
    )

    main(["run", str(file), "--timeout", "0.1", "--arithmetic", "ring"])

    assert "in ring arithmetic this may take up to 3 minutes: --timeout" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("preset", ["dense", "hybrid", "recurrent", "swa"])
def test_longer_prompts_are_guessed_to_take_longer(preset: str, tmp_path: Path) -> None:
    guesses = [
        seconds_of(jobs_of([long(tmp_path, preset=preset, tokens=tokens)], (), None))
        for tokens in (1000, 10_000, 50_000)
    ]

    assert guesses[0] < 10
    assert 5 * guesses[0] < 5 * guesses[1] < guesses[2] * 2


def test_processes_share_scenarios_and_no_more_than_that(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    short = long(tmp_path / "one", tokens=20_000)
    jobs = jobs_of([short, long(tmp_path)], (), None)
    equal = [*jobs, *(replace(job, source="again") for job in jobs[2:])]
    alone = [seconds_of(jobs_of([file], (), None)) for file in (short, long(tmp_path))]

    assert sum(alone) == pytest.approx(seconds_of(jobs))
    assert (alone[0] + 2 * alone[1]) / 2 == pytest.approx(seconds_of(equal, 2))
    assert alone[1] == seconds_of(jobs, 2) == seconds_of(jobs, 8)


@pytest.mark.thorough
def test_a_single_long_scenario_shows_a_bar(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "cachesim", "run", long(tmp_path, tokens=3000)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=follower, cwd=ROOT,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    said = b""
    try:
        while chunk := os.read(leader, 4096):
            said += chunk
    except OSError:  # Linux: the other end is closed
        pass
    program.wait()
    os.close(leader)

    assert b"running" in said
    assert b" of 6 steps" in said
