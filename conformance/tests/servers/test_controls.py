"""Real servers: each planted defect is found, and the sound release breaks no law."""

from pathlib import Path

import pytest

from cachesim.conform.command import Asked, Served, examined
from cachesim.conform.laws import LAWS
from cachesim.probe.command import Settings
from conformance.servers import llama_cpp, mlx_lm

STARTERS = {"llama.cpp": (llama_cpp, "b11549"), "mlx-lm": (mlx_lm, "0.32.2")}
FILLED = ("count", "isolation", "lost-reuse")
"""Laws that a short run judges on any machine."""

BROKEN = {"llama.cpp": set[str](), "mlx-lm": {"liveness"}}
"""Laws that the sound release breaks: after an empty prompt mlx_lm.server answers nobody."""

nightly = pytest.mark.nightly


def served(engine: str, model: str, folder: Path, planted: str = "") -> Served:
    start, release = STARTERS[engine]
    [found] = start(release, folder, [model], planted)
    return found


def statuses(server: Served, minutes: float) -> dict[str, str]:
    settings = Settings(start=server.start, minutes=minutes)
    column = examined(server, Asked().laws, settings, lambda _: None)
    return {verdict.law: verdict.status for verdict in column.verdicts}


def violated(found: dict[str, str]) -> set[str]:
    return {law for law, status in found.items() if status == "violated"}


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("engine", "model"),
    [
        ("llama.cpp", "dense"),
        pytest.param("llama.cpp", "swa", marks=nightly),
        pytest.param("llama.cpp", "recurrent", marks=nightly),
        pytest.param("mlx-lm", "dense", marks=nightly),
        pytest.param("mlx-lm", "hybrid", marks=nightly),
    ],
)
def test_a_sound_release_breaks_no_law_but_those_known(
    engine: str, model: str, tmp_path: Path
) -> None:
    found = statuses(served(engine, model, tmp_path), 4.0)

    assert [*LAWS] == [*found]
    assert BROKEN[engine] == violated(found)
    assert ["holds"] * len(FILLED) == [found[law] for law in FILLED]


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("engine", "model", "planted"),
    [
        ("llama.cpp", "dense", "nothing is removed"),
        pytest.param("llama.cpp", "dense", "one cell stays", marks=nightly),
        pytest.param("llama.cpp", "dense", "files come back short", marks=nightly),
        pytest.param("llama.cpp", "hybrid", "the first checkpoint is restored", marks=nightly),
        pytest.param("mlx-lm", "dense", "one token stays", marks=nightly),
        pytest.param("mlx-lm", "dense", "entries are shared", marks=nightly),
        pytest.param("mlx-lm", "dense", "the first token is not compared", marks=nightly),
        pytest.param("mlx-lm", "hybrid", "nothing is cut", marks=nightly),
    ],
)
def test_a_planted_defect_is_found(engine: str, model: str, planted: str, tmp_path: Path) -> None:
    found = statuses(served(engine, model, tmp_path, planted), 4.0)

    assert violated(found) > BROKEN[engine]
