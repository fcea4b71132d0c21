"""The artifact is not here; what is asked of it, and a stand-in that agrees or does not."""

from pathlib import Path

import pytest

from cachesim.errors import ScenarioError
from conformance.real.marconi.commands import draw, play, real_marconi
from tests.fixtures import Capture

TREE = """
from types import SimpleNamespace as N
class RadixCache:
    def __init__(self, **given):
        self.eff_weight, self.root_node = given["eff_weight"], N(children={})
    def match_prefix(self, prompt):
        return [], [], False, 0
    def insert(self, tokens, *_):
        self.root_node.children[tokens[0]] = N(key=tokens, children={})
"""


def artifact(folder: Path, tree: str = TREE) -> Path:
    (folder / "radix_cache_hybrid.py").write_text(tree)
    (folder / "config_tuner.py").write_text("")
    (folder / "utils.py").write_text("")
    return folder


def test_a_folder_without_the_artifact_is_refused_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"has no radix_cache_hybrid\.py: name a checkout"):
        real_marconi(artifact=tmp_path)


def test_a_tree_that_decides_otherwise_is_found(tmp_path: Path, capsys: Capture) -> None:
    assert 1 == real_marconi(artifact=artifact(tmp_path), workloads=2)
    assert "first difference, workload 0, step " in capsys.readouterr().out


def test_what_the_artifact_raises_ends_a_workload(tmp_path: Path) -> None:
    raising = TREE.replace("return [], [], False, 0", "raise IndexError")
    assert 0 == real_marconi(artifact=artifact(tmp_path, raising), workloads=2)


def test_the_same_seed_draws_the_same_workload() -> None:
    workload = draw(1, 2)
    assert workload == draw(1, 2)
    assert workload != draw(1, 3)
    assert len(workload["requests"]) == len(list(play(workload, 1000)))
