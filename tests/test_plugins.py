"""Engines of other packages: found where installed, named where broken, gone where uninstalled."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli import main as program
from cachesim.cli.new import engine_package, write_package
from cachesim.engines import FAMILIES
from cachesim.engines.family import Families, Family, Profile
from cachesim.engines.plugins import discover
from cachesim.errors import InputError, ProfileError
from cachesim.testing import engine_contract
from cachesim.testing.laws import BrokenLawError
from cachesim.testing.search import search
from cachesim.typed import there_is

ROOT = Path(__file__).parents[1]

STORY = """
format = 1
name = "story"
model = {preset = "hybrid"}
engine = {name = "acme-cache", profiles = ["1.0"]}
spans = {S = 40, a = 5, b = 5}
[[step]]
prompt = "S a"
[[step]]
prompt = "S b"
[[expect]]
profile = "1.0"
cached = [0, 32]
answer = ["same", "same"]
"""

PLAN = """
format = 1
[[trace]]
made = 20
[[server]]
profile = "bound"
[[server]]
profile = "acme-cache@1.0"
model = "dense"
"""


def installed(folder: Path, module: str, text: str, name: str = "broken") -> None:
    """Files of an installed package: its module and its entry point."""
    (folder / f"{module}.py").write_text(text)
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[cachesim.engines]\n{name} = {module}:FAMILY\n")


@pytest.mark.parametrize(
    ("module", "text", "why"),
    [
        ("raises", "1 / 0", "ZeroDivisionError"),
        ("lacks", "import no_such_package", "no_such_package"),
        ("empty", "", "no attribute 'FAMILY'"),
        ("other", "FAMILY = 3", "it is a int, not a"),
        ("named", "from tests.fake.family import FAKE as FAMILY", "is called 'fake'"),
        ("leaves", "raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_broken_engine_is_named_and_left_out(
    module: str, text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, module, text)
    monkeypatch.syspath_prepend(str(tmp_path))
    families = Families()

    broken = discover(families)

    assert ["broken"] == [*broken]
    assert why in broken["broken"]
    assert "broken" not in families


@pytest.mark.thorough
def test_a_program_with_a_broken_engine_goes_on(tmp_path: Path) -> None:
    installed(tmp_path, "raises", "1 / 0")
    command = [sys.executable, "-m", "cachesim", "list", "engines"]
    told = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == told.returncode
    assert "llama.cpp" in told.stdout
    assert "engine broken of another package is left out: raises:FAMILY: Zero" in told.stderr
    assert "Traceback" not in told.stderr


def test_help_looks_for_no_engines() -> None:
    asked = "import sys; from cachesim.cli.main import main; main(['--help']);"
    told = "print('\\n', 'cachesim.engines.plugins' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", asked + told], capture_output=True, text=True, check=True
    )

    assert out.stdout.endswith("False\n")


@pytest.fixture(name="package")
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The written package, importable here, under a name of its own."""
    write_package("tried-engine", tmp_path / "tried")
    monkeypatch.syspath_prepend(str(tmp_path / "tried"))
    yield tmp_path / "tried"
    for name in [name for name in sys.modules if name.startswith("tried_engine")]:
        del sys.modules[name]


def test_the_written_engine_keeps_the_contract(package: Path) -> None:
    report = engine_contract(import_module("tried_engine.family").FAMILY, workloads=2)

    assert package.name == "tried"
    assert ["answers", "causes", "counts", "determinism"] == report.planted
    assert 0 == report.wrong


