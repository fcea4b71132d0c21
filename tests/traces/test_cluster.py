"""A sweep on a Dask cluster finds what one process finds; a worker that dies loses nothing."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.jobs import NO_DASHBOARD, cluster
from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import row_of
from cachesim.traces.slices import States
from cachesim.traces.sweep import flat, open_store, play_cells, sweep
from tests.fixtures import Capture, Patch, output
from tests.traces.test_sweep import SMALL, alone

distributed = pytest.importorskip("distributed", reason="the extra cachesim[dask] is not installed")

pytestmark = pytest.mark.thorough


def test_a_cluster_finds_what_one_process_finds(tmp_path: Path) -> None:
    cells = plan_of(SMALL)

    with open_store(tmp_path / "far") as store:
        far = play_cells(cells, store, lambda: cluster("2"))

    assert alone(cells) == far


@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_worker_that_is_killed_takes_nothing_with_it(kept: bool, tmp_path: Path) -> None:
    server = {"profile": "vllm@0.33.0", "model": "dense", "replicas": 4, "parts": 2}
    of_parts = {**SMALL, "trace": [{"made": 3000, "scale": 32}], "server": [server]}
    plan = of_parts if kept else {**SMALL, "trace": [{"made": 400, "scale": 512}]}
    cells, states = plan_of(plan), States(folder=tmp_path, every=100)
    killed: list[int] = []

    def kill_one(client: Any) -> None:
        pids = client.run(os.getpid)
        for _ in range(2_000):
            time.sleep(0.01)
            busy = [worker for worker, cells in client.processing().items() if cells]
            if busy and (not kept or any(tmp_path.glob("*.state"))):
                killed.append(pids[busy[0]])
                os.kill(killed[0], signal.SIGKILL)
                return

    with (
        distributed.LocalCluster(2, threads_per_worker=1, **NO_DASHBOARD) as own,
        distributed.Client(own) as client,
        open_store(None) as store,
    ):
        killer = threading.Thread(target=kill_one, args=(client,))
        killer.start()
        found = play_cells(
            cells, store, lambda: cluster(own.scheduler_address), seams=states if kept else None
        )
        killer.join()

    assert len(killed) == 1
    assert sweep(plan) == [flat(row_of(*each)) for each in zip(cells, found, strict=True)]


def test_a_scheduler_that_is_not_there_is_wrong_usage(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cachesim.cli.jobs.ANSWERS_WITHIN", 0.2)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'format = 1\n[[trace]]\nmade = 3\n[[server]]\nprofile = "vllm@0.33.0"\nmodel = "dense"\n'
    )

    assert main(["sweep", str(plan), "--dask", "tcp://127.0.0.1:9"]) == 2


def test_a_number_of_workers_that_cannot_be_meant_is_wrong_usage() -> None:
    with pytest.raises(InputError, match="a number of workers from 1 to 256"), cluster("0"):
        pass


def test_the_command_takes_workers_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'format = 1\n[[trace]]\nmade = 9\n[[server]]\nprofile = "vllm@0.33.0"\nmodel = "dense"\n'
    )

    far = json.loads(output(capsys, ["sweep", str(plan), "--dask", "1", "--format", "json"]))
    assert main(["sweep", str(plan), "--store", str(tmp_path / "near"), "--format", "json"]) == 0

    assert far == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("more", [[], pytest.param(["--all"], marks=pytest.mark.nightly)])
def test_a_search_on_a_cluster_has_the_findings_of_one_process_in_their_order(
    more: list[str], capsys: Capture
) -> None:
    model = ["--model", "hybrid", "--seed", "1", "--examples", "40"]
    words = ["check", "vllm@0.33.0+no-29387", *model, *more]

    told = [
        re.sub(r",\s+[\d.,]+\s+workloads/s", "", output(capsys, [*words, *where], 1))
        for where in (["--jobs", "1"], ["--dask", "2"])
    ]

    assert told[0] == told[1]
    assert "WRONG ANSWER" in told[0]
