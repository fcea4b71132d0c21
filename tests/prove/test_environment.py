"""Environments: where they lie, when they are ready, and what is said when they cannot be."""

import subprocess
import sys
from pathlib import Path

import pytest

from cachesim.errors import ProfileError
from cachesim.prove.environment import Environment, EnvironmentUnavailableError
from cachesim.prove.llama_cpp.server import as_release, environment_for
from cachesim.prove.worker_process import JsonProcess, WorkerError
from tests.fixtures import Patch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("CACHESIM_ENVIRONMENTS", str(tmp_path))
    return tmp_path


def furnish(environment: Environment, *packages: str) -> None:
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    for package in packages:
        (environment.folder / "lib/python3.12/site-packages" / package).mkdir(parents=True)


def test_environments_lie_where_the_variable_says(folder: Path) -> None:
    assert environment_for("b9538").folder == folder / "xllamacpp-2026.6.9538"


@pytest.mark.usefixtures("folder")
def test_a_build_of_a_version_is_that_version() -> None:
    wanted = Environment(name="built", requirements=("torch==2.13.0",))
    furnish(wanted, "torch-2.13.0+cpu.dist-info")

    assert wanted.is_ready()
    assert not Environment(name="built", requirements=("torch==2.13",)).is_ready()


@pytest.mark.usefixtures("folder")
def test_a_bound_is_met_by_what_was_installed_under_it() -> None:
    wanted = Environment(name="bound", requirements=("huggingface_hub<2",))
    furnish(wanted, "huggingface_hub-1.33.0.dist-info")

    assert wanted.is_ready()


def test_an_environment_is_ready_when_it_holds_exactly_what_is_required(folder: Path) -> None:
    wanted = Environment(name="e", requirements=("mlx-lm==0.31.3", "mlx[cpu]==0.32.4", "gguf"))

    assert folder.exists()
    assert not wanted.is_ready()
    furnish(wanted, "mlx_lm-0.31.3.dist-info", "mlx-0.32.4.dist-info", "gguf-0.1.dist-info")
    assert wanted.is_ready()
    assert wanted.ready() == wanted.python


def test_another_version_is_not_enough(folder: Path) -> None:
    wanted = Environment(name="e", requirements=("xllamacpp==2026.6.9538",))
    furnish(wanted, "xllamacpp-2026.5.9093.dist-info")

    assert folder.exists()
    assert not wanted.is_ready()


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: Patch) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    monkeypatch.setenv("CACHESIM_ENVIRONMENTS", str(occupied / "inside"))

    with pytest.raises(EnvironmentUnavailableError, match="cannot make"):
        Environment(name="e", requirements=("anything",)).ready()


def test_a_release_without_a_wheel_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ProfileError, match="the nearest is b"):
        as_release("b1")


@pytest.mark.usefixtures("folder")
def test_a_command_is_ended_after_the_patience_of_its_environment(monkeypatch: Patch) -> None:
    waited = []

    def run(command: list[str], *, timeout: float, **_: object) -> None:
        waited.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)

    with pytest.raises(EnvironmentUnavailableError, match="not done after 7 seconds"):
        Environment(name="e", requirements=("anything",), patience=7).ready()
    assert {7} == set(waited)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise KeyError('flag')", r"status 1 \(KeyError: 'flag'\)"),
        ("import os; os.abort()", r"status -6 \(no message\)"),
    ],
)
def test_the_end_of_a_worker_is_printed_with_its_exception(code: str, end: str) -> None:
    with (
        JsonProcess("an engine", [sys.executable, "-c", code]) as process,
        pytest.raises(WorkerError, match=f"an engine ended with {end}, in the middle of "),
    ):
        process.order({"steps": []})
