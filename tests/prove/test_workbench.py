"""Without the workbench, as in an installed package: what is left of `cachesim real`."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile
from cachesim.errors import OptionError
from cachesim.prove import workbench
from cachesim.prove.command import proof_command
from cachesim.prove.hunt.proof import BY_METADATA, prover_of
from cachesim.scenario import full_profile
from cachesim.scenario.shipped import load_all
from tests.fixtures import Capture, Patch

ROOT = Path(__file__).parents[2]
PLACE = (
    "comparisons with an engine's own code need a checkout of cachesim, where `make run` sets them "
    "up\n"
)
ALONE = "with --scenario and --release alone"


@pytest.fixture
def _alone(monkeypatch: Patch) -> None:
    """An installed package has no entry points of the workbench."""
    monkeypatch.setattr(workbench, "entry_points", lambda **_: ())


def declared(group: str) -> dict[str, str]:
    text = (ROOT / "conformance" / "pyproject.toml").read_text(encoding="utf-8")
    points: dict[str, dict[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return points[group]


@pytest.mark.parametrize("group", [workbench.COMMANDS, workbench.PROVERS, workbench.SERVERS])
def test_the_workbench_that_is_set_up_here_is_that_of_this_checkout(group: str) -> None:
    """An entry point that is new takes `make run` once more."""
    here = {name: each.value for name, each in workbench.added(group).items()}

    assert declared(group) == here
    for each in here.values():
        module, _, name = each.partition(":")
        assert hasattr(import_module(module), name)


def test_every_engine_is_compared_or_played() -> None:
    # Servers over another engine's caches: `real mlx-lm --vllm-mlx`, or read in the source only.
    above = {
        name for name, family in FAMILIES.items() if {"mlx-lm", "llama-cpp-python"} & {*family.kin}
    }

    assert {*FAMILIES, "vectors"} == {*declared(workbench.COMMANDS), *above}
    assert {*BY_METADATA} == {*declared(workbench.PROVERS)}


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("vllm", "no `cachesim real vllm`"),
        ("vllm --workloads 3 --seed 1", "no `cachesim real vllm`"),
        ("vectors x.jsonl.gz", "no `cachesim real vectors`"),
        ("marconi", "no `cachesim real marconi`"),
        ("ik_llama.cpp --binary llama-server", "no `cachesim real ik_llama.cpp`"),
        (
            "llama.cpp --workloads 3",
            "`cachesim real llama.cpp` with --scenario and --release alone",
        ),
        ("mlx-lm --logits", "`cachesim real mlx-lm` with --scenario and --release alone"),
    ],
)
def test_what_a_wheel_has_not_says_in_one_sentence_where_it_is(
    words: str, what: str, capsys: Capture
) -> None:
    assert 2 == main(["real", *words.split()])

    assert f"cachesim: the installed package has {what}: {PLACE}" == capsys.readouterr().err


@pytest.mark.usefixtures("_alone")
def test_help_names_what_can_be_run_there(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert 0 == main(["real", "--help"])
    named = re.findall(r"^│ ([a-z][\w.-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert ["gguf", "llama-cpp-python", "llama.cpp", "mlx-lm"] == named

    assert 0 == main(["real", "llama.cpp", "--help"])
    options = capsys.readouterr().out.partition("Parameters")[2]
    assert ["--scenario", "--release"] == re.findall(r"--[a-z]+", options)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("engine", BY_METADATA)
def test_no_finding_is_called_proven_by_a_scheduler_that_is_not_there(engine: str) -> None:
    profile = Profile(engine, FAMILIES[engine].real()[-1])

    with pytest.raises(OptionError, match=f"the installed package proves no finding of {engine}: "):
        prover_of(profile, ())


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("engine", ["llama.cpp", "mlx-lm", "llama-cpp-python"])
def test_findings_of_servers_that_answer_here_are_proven(engine: str) -> None:
    profile = Profile(engine, FAMILIES[engine].real()[-1])

    assert prover_of(profile, ()).where in {"the wheel", "the real package"}


@pytest.mark.usefixtures("_alone")
def test_a_wheel_prints_no_command_that_takes_the_workbench() -> None:
    name = "ik_llama.cpp-2105-last-token-in-the-state-twice"
    [(_, scenario)] = load_all([name])

    assert "" == proof_command(scenario, full_profile("ik_llama.cpp", "8337e4cd3"), name)
