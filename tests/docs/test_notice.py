"""NOTICE names what the ports follow: each engine, its releases, each server among the patches."""

import re
from pathlib import Path

import pytest

from cachesim.engines import FAMILIES

NOTICE = (Path(__file__).parents[2] / "NOTICE").read_text()
PROJECTS = {
    "omlx": "jundot/omlx",
    "vllm-mlx": "waybarrios/vllm-mlx",
    "rapid-mlx": "raullenchai/Rapid-MLX",
    "ollama": "ollama/ollama",
    "mlx-engine": "lmstudio-ai/mlx-engine",
}


def project_of(server: str) -> str:
    """The project that a patch with a whole server follows, by the start of its name."""
    [project] = {at for start, at in PROJECTS.items() if re.match(rf"{start}(-|$)", server)}
    return project


@pytest.mark.parametrize("name", FAMILIES)
def test_the_notice_names_each_engine_with_its_oldest_and_newest_release(name: str) -> None:
    family = FAMILIES[name]
    lines = (row for row in NOTICE.splitlines() if f"  {family.repository}  " in row)
    oldest, newest = family.releases[0].name, family.releases[-1].name

    line = next(row for row in lines if name == "marconi" or (oldest in row and newest in row))
    assert re.search(r"(MIT|Apache-2\.0|AGPL-3\.0|CC-BY-NC-4\.0)$", line)


@pytest.mark.parametrize(
    "server",
    [patch.name for patch in FAMILIES["mlx-lm"].patches if patch.server],
)
def test_the_notice_names_each_server_that_is_simulated_as_a_patch(server: str) -> None:
    assert project_of(server) in NOTICE
