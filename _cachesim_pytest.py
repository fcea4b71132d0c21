"""The pytest plug-in: scenario files are tests, and cache operations on a Transformers model.

Any TOML file below a folder that pytest is pointed at, and that has the form of a scenario (three
of its keys), becomes one test per profile; one with a mistake, or that is no TOML beside scenarios,
is a test that fails. With `--cachesim-profile`
scenarios of other engines are left out. With `--cachesim-budget` a search on each of these profiles
is a test. With `--cachesim-transformers` each cache operation on a tiny model of the family is a
test. The module lies outside the package so that pytest can
load it without importing cachesim.
"""

import re
import shlex
import sys
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cachesim.engines.family import Profile
    from cachesim.play.result import Run
    from cachesim.probe.result import Result
    from cachesim.scenario import Scenario

KEYS = frozenset(
    {"format", "model", "engine", "chat", "spans", "images", "step", "expect", "shows"}
)
"""Keys of scenarios; one of some length has four of them or more, and with a mistake three."""

MARK = re.compile(r"^\s*\[{0,2}\s*(\w+?)s?\b\s*(?:\]|\.|=)", re.MULTILINE)
"""A key at the beginning of a line."""

LARGEST = 4 * 2**20

UNITS = {"": 1 / 60, "s": 1 / 60, "m": 1, "h": 60}
"""Minutes of each unit of time."""


