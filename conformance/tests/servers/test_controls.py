"""Real servers: each planted defect is found, and the sound release breaks no law."""

from pathlib import Path
from typing import Any

import pytest

from cachesim.conform.command import examined
from cachesim.conform.laws import LAWS
from cachesim.probe.command import Settings
from conformance.servers import llama_cpp, mlx_lm

STARTERS = {"llama.cpp": (llama_cpp, "b11549"), "mlx-lm": (mlx_lm, "0.32.2")}

BROKEN = {
    ("llama.cpp", "dense"): set[str](),
    ("llama.cpp", "hybrid"): {"answer"},
    ("mlx-lm", "dense"): {"liveness"},
}
"""Laws that the sound release breaks: a checkpoint of b11549 stays although its last token is
another one, and after an empty prompt mlx_lm.server answers nobody.
"""


def violated(engine: str, model: str, folder: Path, planted: str = "", **how: Any) -> set[str]:
    """The laws that are broken, of those in `laws`."""
    start, release = STARTERS[engine]
    [server] = start(release, folder, [model], planted)
    laws = how.pop("laws", tuple(LAWS))
    column = examined(server, laws, Settings(start=server.start, **how), lambda _: None)
    assert any(verdict.requests for verdict in column.verdicts)
    return {verdict.law for verdict in column.verdicts if verdict.status == "violated"}


@pytest.mark.wheel
def test_a_real_llama_server_reports_the_counts_of_the_simulated_one(tmp_path: Path) -> None:
    laws = ("count", "isolation", "lost-reuse")

    assert set() == violated("llama.cpp", "dense", tmp_path, laws=laws, requests=400)


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "model"), BROKEN)
def test_a_sound_release_breaks_no_law_but_those_known(
    engine: str, model: str, tmp_path: Path
) -> None:
    assert BROKEN[engine, model] == violated(engine, model, tmp_path, minutes=5.0)


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "model", "planted"),
    [
        ("llama.cpp", "dense", "nothing is removed"),
        ("llama.cpp", "dense", "one cell stays"),
        ("mlx-lm", "dense", "one token stays"),
        ("mlx-lm", "dense", "the first token is not compared"),
    ],
)
def test_a_planted_defect_is_found(engine: str, model: str, planted: str, tmp_path: Path) -> None:
    laws = ("answer",) if engine == "mlx-lm" else ("answer", "liveness")

    assert violated(engine, model, tmp_path, planted, laws=laws, minutes=5.0)
