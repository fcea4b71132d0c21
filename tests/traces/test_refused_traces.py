"""What cannot be played or written is refused once, in plain words, before anything is played."""

import json
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.lab.traces.replay import Cell
from cachesim.lab.traces.source import Source
from cachesim.lab.traces.sweep import open_store, play_cells
from tests.traces.test_sweep import Here

Capture = pytest.CaptureFixture[str]
LINE = {"input_length": 512, "output_length": 1, "hash_ids": [1]}


def test_a_wrong_trace_is_named_once_whoever_plays_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("a,b\n")
    source = Source(name=str(path))
    cells = [Cell(source=source, profile=each, model="dense") for each in ("bound", "vllm@0.33.0")]

    with open_store(None) as store, pytest.raises(InputError) as refused:
        play_cells(cells, store, Here)

    assert f"{path}:1: not JSON: 'a,b'; write one object a line" == str(refused.value)


def test_one_request_is_told_in_the_singular(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(LINE) + "\n")

    assert 0 == main(["compare", str(path), "-p", "vllm@0.33.0", "--model", "dense"])
    assert "trace.jsonl: 1 request, scaled down 32:1" in capsys.readouterr().out


def test_a_trace_in_place_of_a_scenario_is_sent_to_the_command_for_it(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(2 * (json.dumps(LINE) + "\n"))

    assert 2 == main(["run", str(path)])
    assert "`cachesim compare` replays traces" in " ".join(capsys.readouterr().err.split())


def test_parquet_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachesim.cli.sweep.find_spec", lambda _: None)
    plan = tmp_path / "plan.toml"
    plan.write_text('format = 1\n[[trace]]\nmade = 3\n[[server]]\nprofile = "bound"\n')

    assert 2 == main(["sweep", str(plan), "--parquet", str(tmp_path / "table")])

    told = capsys.readouterr()
    assert "" == told.out
    assert "pip install 'cachesim[parquet]'" in told.err
    assert [plan] == list(tmp_path.iterdir())
