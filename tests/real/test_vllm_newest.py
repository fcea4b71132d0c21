"""The alarm for vLLM: what is said of the newest version."""

import pytest

from cachesim.real.agreement import Agreement
from cachesim.real.vllm import commands
from cachesim.real.vllm.commands import real_vllm
from cachesim.real.worker_process import WorkerError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The releases and versions that were compared; two agree, and 0.34.0 does something new."""
    found: list[tuple[str, str]] = []

    def compare(release: str, _seed: int, numbers: range, *, version: str = "") -> Agreement:
        found.append((release, version))
        if version == "0.35.0":
            msg = "vllm 0.33.0 ended in the middle of a workload"
            raise WorkerError(msg)
        agreement = Agreement("vllm", release)
        for number in numbers:
            same = version != "0.34.0" or number < 1
            agreement.count({"id": f"full-{number}"}, [{"free": 1}], [{"free": 2 - same}])
        return agreement

    monkeypatch.setattr(commands, "compare", compare)
    monkeypatch.setattr(commands, "versions_of", lambda _: ("0.33.0", "0.32.0"))
    return found


def test_the_newest_version_is_looked_up(
    asked: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == real_vllm(newest=True, workloads=2)

    assert [("0.33.0", "0.33.0")] == asked
    assert "vllm 0.33.0 is as 0.33.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "why"), [("0.34.0", "first difference, workload full-1"), ("0.35.0", "ended in")]
)
def test_it_rings_where_something_is_new(
    version: str, why: str, asked: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == real_vllm(wheel=version, workloads=2)

    said = capsys.readouterr().out
    assert [("0.33.0", version)] == asked
    assert f"vllm {version} is NOT as 0.33.0" in said
    assert why in said
