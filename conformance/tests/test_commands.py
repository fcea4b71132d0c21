"""The command lines that `conformance.commands` runs in `make check`."""

import re
import sys
from pathlib import Path

from benchmarks.__main__ import MODULES
from conformance.commands import commands, run
from conformance.end_to_end.documented import examples


def test_every_kind_of_command_is_among_them() -> None:
    assert {"run", "list", "new", "learn", "check", "compare"} <= {words[0] for words in commands()}
    assert 9 <= len(list(examples()))


def test_what_does_not_run_is_noticed(tmp_path: Path) -> None:
    assert "exit 2" in run([sys.executable, "-m", "cachesim"], ["run", "nothing"], tmp_path)


def test_every_benchmark_can_be_named() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    tables = {name for name, text in texts.items() if re.search(r"def run\(\s*out", text)}

    assert tables == {*MODULES, "against"}  # which is given a commit, and is not among all
