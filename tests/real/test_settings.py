"""Settings of the compared llama.cpp and mlx-lm servers: what of them is ours, and why."""

from typing import Any, Self

import pytest

from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.lab.real.llama_cpp import server as llama_cpp
from cachesim.lab.real.llama_cpp.flags import NO_FLAGS
from cachesim.lab.real.llama_cpp.server import environment_for
from cachesim.lab.real.llama_cpp.workloads import BARE, draw_setting
from cachesim.lab.real.llama_cpp_python import commands as python
from cachesim.lab.real.llama_cpp_python.compare import environment_for as binding_environment_for
from cachesim.lab.real.mlx_lm import server as mlx_lm
from cachesim.lab.real.mlx_lm.process import environment_for as mlx_environment_for
from cachesim.lab.real.playing import show_overrides


class Answering:
    """A server whose flags differ in one."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def order(self, _: Any) -> list[dict[str, str]]:
        return [{self.flag: "1"}, {self.flag: "2"}]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(("name", "status"), [("n_ctx", 0), ("quietly_set", 1)])
def test_a_parameter_that_differs_without_a_reason_is_a_failure(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"started": {name: "1"}, "used": {name: "2"}}
    monkeypatch.setattr(llama_cpp, "_configurations", lambda *_: told)
    monkeypatch.setattr(llama_cpp, "_of_simulator", lambda *_: [])

    assert status == show_overrides("llama.cpp: settings", llama_cpp.overrides("b11549"))
    assert f"{name}: 1 -> 2" in capsys.readouterr().out


def test_a_default_of_the_simulator_that_differs_is_named() -> None:
    found = llama_cpp._of_simulator("b11549", {"n_parallel": "1", "n_batch": "4096"})

    assert [("simulator: batch_size", "4096", "2048")] == found


@pytest.mark.parametrize(("name", "status"), [("port", 0), ("quietly_set", 1)])
def test_a_flag_that_differs_without_a_reason_is_a_failure(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlx_lm, "RealProcess", lambda *_, **__: Answering(name))

    assert status == show_overrides("mlx-lm: settings", mlx_lm.overrides("0.32.2"))
    assert f"{name}: 1 -> 2" in capsys.readouterr().out


def test_every_override_has_a_reason() -> None:
    assert all((*llama_cpp.OVERRIDES.values(), *mlx_lm.OVERRIDES.values()))
    assert all(all(row) for row in mlx_lm.PRETENDED.values())


def test_some_servers_are_started_with_their_model_alone() -> None:
    settings = [draw_setting(0, n, release="b11549", everything=True) for n in range(2 * BARE)]

    bare = [each for each in settings if each.bare]

    assert 2 == len(bare)
    assert all(NO_FLAGS == each.workload().engine.options for each in bare)


@pytest.mark.wheel
@pytest.mark.parametrize("release", LLAMA_CPP.real())
def test_llama_server_is_started_as_from_a_command_line(release: str) -> None:
    if not environment_for(release).is_ready():
        pytest.skip(f"llama.cpp {release} is not installed here")

    assert [] == [each.field for each in llama_cpp.overrides(release) if not each.why]


@pytest.mark.sampled(4)
@pytest.mark.wheel
@pytest.mark.parametrize("release", MLX_LM.real())
def test_mlx_lm_server_is_started_as_from_a_command_line(release: str) -> None:
    if not mlx_environment_for(release).is_ready():
        pytest.skip(f"mlx-lm {release} is not installed here")

    assert [] == [each.field for each in mlx_lm.overrides(release) if not each.why]


class Instances(Answering):
    """A package whose arguments differ in one."""

    def settings(self) -> list[dict[str, str]]:
        return self.order(None)


@pytest.mark.parametrize(("name", "status"), [("n_threads", 0), ("quietly_set", 1)])
def test_an_argument_that_differs_without_a_reason_is_a_failure(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(python, "RealInstances", lambda _: Instances(name))

    assert status == show_overrides("llama-cpp-python: settings", python.overrides("0.3.36"))
    assert f"{name}: 1 -> 2" in capsys.readouterr().out


@pytest.mark.wheel
@pytest.mark.skipif(not binding_environment_for("0.3.36").is_ready(), reason="not built here")
def test_each_argument_of_the_real_package_that_differs_has_a_reason() -> None:
    assert 0 == show_overrides("llama-cpp-python 0.3.36", python.overrides("0.3.36"))
