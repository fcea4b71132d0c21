"""Conversation trees that were played on the real server of d2da6da05, request by request."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.lab.real.vectors.servers import mismatch, play

FILE = Path(__file__).parents[2] / "vectors" / "server-ik-d2da6da05.jsonl.gz"


def workloads() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload["id"])
def test_every_request_agrees_with_the_real_server(workload: dict[str, Any]) -> None:
    assert mismatch(workload) is None


def test_with_one_slot_no_order_of_arrival_is_needed() -> None:
    alone = [each for each in workloads() if each["options"]["parallel"] == 1]

    assert 125 == len(alone)
    assert [] == [each["id"] for each in alone if play(each, ()) is not None]
