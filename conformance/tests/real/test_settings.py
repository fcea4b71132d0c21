"""Settings of the servers that simulated ones are compared with: what of them is ours, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Self

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import family_of
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.prove.llama_cpp import server as llama_cpp
from cachesim.prove.llama_cpp.flags import NO_FLAGS
from cachesim.prove.llama_cpp.server import environment_for
from cachesim.prove.llama_cpp_python.scenarios import environment_for as binding_environment_for
from cachesim.prove.mlx_lm.process import environment_for as mlx_environment_for
from cachesim.prove.playing import Override
from cachesim.prove.vllm.files import PACKAGES as VLLM_PACKAGES
from cachesim.prove.worker_side import differences
from cachesim.scenario.format import Model
from cachesim.scenario.shipped import load_all
from conformance.real.agreement import show_overrides
from conformance.real.llama_cpp.workloads import BARE, draw_setting
from conformance.real.llama_cpp_python import commands as python
from conformance.real.mlx_lm import compare as mlx_lm
from conformance.real.sglang import scheduler as sglang
from conformance.real.vllm import scheduler as vllm
from conformance.real.vllm import worker_settings
from tests.fixtures import Capture, Patch

RELEASES_OF_VLLM = [
    *(pytest.param(each, marks=pytest.mark.nightly) for each in VLLM.real()[:-1:4]),
    VLLM.real()[-1],
]
RELEASES_OF_SGLANG = [
    *(pytest.param(each, marks=pytest.mark.nightly) for each in SGLANG.real()[:-1]),
    SGLANG.real()[-1],
]


class Answering:
    """A server that answers so."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def order(self, _: Any) -> Any:
        return self.answer

    def settings(self) -> Any:
        return self.answer

    def start(self, _: str) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def of_llama_cpp(name: str, patch: Patch) -> list[Override]:
    told = {"started": {name: "1"}, "used": {name: "2"}}
    patch.setattr(llama_cpp, "_configurations", lambda *_: told)
    patch.setattr(llama_cpp, "_of_simulator", lambda *_: [])
    return llama_cpp.overrides("b11549")


def of_mlx_lm(name: str, patch: Patch) -> list[Override]:
    patch.setattr(mlx_lm, "RealProcess", lambda *_, **__: Answering([{name: "1"}, {name: "2"}]))
    return mlx_lm.overrides("0.32.2")


def of_llama_cpp_python(name: str, patch: Patch) -> list[Override]:
    patch.setattr(python, "RealInstances", lambda _: Answering([{name: "1"}, {name: "2"}]))
    return python.overrides("0.3.36")


def of_sglang(name: str, _: Patch) -> list[Override]:
    return sglang.overrides_in([{}], Answering({"results": [[name, "1", "2"]]}))


def of_vllm(name: str, patch: Patch) -> list[Override]:
    patch.setattr(vllm, "SCHEDULER", Answering({"results": [[[name, "1", "2"]]]}))
    return vllm.overrides("0.33.0", 0, range(1))


@pytest.mark.parametrize(
    ("overrides", "name", "status"),
    [
        (of_llama_cpp, "n_ctx", 0),
        (of_llama_cpp, "quietly_set", 1),
        (of_mlx_lm, "port", 0),
        (of_mlx_lm, "quietly_set", 1),
        (of_llama_cpp_python, "n_threads", 0),
        (of_llama_cpp_python, "quietly_set", 1),
        (of_sglang, "device", 0),
        (of_sglang, "quietly_set", 1),
        (of_vllm, "cache_config.num_gpu_blocks", 0),
        (of_vllm, "cache_config.quietly_set", 1),
    ],
)
def test_a_setting_that_differs_without_a_reason_is_a_failure(
    overrides: Callable[[str, Patch], list[Override]],
    name: str,
    status: int,
    monkeypatch: Patch,
    capsys: Capture,
) -> None:
    assert status == show_overrides("settings", overrides(name, monkeypatch))

    printed = capsys.readouterr().out
    assert f"{name}: 1 -> 2" in printed
    assert (status == 1) == ("NO REASON GIVEN" in printed)


def test_every_override_has_a_reason() -> None:
    for engine in (llama_cpp, mlx_lm, sglang, worker_settings):
        assert all(engine.OVERRIDES.values())
    for engine in (mlx_lm, sglang, worker_settings):
        assert all(all(row) for row in engine.PRETENDED.values())


def test_an_override_names_field_default_and_ours(capsys: Capture) -> None:
    show_overrides("x", [Override(field="a.b", default="1", ours="2", why="counts nothing")])

    assert "a.b: 1 -> 2\n    counts nothing" in capsys.readouterr().out


def test_a_default_of_the_simulator_that_differs_is_named() -> None:
    found = llama_cpp._of_simulator("b11549", {"n_parallel": "1", "n_batch": "4096"})

    assert [("simulator: batch_size", "4096", "2048")] == found