def minutes(text: str) -> float:
    """A time such as 60s, 5m or 1h; a bare number is seconds."""
    read = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if read is None or not float(read[1]):
        raise ArgumentTypeError(f"{text!r} is no time; write one such as 60s, 5m or 1h")
    return float(read[1]) * UNITS[read[2]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all with the project's name in front."""
    group = parser.getgroup("cachesim", "scenarios of LLM servers' caches")
    group.addoption(
        "--cachesim-profile",
        action="append",
        default=[],
        metavar="PROFILE",
        help="the profile to run scenarios of its engine on; others are left out; may be repeated",
    )
    group.addoption(
        "--cachesim-arithmetic",
        choices=("float", "ring"),
        default="float",
        help="float: a real network; ring: exact words, faster",
    )
    group.addoption(
        "--cachesim-emit",
        metavar="DIR",
        help="write each scenario that fails, for the one profile it fails on, into a folder",
    )
    group.addoption(
        "--cachesim-budget",
        type=minutes,
        metavar="TIME",
        help="search each --cachesim-profile so long for a wrong answer, as `cachesim check` does",
    )
    group.addoption(
        "--cachesim-seed",
        type=int,
        default=0,
        metavar="N",
        help="the seed of that search; another one plays other workloads",
    )
    group.addoption(
        "--cachesim-transformers",
        action="append",
        default=[],
        metavar="FAMILY",
        help="a model type of Transformers whose cache is compared with cold runs; may be repeated",
    )
    group.addoption(
        "--cachesim-import",
        metavar="MODULE",
        help="a module that registers a model with AutoConfig and AutoModelForCausalLM",
    )
    group.addoption(
        "--cachesim-python",
        metavar="PYTHON",
        default=sys.executable,
        help="the interpreter that has torch and transformers; the one of pytest if left out",
    )


@pytest.fixture
def cachesim_probe() -> "Callable[..., Result]":
    """Probe a live server: takes the flags of `cachesim probe`, returns its result."""

    def probe(**flags: Any) -> "Result":
        from cachesim.probe.command import Settings, run

        result = run(Settings(**flags)).result
        if result.missing:
            pytest.fail(f"the probe tested nothing: {'; '.join(result.missing)}")
        return result

    return probe


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add a search for each profile, and a test for each operation on a Transformers family."""
    budget, profiles = map(session.config.getoption, ("--cachesim-budget", "--cachesim-profile"))
    if budget is not None and not profiles:
        msg = "--cachesim-budget searches profiles: name one with --cachesim-profile"
        raise pytest.UsageError(msg)
    for profile in profiles:
        _refuse_unknown(profile)
    if budget is not None:
        items += [
            SearchItem.from_parent(
                session, name=f"search: {profile}", profile=profile, budget=budget
            )
            for profile in profiles
        ]
    families = session.config.getoption("--cachesim-transformers")
    if families:
        from cachesim.prove.transformers.scripts import OPERATIONS

        items += [
            TransformersItem.from_parent(
                session, name=f"{family}: {operation}", family=family, operation=operation
            )
            for family in families
            for operation in OPERATIONS
        ]


def _refuse_unknown(text: str) -> None:
    """Refuse a profile that no engine has: without it, no scenario would be run."""
    from cachesim.engines.family import FAMILIES
    from cachesim.scenario.checks import full_profile, refused_profile, wrong_profile

    def reason(engine: str) -> str:
        return wrong_profile(engine, text) or refused_profile(full_profile(engine, text))

    reasons = [reason(engine) for engine in ([""] if "@" in text else FAMILIES)]
    if all(reasons):
        why = reasons[0] if len(reasons) == 1 else "no engine has such a release with these patches"
        raise pytest.UsageError(f"--cachesim-profile {text}: {why}; see `cachesim list releases`")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "ScenarioFile | None":
    """Take a TOML file with the form of a scenario, and one that is no TOML beside scenarios."""
    if file_path.suffix != ".toml":
        return None
    form = _form_of(file_path)
    if form is None and any(map(_form_of, sorted(file_path.parent.glob("*.toml")))):
        form = True
    return ScenarioFile.from_parent(parent, path=file_path) if form else None


@cache
def _form_of(path: Path) -> bool | None:
    """True for a file with the form of a scenario, right or wrong; None for one that is no TOML."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1).decode("utf-8", errors="replace")
    except OSError:  # a dangling link, a file that is somebody else's
        return False
    try:
        keys = tomllib.loads(text).keys()
    except (tomllib.TOMLDecodeError, RecursionError):
        return True if len(_known(MARK.findall(text))) > 2 else None
    return len(_known(keys)) > 2


def _known(keys: Iterable[str]) -> frozenset[str]:
    return KEYS & {each for key in keys for each in (key, key.removesuffix("s"), f"{key}s")}


class ScenarioFile(pytest.File):
    """One file: a test for each profile."""

    def collect(self) -> Iterator["ScenarioItem | WrongItem"]:
        """Read the file; one that is wrong is a test that fails, and stops no other."""
        from cachesim.errors import InputError
        from cachesim.scenario import full_profile, load
        from cachesim.scenario.checks import chosen_profiles

        asked = self.config.getoption("--cachesim-profile")
        try:
            scenario = load(self.path)
            listed = [full_profile(scenario.engine.name, p) for p in scenario.engine.profiles]
            profiles = chosen_profiles(scenario, asked) if asked else listed
        except InputError as error:
            yield WrongItem.from_parent(self, name="scenario", problems=str(error))
            return
        for profile in profiles:
            yield ScenarioItem.from_parent(
                self, name=str(profile), scenario=scenario, profile=profile
            )


class WrongItem(pytest.Item):
    """A file that looks like a scenario and is none."""

    def __init__(self, *, problems: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.problems = problems

    def runtest(self) -> None:
        """Say what is wrong with it."""
        pytest.fail(self.problems, pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """How pytest names it."""
        return self.path, 0, self.path.name


class ScenarioItem(pytest.Item):
    """One scenario on one profile."""

    def __init__(self, *, scenario: "Scenario", profile: "Profile", **rest: Any) -> None:
        super().__init__(**rest)
        self.scenario = scenario
        self.profile = profile

    def runtest(self) -> None:
        """Run it; whatever was not as expected fails the test."""
        from cachesim.play import run

        arithmetic = self.config.getoption("--cachesim-arithmetic")
        entry = run(self.scenario, self.profile, arithmetic=arithmetic)
        if not entry.as_expected:
            raise UnexpectedError(entry, emitted=self._emit())

    def _emit(self) -> Path | None:
        """Write the scenario for this profile alone, where that was asked for."""
        from cachesim.scenario import full_profile
        from cachesim.scenario.files import to_toml

        folder = self.config.getoption("--cachesim-emit")
        if folder is None:
            return None
        if Path(folder).resolve() in self.path.resolve().parents:
            return self.path  # kept by an earlier run
        engine = self.scenario.engine
        expected = tuple(
            each
            for each in self.scenario.expect
            if each.profile is None or full_profile(engine.name, each.profile) == self.profile
        )
        release = str(self.profile).partition("@")[2]
        alone = replace(self.scenario, engine=replace(engine, profiles=(release,)), expect=expected)
        path = Path(folder) / f"{self.scenario.name}-{release}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(alone), encoding="utf-8")
        return path

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:
        """What was expected and what was found, then the report of `cachesim run`."""
        if isinstance(excinfo.value, UnexpectedError):
            return excinfo.value.told(self.scenario, str(self.path))
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """How pytest names it."""
        return self.path, 0, f"{self.scenario.name} on {self.profile}"


class SearchItem(pytest.Item):
    """A search on one profile, for a time."""

    def __init__(self, *, profile: str, budget: float, **rest: Any) -> None:
        super().__init__(**rest)
        self.profile = profile
        self.budget = budget

    def runtest(self) -> None:
        """Run `cachesim check`; what it prints of a finding, or of a refusal, fails the test."""
        from cachesim.cli.main import main

        emit, seed = map(self.config.getoption, ("--cachesim-emit", "--cachesim-seed"))
        arguments = ["check", self.profile, "--minutes", str(self.budget), "--seed", str(seed)]
        printed = StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            status = main([*arguments, *(["--emit", emit] if emit else [])])
        text = printed.getvalue().replace("  --emit DIR", "  --cachesim-emit DIR")
        if status:
            pytest.fail(text, pytrace=False)
        self.add_report_section("call", "cachesim", text)

    def reportinfo(self) -> tuple[Path, int, str]:
        """How pytest names it; of a domain that ends the name it would change the dots."""
        return self.config.rootpath, 0, f"search on {self.profile}"


class TransformersItem(pytest.Item):
    """A cache operation on a tiny model of a Transformers family."""

    def __init__(self, *, family: str, operation: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.family = family
        self.operation = operation

    def runtest(self) -> None:
        """Compare with cold runs; a wrong answer and a crash fail."""
        from cachesim.prove.transformers.one_family import result_of

        python, module = map(self.config.getoption, ("--cachesim-python", "--cachesim-import"))
        result = result_of(Path(python), module, self.family, self.operation)
        if result.skipped:
            pytest.skip(result.skipped)
        if result.failed:
            pytest.fail(result.failed, pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """How pytest names it."""
        return self.config.rootpath, 0, self.name


class UnexpectedError(Exception):
    """A run that was not as its scenario expects."""

    def __init__(self, entry: "Run", *, emitted: Path | None = None) -> None:
        super().__init__("; ".join(entry.mismatches))
        self.entry = entry
        self.emitted = emitted

    def told(self, scenario: "Scenario", source: str) -> str:
        """The mismatches and the report, as plain text."""
        from cachesim.cli.run import proof_lines
        from cachesim.printable import printable
        from cachesim.report.consoles import plain_text
        from cachesim.report.tables import Line, one_scenario
        from cachesim.scenario.checks import full_profile

        def proof(run: "Run", step: int) -> list[Line]:
            profile = full_profile(scenario.engine.name, run.profile)
            return proof_lines(scenario, profile, source, step)

        told = plain_text(one_scenario(scenario, [self.entry], width=80, proof=proof))
        path = str(self.emitted)
        again = [f"to run it again: cachesim run {shlex.quote(path)}"] if self.emitted else []
        return "\n".join((*map(printable, self.entry.mismatches), "", told, *again))
