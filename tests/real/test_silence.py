"""A real server that does not answer is told by its process: gone, turning for ever, or waiting."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from cachesim.lab.real.llama_cpp import server as room
from cachesim.lab.real.llama_cpp.server import Worker


@pytest.fixture(name="worker")
def _worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Worker]]:
    """Start a process that does as it is told in place of a server, and end it afterwards."""
    monkeypatch.setattr(room, "SECONDS_WATCHED", 0)
    started: list[Worker] = []

    def start(script: str) -> Worker:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
        started.append(Worker(python, None, patience=0.2))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_process_that_ended_has_crashed(worker: Callable[[str], Worker]) -> None:
    assert "crash" == worker("exit 134").order({})


def test_a_process_that_neither_works_nor_answers_is_silent(
    worker: Callable[[str], Worker],
) -> None:
    assert "silent" == worker("exec sleep 60").order({})


def test_a_process_that_goes_on_computing_is_endless(
    worker: Callable[[str], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    monkeypatch.setattr(Worker, "_seconds_computed", lambda _: float(next(seconds)))

    assert "endless" == worker("exec sleep 60").order({})


def test_the_processor_time_is_read_in_every_form(
    worker: Callable[[str], Worker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = worker("exec sleep 60")
    monkeypatch.setattr(room.Path, "is_file", lambda _: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = tmp_path / "ps"
    for text, seconds in (("00:07", 7), ("01:02:03", 3723), ("1-00:00:02.5", 86402.5), ("", 0)):
        said.write_text(f"#!/bin/sh\necho '  {text}'\n", encoding="utf-8")
        said.chmod(0o755)
        assert seconds == silent._seconds_computed()
