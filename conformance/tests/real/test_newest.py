"""The alarm: which wheel is the newest, and what is said of it."""

from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from cachesim.engines.llamacpp.fields import FIELDS
from cachesim.errors import ProfileError
from cachesim.prove.environment import EnvironmentUnavailableError, read_versions
from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.workload import Outcome, workload
from cachesim.prove.mlx_lm.process import environment_for, played_by
from cachesim.scenario.format import Step
from cachesim.units import as_tokens
from conformance.real.commands import LlamaCppFlags, real_llama_cpp
from conformance.real.llama_cpp import compare, wheels
from conformance.real.llama_cpp.compare import Difference, Played
from conformance.real.llama_cpp.wheels import Wheel, newest_wheel, wheel_named
from conformance.real.mlx_lm import commands
from tests.fixtures import Capture, Patch

SAID = """xllamacpp (2026.11.12000)
Available versions: 2026.11.12000, 2026.10.11549, 2026.4.8672.1, 0.2.14
  INSTALLED: 0.1.0
"""
WORKLOAD = workload(
    "w",
    release="b11549",
    preset="dense",
    options={},
    steps=(Step(name="a", prompt=as_tokens(range(300, 310))),),
)
OUTCOME = Outcome(cached=0, processed=10, reply=as_tokens([400]), slot=0)


@pytest.fixture
def registry(monkeypatch: Patch) -> str:
    monkeypatch.setattr(wheels, "versions_of", lambda name: read_versions(name, SAID))
    return SAID


def test_versions_are_read_from_what_pip_says() -> None:
    assert ("2026.11.12000", "2026.10.11549", "2026.4.8672.1", "0.2.14") == read_versions("x", SAID)


def test_a_registry_that_names_no_version_is_said() -> None:
    with pytest.raises(EnvironmentUnavailableError, match="versions of xllamacpp"):
        read_versions("xllamacpp", "nothing here")


@pytest.mark.usefixtures("registry")
def test_the_newest_wheel_is_the_first_whose_version_names_a_build() -> None:
    assert Wheel(release="b12000", version="2026.11.12000") == newest_wheel()


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("name", "release", "version"),
    [
        ("b9713", "b9713", "2026.6.9713"),
        ("2026.6.9713", "b9713", "2026.6.9713"),
        ("2026.4.8672.1", "b8672", "2026.4.8672.1"),
        ("b12000", "b12000", "2026.11.12000"),
    ],
)
def test_a_wheel_goes_by_its_build_or_its_version(name: str, release: str, version: str) -> None:
    assert Wheel(release=release, version=version) == wheel_named(name)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["b1", "newest", "2026"])
def test_a_wheel_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="write a build such as b9713"):
        wheel_named(name)


class Pair:
    """A wheel that is played: it answers as expected, otherwise, or not at all."""

    difference: Difference | None = None
    error: Exception | None = None

    def __init__(self, release: str, *, version: str) -> None:
        assert (release, version) == ("b11549", "2026.11.12000")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def play_random(self, **_: object) -> Played:
        if self.error is not None:
            raise self.error
        return Played(workload=WORKLOAD, outcomes=(OUTCOME,), difference=self.difference)

    def shrunk(self, difference: Difference) -> Difference:
        return difference


class Ready:
    site = Path()

    def ready(self) -> None: ...


@pytest.fixture
def pair(registry: str, monkeypatch: Patch) -> type[Pair]:
    assert registry
    played = type("Played", (Pair,), {})
    monkeypatch.setattr(wheels, "SideBySide", played)
    monkeypatch.setattr(wheels, "environment_for", lambda *_: Ready())
    monkeypatch.setattr(wheels, "declared", lambda *_: KNOWN)
    monkeypatch.setattr(compare, "real_log_of", lambda *_, **__: ["the log"])
    return played


KNOWN = {"common_params": frozenset(field.name for field in FIELDS)}


@pytest.mark.usefixtures("pair")
def test_nothing_new_is_said_with_the_release_it_is_as(capsys: Capture) -> None:
    assert 0 == real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=3))

    assert (
        "b12000 (xllamacpp 2026.11.12000) is as b11549: all 3 requests agree"
        in capsys.readouterr().out
    )