@pytest.mark.parametrize(
    ("right", "wrong", "law"),
    [
        ("states[at] = deepcopy(memory)", "states[at] = memory", "answers"),
        ("job.rows.append(row)", "job.rows += [row, row]", "answers"),
        ("Ledger(Count(equal), ", "Ledger(Count(equal + 1), ", "causes"),
        (
            "ledger.apply(vocabulary.WHOLE",
            "ledger.usable = Count(most // block * block) #",
            "causes",
        ),
        ("cached=job.cached)", "cached=id(job))", "determinism"),
        ("cached=job.cached)", "cached={1})", "events"),
    ],
)
def test_the_contract_finds_a_bug_of_an_engine(
    package: Path, right: str, wrong: str, law: str
) -> None:
    [file] = [path for path in package.glob("*/*.py") if right in path.read_text()]
    file.write_text(file.read_text().replace(right, wrong))
    family = import_module("tried_engine.family").FAMILY

    with pytest.raises(BrokenLawError) as found:
        engine_contract(family, workloads=2)
    assert law == found.value.law


FAITHFUL = {"ik_llama.cpp", "mlx-lm"}
"""Ports whose newest release answers some of these requests wrongly, or dies of them."""


SHORT = {"omlx": 2048, "vllm-mlx": 128}
"""Tokens below which an engine reuses no prefix: the contract's prompts are shorter."""


def keeps_the_contract(engine: str, release: str, *, right: bool) -> None:
    options = {"page_size": 16} if engine == "transformers" else {}  # blocks of 256 by default
    report = engine_contract(
        FAMILIES[engine], releases=[release], workloads=2, right=right, options=options
    )

    assert {"causes", "counts", "determinism"} <= {*report.planted}
    assert 0 < report.reused
    assert 0 < report.losses


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", [family for family in FAMILIES if family not in SHORT])
def test_every_engine_keeps_the_contract(engine: str) -> None:
    keeps_the_contract(engine, FAMILIES[engine].names()[-1], right=engine not in FAITHFUL)


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "release"),
    [
        (engine, name)
        for engine, known in FAMILIES.items()
        for name in known.names()[:-1]
        if engine not in SHORT
    ],
)
def test_older_releases_keep_the_contract(engine: str, release: str) -> None:
    """Their known wrong answers are those of the real servers, so answers are counted only."""
    keeps_the_contract(engine, release, right=False)


@pytest.mark.parametrize("name", ["vllm", "Bad", "a_b", "-", "x" * 0])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--engine"):
        engine_package(name)


def test_the_written_package_has_at_most_200_lines() -> None:
    assert 200 >= sum(text.count("\n") for text in engine_package("acme-cache").values())


def test_an_engine_whose_code_cannot_be_loaded_is_named(package: Path) -> None:
    (package / "tried_engine" / "server.py").write_text("1 / 0")
    family = import_module("tried_engine.family").FAMILY
    with pytest.raises(ProfileError, match=r"tried_engine\.server:Server cannot be loaded: Zero"):
        engine_contract(family)


def from_a_worker(file: Path) -> Exception:
    """An error as a pool of processes passes it on: the traceback is the text of its cause."""
    error = KeyError(32)
    error.__cause__ = Exception(
        f'\n"""\nTraceback (most recent call last):\n  File "{program.__file__}", line 1, in run\n'
        f'  File "{file}", line 7, in _serve\n    return states[at]\nKeyError: 32\n"""'
    )
    return error


@contextmanager
def planted(package: Path, error: str) -> Iterator[Family[Any, Any]]:
    """The written engine, known to all commands, with an expression that raises."""
    server = package / "tried_engine" / "server.py"
    server.write_text(server.read_text().replace("at, states = ", f"{error}; at, states = "))
    family: Family[Any, Any] = import_module("tried_engine.family").FAMILY
    FAMILIES[family.name] = family
    try:
        yield family
    finally:
        del FAMILIES[family.name]


