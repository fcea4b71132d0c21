"""The report of `cachesim check` on a workload."""

from dataclasses import replace
from pathlib import Path

from cachesim.cli.findings import print_search
from cachesim.cli.plan import Plan
from cachesim.engines import Profile
from cachesim.play.findings import Finding
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.search import Counterexample, Report
from cachesim.testing.workloads import Shape
from tests.fixtures import Capture, Patch

PROFILE = Profile.parse("llama.cpp@b11549")


def report(*steps: Step) -> Report:
    scenario = Scenario(
        format=FORMAT,
        name="found",
        model=Model(preset="dense"),
        engine=Server(name="llama.cpp", profiles=("b11549",), options={"parallel": 2}),
        step=steps,
    )
    finding = Finding(kind="crash", step=1, detail="it ends here")
    found = Counterexample(number=7, finding=finding, scenario=scenario, arithmetic="ring")
    return Report(profile=PROFILE, model="dense", workloads=8, counterexample=found)


def plan() -> Plan:
    return Plan(
        profiles=(PROFILE,), against=None, model="dense", examples=8, minutes=None, seed=0,
        arithmetic="ring", shape=Shape(), jobs=1, emit=None, export=None,
        require=frozenset(),
    )  # fmt: skip


def test_a_story_tells_all_that_a_client_did(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    first = Step(prompt=(300, 301, 302), reply=(303,), name="r0", cache_prompt=False)
    second = Step(prompt=(300, 301), reply=(303, 304), name="r1", slot=1, with_previous=True)

    status = print_search(report(first, second), plan())

    said = capsys.readouterr().out.splitlines()
    assert 1 == status
    assert "  CRASH in workload 7, shrunk:" in said
    assert "    a server of llama.cpp@b11549, parallel = 2" in said
    assert "    r0: a prompt of 3 tokens, 1 generated, nothing from cache" in said
    assert (
        "    r1: a prompt of 2 tokens, 2 as before, 2 generated, for slot 1,"
        " together with the one before  <- it ends here"
    ) in said


def test_what_a_client_does_beside_asking_is_told_as_it_is(capsys: Capture) -> None:
    first = Step(prompt=(300,), reply=(303,), name="r0")
    save = Step(do="slot-save", slot=1, file="slot", name="save")
    restore = Step(do="slot-restore", slot=1, file="slot", name="restore")

    print_search(report(first, save, restore, Step(do="cancel", turns=2, name="gone")), plan())

    said = capsys.readouterr().out
    assert "then slot 1 is saved into a file" in said
    assert "then slot 1 is filled from that file" in said
    assert "then its client disconnects after 2 turns of the server's loop" in said


def test_a_finding_is_printed_with_the_command_that_shows_it_on_the_real_server(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    asked = Step(prompt=(300,), reply=(303,), name="r0")
    file = tmp_path / "llama.cpp-b11549-found.toml"

    print_search(report(asked), replace(plan(), emit=tmp_path))
    assert f"real server: cachesim real llama.cpp --scenario {file}" in capsys.readouterr().out

    print_search(report(asked, Step(do="cancel", name="gone")), replace(plan(), emit=tmp_path))
    assert "real server" not in capsys.readouterr().out
