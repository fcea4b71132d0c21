"""The command lines that `tests.commands` runs in `make check`."""

import sys
from pathlib import Path

from benchmarks.__main__ import MODULES
from tests.commands import commands, run
from tests.end_to_end.documented import examples


def test_every_kind_of_command_is_among_them() -> None:
    assert {"run", "list", "new", "learn", "check", "compare"} <= {words[0] for words in commands()}
    assert 9 <= len(list(examples()))


def test_what_does_not_run_is_noticed(tmp_path: Path) -> None:
    assert "exit 2" in run([sys.executable, "-m", "cachesim"], ["run", "nothing"], tmp_path)


def test_every_benchmark_can_be_named() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    tables = {path.stem for path in folder.glob("*.py") if "def run(out" in path.read_text()}

    assert tables == set(MODULES)
