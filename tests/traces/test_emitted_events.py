"""Simulated servers write KV events that are consistent, and lost ones show."""

import json
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.traces.audit import Audit
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.fleet.serving import record_events
from cachesim.traces.reading import lines_of, open_trace
from cachesim.traces.replay import Cell
from cachesim.traces.source import Source
from tests.fixtures import Capture, complaint, output

SMALL = {
    "vllm@0.33.0": ("num_gpu_blocks_override", 90),
    "sglang@0.5.23": ("max_total_tokens", 1400),
}


def events(path: Path, profile: str, model: str = "dense", fleet: Fleet | None = None) -> Path:
    cell = Cell(
        source=Source(name="made:120", scale=32),
        profile=profile,
        model=model,
        options=(SMALL[profile],),
        fleet=fleet,
    )
    record_events(cell, path)
    return path


@pytest.mark.parametrize("profile", SMALL)
def test_a_router_that_hears_everything_believes_what_is_true(profile: str, tmp_path: Path) -> None:
    path = events(tmp_path / "events.jsonl", profile)

    audit = Audit.of(lines_of(path, "events"))

    assert {} == audit.as_dict()["found"]
    assert 0 < audit.removed < audit.stored
    unit, pool = (16, 89) if "vllm" in profile else (1, 1400)
    assert audit.most <= pool
    assert unit == open_trace(path)[0]


def test_a_fleets_replicas_are_ranks_and_dynamos_router_still_hears(tmp_path: Path) -> None:
    fleet = Fleet.of(3, "dynamo")

    path = events(tmp_path / "events.jsonl", "vllm@0.33.0", "hybrid", fleet)

    ranks = {json.loads(line)["data_parallel_rank"] for line in path.read_text().splitlines()}
    assert {0, 1, 2} == ranks
    assert Audit.of(lines_of(path, "events")).consistent


def test_a_rank_is_the_replica_whose_events_it_has(tmp_path: Path) -> None:
    fleet = Fleet.of(3, "round-robin", ("drain:0@0", "drain:1@0"))

    path = events(tmp_path / "events.jsonl", "vllm@0.33.0", "dense", fleet)

    stored = [line for line in path.read_text().splitlines() if "BlockStored" in line]
    assert {2} == {json.loads(line)["data_parallel_rank"] for line in stored}


def test_removals_that_are_lost_are_found(tmp_path: Path) -> None:
    path = events(tmp_path / "events.jsonl", "vllm@0.33.0")
    lines = path.read_text().splitlines(keepends=True)

    path.write_text("".join(line for line in lines if "BlockRemoved" not in line))
    found = Audit.of(lines_of(path, "events")).as_dict()["found"]

    assert sum("BlockRemoved" in line for line in lines) == found["lost"]
    assert found["again"] > 0  # blocks that a router took for held, and that were computed again


def test_events_are_written_for_one_server_or_fleet(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "events.jsonl"
    asked = ("compare", "made:30", "--model", "dense", "--events", str(path), "-p", "vllm@0.33.0")

    assert 0 == main([*asked])
    assert "The stream is consistent" in " ".join(output(capsys, ["why", str(path)]).split())
    assert "the file exists" in complaint(capsys, [*asked])
    path.unlink()
    assert 2 == main([*asked, "-p", "vllm@0.30.0"])
    assert "the events of one server or fleet; name one profile" in capsys.readouterr().err
    assert 2 == main([*asked[:-1], "mlx-lm@0.32.2"])
    assert "needs KV events, which mlx-lm does not give here" in capsys.readouterr().err
    assert not path.exists()