def test_an_error_of_an_engine_is_not_called_a_bug_of_cachesim(package: Path) -> None:
    with planted(package, "1 / 0") as family:
        with pytest.raises(ZeroDivisionError) as raised:
            engine_contract(family)
        assert "bug in the engine tried-engine of tried_engine" in program.bug_of(raised.value)
        assert program.REPORT == program.bug_of(ValueError())
        server = package / "tried_engine" / "server.py"
        assert "bug in the engine tried-engine" in program.bug_of(from_a_worker(server))
        assert program.REPORT == program.bug_of(from_a_worker(Path(program.__file__)))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("__import__('numpy').stack([])", "ValueError: need at least one array to stack"),
    ],
)
def test_an_exception_of_an_engine_is_a_finding_with_its_workload(
    package: Path, error: str, message: str
) -> None:
    """Raised by the engine's own code, or in a library that it calls."""
    with planted(package, error) as family:
        found = search(Profile(family.name, family.names()[-1]), "dense", examples=5, seed=1)

    counterexample = there_is(found.counterexample)
    detail = f"{message}, raised by tried_engine.server, line "
    assert ("crash", 0) == (counterexample.finding.kind, counterexample.finding.step)
    assert detail == counterexample.finding.detail.rstrip("0123456789")
    assert 1 == len(counterexample.scenario.step)


def test_an_exception_of_cachesim_itself_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = import_module("cachesim.play.findings")
    monkeypatch.setattr(findings, "finding_of", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        search(Profile("llama.cpp", "b11549"), "dense", examples=1, seed=1)


@pytest.mark.wheel
@pytest.mark.nightly
def test_every_command_knows_an_installed_engine_and_none_remembers_it(tmp_path: Path) -> None:
    """An environment of its own, which sees the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    bin_ = tmp_path / "venv" / "bin"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "beside.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    (tmp_path / "story.toml").write_text(STORY)
    (tmp_path / "plan.toml").write_text(PLAN)

    def run(*words: str, status: int = 0) -> str:
        told = subprocess.run(
            [bin_ / "python", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert status == told.returncode, (words, told.stdout, told.stderr)
        assert "Traceback" not in told.stderr
        return told.stdout + told.stderr

    def cachesim(words: str, status: int = 0) -> str:
        return run("-m", "cachesim", *words.split(), status=status)

    cachesim("new --engine acme-cache -o acme")
    run("-m", "pip", "install", "--quiet", "--no-deps", "./acme")

    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "acme/tests")
    assert "acme-cache@1.0" in cachesim("list releases")
    assert "--entries" in cachesim("list acme-cache --flags")
    assert "prefix-matched" in cachesim("list schema output")
    assert '"acme-cache@1.0"' in cachesim("completion bash")
    assert "acme-cache" in cachesim("run story.toml --report page.html")
    assert "32 tokens are reused" in (tmp_path / "page.html").read_text()
    assert "acme-cache@1.0" in cachesim("check acme-cache@1.0 --examples 8 --jobs 2 --model dense")
    assert "acme-cache@1.0" in cachesim("compare story.toml -p acme-cache@1.0 -p vllm@0.33.0")
    replayed = cachesim("replay made:20 -p acme-cache@1.0 --model dense --format json")
    assert 0 < json.JSONDecoder().raw_decode(replayed)[0][-1]["cached"]
    cachesim("check --prove acme-cache@1.0 --minutes 0.02")
    assert "acme-cache@1.0" in cachesim("sweep plan.toml --jobs 2 --report sweep.html")
    (tmp_path / "plan.sqlite").unlink(missing_ok=True)
    cachesim("sweep plan.toml --dask 2 --store other.db --csv table.csv")
    assert "acme-cache@1.0" in (tmp_path / "table.csv").read_text()
    log = ROOT / "docs" / "examples" / "recorded.jsonl"
    assert "acme-cache@1.0" in cachesim(f"why {log} --profile acme-cache@1.0")

    run("-m", "pip", "uninstall", "--quiet", "--yes", "acme-cache")
    assert "acme" not in cachesim("list engines") + cachesim("list schema output")
    assert "there is no engine 'acme-cache'" in cachesim("run story.toml", status=2)
    assert "there is no engine 'acme-cache'" in cachesim("sweep plan.toml --jobs 2", status=2)
