"""`run --watch`: memory after each event, forwards and back."""

import io
from collections.abc import Callable

import pytest

from cachesim.cli.main import main
from tests.fixtures import Capture, Patch, output

Watch = Callable[..., str]
COMMAND = ["run", "llama.cpp-three-requests", "--watch", "-p", "b9538", "--arithmetic", "ring"]


class Terminal(io.StringIO):
    """Standard input with typed keys."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def watched(capsys: Capture, monkeypatch: Patch) -> Watch:
    def watch(*typed: str) -> str:
        monkeypatch.setattr("sys.stdin", Terminal("".join(f"{each}\n" for each in typed)))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert main(COMMAND) in {0, 1}
        return capsys.readouterr().out

    return watch


def test_memory_is_drawn_where_an_event_changes_it(capsys: Capture) -> None:
    out = output(capsys, COMMAND)
    saved = out[
        out.index("+ checkpoint 1[0..0] is saved") : out.index("the network processes 4 tokens")
    ]

    assert "written by A, B, C" in out
    assert "checkpoint 1[0..0], made by A\n        A\n" in saved
    assert "attention" not in saved  # which did not change
    assert "gone: attention" in out
    assert "recurrent state at 0 (restored from" not in out
    assert "      ^" in out  # the state of A, under the prompt of C


def test_b_steps_back_and_shows_the_whole_memory(watched: Watch) -> None:
    out = watched("", "", "b", "q")

    assert 2 == out.count("slot 0's prompt is swapped with the prompt cache")
    assert 1 == out.count("the prompt cache is searched")
    assert "2. B" not in out


def test_b_at_the_beginning_stays_there(watched: Watch) -> None:
    assert 2 == watched("b", "q").count("slot 0 is chosen")


def test_b_reaches_the_step_before(watched: Watch) -> None:
    out = watched("s", "b", "q")

    assert 2 == out.count("1. A")
    assert "slot 0 is released with 8 tokens" in out[out.index("2. B") :]


def test_s_goes_to_the_end_of_a_step_and_the_end_of_input_ends_it(watched: Watch) -> None:
    out = watched("s", "s")

    assert "slot 0 is released" not in out
    assert ["1. A", "2. B", "3. C"] == [each for each in ("1. A", "2. B", "3. C") if each in out]
