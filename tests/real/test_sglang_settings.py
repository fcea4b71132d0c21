"""The configuration that SGLang's scheduler is compared with: what of it is ours, and why."""

from typing import Any

import pytest

from cachesim.engines.sglang.family import FAMILY
from cachesim.lab.real.playing import show_overrides
from cachesim.lab.real.sglang.scheduler import (
    OVERRIDES,
    PRETENDED,
    SCHEDULER,
    configuration_of,
    overrides,
    overrides_in,
)
from cachesim.lab.real.vllm.scheduler import PACKAGES
from cachesim.lab.real.worker_side import differences
from tests.fixtures import Capture


class Answering:
    """A scheduler whose configuration differs in some fields."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def order(self, _: Any) -> dict[str, Any]:
        return {"results": [[field, "1", "2"] for field in self.fields]}


class Core:
    """A scheduler with its configuration."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def settings(self) -> dict[str, Any]:
        return self.config["server"] | {"page_size": 4, "quietly_set": True}


def test_every_field_that_is_not_as_a_server_starts_is_named() -> None:
    started = {"page_size": 1, "schedule_policy": "fcfs"}
    found = differences(started, Core({"server": started}).settings())

    assert [["page_size", "1", "4"], ["quietly_set", "-", "True"]] == found


def test_every_override_has_a_reason() -> None:
    assert all(OVERRIDES.values())
    assert all(all(row) for row in PRETENDED.values())


@pytest.mark.parametrize(("name", "status"), [("device", 0), ("quietly_set", 1)])
def test_a_setting_without_a_reason_is_a_failure(name: str, status: int, capsys: Capture) -> None:
    assert status == show_overrides("sglang: settings", overrides_in([{}], Answering(name)))
    assert f"{name}: 1 -> 2" in capsys.readouterr().out


@pytest.mark.wheel
@pytest.mark.parametrize("release", FAMILY.real())
def test_the_scheduler_is_started_as_a_server_starts_it(release: str) -> None:
    core = SCHEDULER.core_of(release)
    if not core.is_ready() or not configuration_of(core).is_ready() or not PACKAGES.is_ready():
        pytest.skip(f"sglang {release} is not unpacked here")

    assert [] == [each.field for each in overrides(release, 0, range(16)) if not each.why]
