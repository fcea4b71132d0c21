"""Scenarios in a browser's Python: whole numbers of 32 bits by default, and no timers."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachesim.play.runner import chosen, run
from cachesim.report.json_output import document
from cachesim.scenario.files import load
from cachesim.scenario.shipped import shipped_files

FEW: Sequence[Path] = shipped_files()[::20]


def played(file: Path) -> str:
    """The JSON of a scenario on the first profile that it names."""
    scenario = load(file)
    profile = chosen(scenario, scenario.engine.profiles[0])
    return document([run(scenario, profile, arithmetic="ring")])


def as_in_a_browser(patch: pytest.MonkeyPatch) -> None:
    """NumPy's default numbers are as wide as a pointer, which has 32 bits in WebAssembly."""
    wide = np.arange

    def arange(*bounds: Any, dtype: Any = None) -> Any:
        row = wide(*bounds, dtype=dtype)
        return row if dtype is not None or row.dtype.kind == "f" else row.astype(np.int32)

    patch.setattr(np, "arange", arange)
    patch.delattr(signal, "setitimer")
    patch.delattr(signal, "getitimer")


@pytest.mark.parametrize("file", FEW, ids=lambda file: file.stem)
def test_a_browser_plays_a_scenario_as_the_program_does(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = played(file)
    as_in_a_browser(monkeypatch)
    assert expected == played(file)
