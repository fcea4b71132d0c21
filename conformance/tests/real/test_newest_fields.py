"""The alarm for fields of a new release that no table knows, and for rows of fields that went."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from cachesim.engines.fields import fields_of
from cachesim.prove.llama_cpp import server as llama_cpp
from conformance.real.fields import declared_in, differing_fields, judge_fields, judge_wheel
from conformance.real.sglang import scheduler as sglang
from tests.fixtures import Capture, Patch

SOURCE = '''
class Config:
    """What a server is configured by."""

    size: int = 1
    names: ClassVar[dict] = {}
    _private: bool = False
    pages: "Annotated[int, 2]"

    def method(self, unrelated: int) -> None:
        inside: int = 1


def main():
    parser.add_argument("--host", "-H", dest="address")
    group.add_argument("-p", "--max-size", type=int)
    parser.add_argument("model")


class Generation:
    def __init__(self, **kwargs):
        self.first = kwargs.pop("first", None)
        self.second = kwargs.pop("second", None)
        self._hash = kwargs.pop("_hash", None)


class Llama:
    def __init__(self, path: str, *, n_ctx: int = 512, **kwargs):
        pass
'''


@pytest.fixture
def family(monkeypatch: Patch, tmp_path: Path) -> Family[Any, Any]:
    """An engine whose table knows two fields of a class."""
    (tmp_path / "config.py").write_text(SOURCE)
    module = ModuleType("fake_fields")
    rows = fields_of("Config", no_influence={"for no reason": "size pages"})
    vars(module).update(FIELDS=rows, SOURCES={"Config": "config.py:Config"})
    monkeypatch.setitem(sys.modules, "fake_fields", module)
    return replace(FAMILIES["vllm"], configuration="fake_fields")


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        ("Config", {"size", "pages"}),
        ("main", {"address", "max_size", "model"}),
        ("Llama.__init__", {"path", "n_ctx"}),
        ("Generation.__init__", {"first", "second"}),
        ("Other", set()),
    ],
)
def test_fields_are_read_from_the_source(owner: str, names: set[str], tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(SOURCE)
    assert names == declared_in(tmp_path / "config.py", owner)
    assert set() == declared_in(tmp_path / "none.py", owner)


def test_a_release_whose_fields_are_known_passes(
    family: Family[Any, Any], tmp_path: Path, capsys: Capture
) -> None:
    assert 0 == judge_fields(family, "9.9.9", tmp_path)
    assert "vllm 9.9.9: all 2 fields of its configuration are known" in capsys.readouterr().out


def test_a_planted_field_without_a_row_fails(
    family: Family[Any, Any], tmp_path: Path, capsys: Capture
) -> None:
    planted = SOURCE.replace("    size: int = 1\n", "    size: int = 1\n    planted: bool = True\n")
    (tmp_path / "config.py").write_text(planted)
    assert 1 == judge_fields(family, "9.9.9", tmp_path)
    assert "vllm 9.9.9: Config.planted has no row in fake_fields" in capsys.readouterr().out


def test_a_row_whose_field_is_gone_fails(
    family: Family[Any, Any], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "config.py").write_text(SOURCE.replace("    size: int = 1\n", ""))
    assert 1 == judge_fields(family, "9.9.9", tmp_path)
    said = "vllm 9.9.9: Config.size is gone; its row is in fake_fields"
    assert said in " ".join(capsys.readouterr().out.split())


# The releases themselves: every field has a row, and every row a field.


def of_llama_cpp() -> dict[str, frozenset[str]]:
    return llama_cpp.declared(FAMILIES["llama.cpp"].real()[-1], "")


def of_sglang() -> dict[str, frozenset[str]]:
    return sglang.declared(sglang.SCHEDULER.core_of(FAMILIES["sglang"].real()[-1]))


@pytest.mark.wheel
@pytest.mark.parametrize(("engine", "read"), [("llama.cpp", of_llama_cpp), ("sglang", of_sglang)])
def test_the_table_of_the_newest_release_is_complete(
    engine: str, read: Callable[[], dict[str, frozenset[str]]]
) -> None:
    declared = read()
    assert () == differing_fields(FAMILIES[engine], declared)
    planted = {owner: names | {"planted"} for owner, names in declared.items()}
    assert [f"{owner}.planted" for owner in planted] == [
        line.split()[0] for line in differing_fields(FAMILIES[engine], planted)
    ]


@pytest.mark.wheel
@pytest.mark.parametrize("engine", ["mlx-lm", "transformers"])
def test_the_table_of_the_newest_wheel_is_complete(engine: str) -> None:
    assert 0 == judge_wheel(FAMILIES[engine], FAMILIES[engine].real()[-1])


PLANTED = """
class SchedulerConfig:
    policy: str = "fcfs"
    forgets_everything: bool = False
"""


def test_a_planted_field_of_vllm_has_no_row(tmp_path: Path, capsys: Capture) -> None:
    family = FAMILIES["vllm"]
    file = tmp_path / "vllm" / "config" / "scheduler.py"
    file.parent.mkdir(parents=True)
    file.write_text(PLANTED)

    assert 1 == judge_fields(family, "0.34.0", tmp_path)
    out = capsys.readouterr().out
    assert "vllm 0.34.0: SchedulerConfig.forgets_everything has no row in" in out
    assert "SchedulerConfig.policy " not in out
    assert "SchedulerConfig.watermark is gone" in out