@pytest.mark.usefixtures("pair")
def test_a_field_that_nobody_knows_rings_though_all_requests_agree(
    monkeypatch: Patch, capsys: Capture
) -> None:
    planted = {"common_params": KNOWN["common_params"] | {"planted"}}
    monkeypatch.setattr(wheels, "declared", lambda *_: planted)

    assert 1 == real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=3))

    assert "common_params.planted has no row in" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_is_new_is_shown_as_a_scenario(pair: type[Pair], capsys: Capture) -> None:
    other = Outcome(cached=5, processed=5, reply=OUTCOME.reply, slot=0)
    pair.difference = Difference(
        workload=WORKLOAD, step=0, real=OUTCOME, simulated=other, outcomes=(OUTCOME,)
    )

    assert 1 == real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=2))

    said = capsys.readouterr().out
    assert "is NOT as b11549: 2 of 2 requests" in said
    assert 'profiles = ["b11549"]' in said
    assert "cached in step a: real 0, simulated 5" in said
    assert "the log" in said
    assert "--fit 2026.11.12000" in said


def test_a_wheel_that_does_not_start_is_new_too(pair: type[Pair], capsys: Capture) -> None:
    pair.error = RealServerError("the real server does not start: AttributeError: clear_idle")

    assert 1 == real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=2))

    assert "is NOT as b11549: the real server does not start" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_log_of_a_server_that_never_answers_is_not_shown(
    pair: type[Pair], capsys: Capture
) -> None:
    """It loops forever, and wrote 22 million lines in a minute."""
    pair.difference = Difference(
        workload=WORKLOAD, step=0, real=Outcome(error="endless"), simulated=OUTCOME, outcomes=()
    )

    real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=2))

    said = capsys.readouterr().out
    assert "the log" not in said
    assert "the real server did not answer" in said


@pytest.mark.thorough
def test_a_long_log_is_cut(pair: type[Pair], capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(compare, "real_log_of", lambda *_, **__: ["[line]"] * 1_300)
    other = Outcome(cached=5, processed=5, reply=OUTCOME.reply, slot=0)
    pair.difference = Difference(
        workload=WORKLOAD, step=0, real=OUTCOME, simulated=other, outcomes=(OUTCOME,)
    )

    real_llama_cpp(flags=LlamaCppFlags(newest=True, workloads=2))

    said = capsys.readouterr().out
    assert 200 == said.count("[line]")
    assert "... and 1,100 more lines" in said


# The alarm for mlx-lm: another version may stand in for a release.


def test_another_version_stands_in_for_a_release_and_goes_again() -> None:
    own = environment_for("0.32.2")

    with played_by("0.32.2", "0.33.0"):
        assert "mlx-lm==0.33.0" in environment_for("0.32.2").requirements
        assert own.name != environment_for("0.32.2").name

    assert own == environment_for("0.32.2")


@pytest.mark.parametrize("unknown", [0, 1])
@pytest.mark.parametrize(("status", "said"), [(0, "is as 0.32.2"), (1, "is NOT as 0.32.2")])
def test_the_newest_version_is_held_against_the_newest_release(
    status: int, said: str, unknown: int, monkeypatch: Patch, capsys: Capture
) -> None:
    asked = []

    def played(flags: commands.MlxFlags, _record: object) -> int:
        asked.append((flags.release, environment_for("0.32.2").requirements[-1]))
        return status

    monkeypatch.setattr(commands, "versions_of", lambda _: ("0.34.0", "0.32.2"))
    monkeypatch.setattr(commands, "environment_for", lambda _: Ready())
    monkeypatch.setattr(commands, "_random", played)
    monkeypatch.setattr(commands, "judge_fields", lambda *_: unknown)

    assert max(status, unknown) == commands.real_mlx_lm(flags=commands.MlxFlags(newest=True))

    assert [("0.32.2", "mlx-lm==0.34.0")] == asked
    assert f"mlx-lm 0.34.0 {said}" in capsys.readouterr().out
