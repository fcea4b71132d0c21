"""The configuration that vLLM's scheduler is compared with: what of it is ours, and why."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import family_of
from cachesim.engines.vllm.family import FAMILY
from cachesim.lab.real.playing import Override, show_overrides
from cachesim.lab.real.vllm import scheduler
from cachesim.lab.real.vllm.scheduler import SCHEDULER, overrides
from cachesim.lab.real.vllm.worker_settings import OVERRIDES, PRETENDED, fields_of

RELEASES = [
    *(pytest.param(each, marks=pytest.mark.nightly) for each in FAMILY.real()[:-1:4]),
    FAMILY.real()[-1],
]


@dataclass
class Inner:
    """A part of a configuration."""

    block_size: int = 16
    shares: dict[str, float] = field(default_factory=lambda: {"a": 0.5})


@dataclass
class Outer:
    """A configuration."""

    cache_config: Inner = field(default_factory=Inner)
    instance_id: str = "drawn at every start"


class Answering:
    """A worker that knows one further difference."""

    def __init__(self, differences: list[list[str]]) -> None:
        self.differences = differences

    def order(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return {"results": [self.differences for _ in wanted["settings"]]}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_every_field_of_a_configuration_is_compared() -> None:
    found = dict(fields_of(Outer()))

    assert {"cache_config.block_size": "16", "cache_config.shares": "{'a': '0.5'}"} == found


def test_every_override_has_a_reason() -> None:
    assert all(OVERRIDES.values())
    assert all(all(row) for row in PRETENDED.values())


@pytest.mark.parametrize(
    ("name", "status"), [("cache_config.num_gpu_blocks", 0), ("cache_config.quietly_set", 1)]
)
def test_a_setting_that_is_changed_in_silence_fails(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Answering([[name, "None", "40"]])
    monkeypatch.setattr(scheduler, "SCHEDULER", type("Real", (), {"start": lambda *_: worker})())

    assert status == show_overrides("vllm 0.33.0", overrides("0.33.0", 0, range(1)))
    assert (status == 1) == ("NO REASON GIVEN" in capsys.readouterr().out)


def test_an_override_names_field_default_and_ours(capsys: pytest.CaptureFixture[str]) -> None:
    show_overrides("x", [Override(field="a.b", default="1", ours="2", why="counts nothing")])

    assert "a.b: 1 -> 2\n    counts nothing" in capsys.readouterr().out


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]])
def test_groups_that_the_engine_core_makes_otherwise_are_a_difference(release: str) -> None:
    if not SCHEDULER.core_of(release).is_ready() or not scheduler.PACKAGES.is_ready():
        pytest.skip(f"vllm {release} is not unpacked here")
    full = {"kind": "full", "block": 16}
    states = {"kind": "mamba", "block": 16, "mode": "align"}
    apart = {"groups": [states, full, states], "blocks": 100, "budget": 64}
    steps = [[{"prompt": "10-40", "generate": 1, "reply": "50"}]]

    with SCHEDULER.start(release) as real:
        together = real.play({"config": apart | {"groups": [states, states, full]}, "steps": steps})
        found = real.play({"config": apart, "steps": steps})

    assert "requests" in together[0]
    assert "the engine core's groups are [('mamba', 16" in found[0]["error"]


@pytest.mark.wheel
@pytest.mark.parametrize("release", RELEASES)
def test_the_scheduler_is_started_as_a_server_starts_it(release: str) -> None:
    if not SCHEDULER.core_of(release).is_ready() or not scheduler.PACKAGES.is_ready():
        pytest.skip(f"vllm {release} is not unpacked here")

    assert [] == [each.field for each in overrides(release, 0, range(13)) if not each.why]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_settings_of_the_newest_release_are_printed_where_none_is_named(
    engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = import_module(f"cachesim.lab.real.{engine}.commands")
    monkeypatch.setattr(commands, "overrides", lambda *_: [])

    assert 0 == main(["real", engine, "--settings"])
    assert f"{engine} {family_of(engine).real()[-1]}: " in capsys.readouterr().out
