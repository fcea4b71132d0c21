"""Short names for the types of pytest's own fixtures, and what a command prints."""

from collections.abc import Iterable
from typing import TypeAlias

import pytest

from cachesim.cli.main import main

Capture: TypeAlias = pytest.CaptureFixture[str]
Patch: TypeAlias = pytest.MonkeyPatch


def output(capsys: Capture, words: Iterable[str], status: int = 0) -> str:
    assert status == main([*words])
    return capsys.readouterr().out


def complaint(capsys: Capture, words: Iterable[str]) -> str:
    """Error messages of wrong usage."""
    assert 2 == main([*words])
    return capsys.readouterr().err