def test_every_field_that_is_not_as_a_server_starts_is_named() -> None:
    started = {"page_size": 1, "schedule_policy": "fcfs"}

    found = differences(started, started | {"page_size": 4, "quietly_set": True})

    assert [["page_size", "1", "4"], ["quietly_set", "-", "True"]] == found


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


def test_every_field_of_a_configuration_is_compared() -> None:
    assert {"cache_config.block_size": "16", "cache_config.shares": "{'a': '0.5'}"} == dict(
        worker_settings.fields_of(Outer())
    )


def test_some_servers_are_started_with_their_model_alone() -> None:
    settings = [draw_setting(0, n, release="b11549", everything=True) for n in range(2 * BARE)]

    bare = [setting for setting in settings if setting.bare]

    assert 2 == len(bare)
    assert all(NO_FLAGS == each.workload().engine.options for each in bare)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_settings_of_the_newest_release_are_printed_where_none_is_named(
    engine: str, monkeypatch: Patch, capsys: Capture
) -> None:
    commands = import_module(f"conformance.real.{engine}.commands")
    monkeypatch.setattr(commands, "overrides", lambda *_: [])

    assert 0 == main(["real", engine, "--settings"])
    assert f"{engine} {family_of(engine).real()[-1]}: " in capsys.readouterr().out


def without_a_reason(found: list[Override]) -> list[str]:
    return [each.field for each in found if not each.why]


@pytest.mark.wheel
@pytest.mark.parametrize("release", LLAMA_CPP.real())
def test_llama_server_is_started_as_from_a_command_line(release: str) -> None:
    environment_for(release).ready()

    assert [] == without_a_reason(llama_cpp.overrides(release))


@pytest.mark.sampled(len(MLX_LM.real()))
@pytest.mark.wheel
@pytest.mark.parametrize("release", MLX_LM.real())
def test_mlx_lm_server_is_started_as_from_a_command_line(release: str) -> None:
    mlx_environment_for(release).ready()

    assert [] == without_a_reason(mlx_lm.overrides(release))


@pytest.mark.wheel
@pytest.mark.skipif(not binding_environment_for("0.3.36").is_ready(), reason="not built here")
def test_each_argument_of_the_real_package_that_differs_has_a_reason() -> None:
    assert 0 == show_overrides("llama-cpp-python 0.3.36", python.overrides("0.3.36"))


@pytest.mark.wheel
@pytest.mark.parametrize("release", RELEASES_OF_SGLANG)
def test_the_scheduler_of_sglang_is_started_as_a_server_starts_it(release: str) -> None:
    core = sglang.SCHEDULER.core_of(release)
    if not all(each.is_ready() for each in (core, sglang.configuration_of(core), VLLM_PACKAGES)):
        pytest.skip(f"sglang {release} is not unpacked here")

    assert [] == without_a_reason(sglang.overrides(release, 0, range(16)))


def skip_without_vllm(release: str) -> None:
    if not vllm.SCHEDULER.core_of(release).is_ready() or not VLLM_PACKAGES.is_ready():
        pytest.skip(f"vllm {release} is not unpacked here")


@pytest.mark.wheel
@pytest.mark.parametrize("release", RELEASES_OF_VLLM)
def test_the_scheduler_of_vllm_is_started_as_a_server_starts_it(release: str) -> None:
    skip_without_vllm(release)

    assert [] == without_a_reason(vllm.overrides(release, 0, range(13)))


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("model", "method"),
    [("hybrid", "eagle"), pytest.param("swa", "mtp", marks=pytest.mark.nightly)],
)
def test_the_scheduler_of_vllm_has_the_drafter_that_a_scenario_names(
    model: str, method: str
) -> None:
    """0.31 marks the group of an MTP head, and all groups for EAGLE."""
    skip_without_vllm("0.31.0")
    [(_, scenario)] = load_all(["vllm-53945-eagle-resumes-elsewhere"])
    options = {"block_size": 16, "drafter_block_size": 8, "speculative_method": method}
    engine = replace(scenario.engine, options=options)
    drafted = replace(scenario, model=Model(preset=model), engine=engine)

    assert all(each.agrees for each in vllm.SCHEDULER.play_scenario(drafted, "0.31.0"))


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize("release", [RELEASES_OF_VLLM[0], RELEASES_OF_VLLM[-1]])
def test_groups_that_the_engine_core_makes_otherwise_are_a_difference(release: str) -> None:
    skip_without_vllm(release)
    full = {"kind": "full", "block": 16}
    states = {"kind": "mamba", "block": 16, "mode": "align"}
    apart = {"groups": [states, full, states], "blocks": 100, "budget": 64}
    steps = [[{"prompt": "10-40", "generate": 1, "reply": "50"}]]

    with vllm.SCHEDULER.start(release) as real:
        together = real.play({"config": apart | {"groups": [states, states, full]}, "steps": steps})
        found = real.play({"config": apart, "steps": steps})

    assert "requests" in together[0]
    assert "the engine core's groups are [('mamba', 16" in found[0]["error"]
