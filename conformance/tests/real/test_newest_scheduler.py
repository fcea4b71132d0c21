"""The alarm for vLLM and SGLang: what is said of the newest version."""

from collections.abc import Callable
from typing import Any

import pytest

from cachesim.engines import FAMILIES
from cachesim.prove.playing import Difference
from cachesim.prove.worker_process import WorkerError
from conformance.real import schedules
from conformance.real.agreement import Agreement
from conformance.real.fit import Played
from conformance.real.schedules import RealScheduler
from conformance.real.sglang.commands import real_sglang
from conformance.real.vllm.commands import real_vllm
from tests.fixtures import Capture, Patch

LOOKED_UP = ("9.9.9", "9.9.8")
COMMANDS = {"vllm": real_vllm, "sglang": real_sglang}


@pytest.fixture
def asked(monkeypatch: Patch) -> list[tuple[str, str]]:
    """The releases and versions that were compared; 9.9.1 does something new, 9.9.2 ends."""
    found: list[tuple[str, str]] = []

    def compare(
        real: RealScheduler[Any],
        release: str,
        _seed: int,
        numbers: range,
        *,
        version: str,
        record: Callable[[Played[Any]], None],
    ) -> Agreement:
        found.append((release, version))
        if version == "9.9.2":
            raise WorkerError(f"{real.family.name} {release} ended in the middle of a workload")
        agreement = Agreement()
        for number in numbers:
            same = version != "9.9.1" or number < 1
            schedules.count(
                agreement, {"id": f"full-{number}"}, [{"free": 1}], [{"free": 2 - same}]
            )
            new = None if same else Difference(step=0, simulated=0)
            record(Played(kind="full", requests=1, size=1, check=lambda _, new=new: new))
        return agreement

    monkeypatch.setattr(RealScheduler, "compare", compare)
    monkeypatch.setattr(schedules, "versions_of", lambda _: LOOKED_UP)
    monkeypatch.setattr(RealScheduler, "judge_fields", lambda *_: 0)
    return found


@pytest.mark.parametrize("engine", COMMANDS)
def test_the_newest_version_is_looked_up(
    engine: str, asked: list[tuple[str, str]], capsys: Capture
) -> None:
    known = FAMILIES[engine].real()[-1]

    assert 0 == COMMANDS[engine](newest=True, workloads=2)
    assert [(known, "9.9.9")] == asked
    assert f"{engine} 9.9.9 is as {known}" in capsys.readouterr().out


@pytest.mark.parametrize("engine", COMMANDS)
@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("9.9.1", "first difference, workload full-1"),
        ("9.9.1", "no rule field, and no pair of them, explains it: 1 of 2 workloads agree"),
        ("9.9.2", "ended in"),
    ],
)
def test_it_rings_where_something_is_new(
    engine: str, version: str, why: str, asked: list[tuple[str, str]], capsys: Capture
) -> None:
    known = FAMILIES[engine].real()[-1]

    assert 1 == COMMANDS[engine](wheel=version, workloads=2)

    said = capsys.readouterr().out
    assert [(known, version)] == asked
    assert f"{engine} {version} is NOT as {known}" in said
    assert why in said
