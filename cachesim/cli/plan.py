"""The plan of a search: what is searched, how long, and what is written."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from rich.console import RenderableType

from cachesim.cli import options
from cachesim.cli.jobs import processes_wanted
from cachesim.cli.like import OWN_LAYERS
from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import ALL_PRESETS
from cachesim.play.findings import EXERCISED
from cachesim.suites import Suite
from cachesim.testing.baseline import Baseline, Searched
from cachesim.testing.scope import WholeScope
from cachesim.testing.survey import (
    Find,
)
from cachesim.testing.workloads import Shape, try_flags
from cachesim.typed import Json, check_whole

WORDS: Final = ("reuse", *EXERCISED, "refusal")
"""Values of `--require`."""

MOST_MINUTES: Final = 7 * 24 * 60


@dataclass(slots=True)
class Collected:
    """What all searches of a command have found, for files and for other programs."""

    searched: list[Searched] = field(default_factory=list)
    suites: list[Suite] = field(default_factory=list)
    compared: list[dict[str, Json]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of a search: profiles, workloads, limits."""

    profiles: tuple[Profile, ...]
    against: Profile | None
    model: str
    examples: int
    minutes: float | None
    seed: int
    arithmetic: ArithmeticName
    shape: Shape
    jobs: int
    emit: Path | None
    export: Path | None
    require: frozenset[str]
    find: Find = "wrong"
    everything: bool = False  # continue past the first finding
    dask: str | None = None  # whose workers search: an address, or a number of own ones
    printed: list[RenderableType] = field(default_factory=list)  # the parts of a page
    scope: int | None = None  # requests of a small scope that is run whole
    told: list[dict[str, Json]] | None = None  # in place of text
    prove: bool = False  # run each cause on the real engine
    models: tuple[str, ...] = ()  # of a hunt; none: all that the real engine loads
    baseline: Baseline | None = None  # causes that fail nothing
    saves: bool = False  # a baseline, whose causes fail nothing
    collected: Collected = field(default_factory=Collected)
    grouped: bool = False  # by cause, for what a gate or a test run wants
    opening: list[RenderableType] = field(default_factory=list)  # printed before the first result

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InputError("name a profile to check, such as llama.cpp@b11549+erase-equal")
        if self.prove:
            options.refuse_beside("--prove", {"--find": self.find != "wrong"})
        for profile in self.profiles if self.prove else ():
            if profile.patches:
                raise InputError(
                    f"{profile} has patches: --prove is for a release as it is, as "
                    f"{profile.engine}@..."
                )
        if self.model not in ALL_PRESETS:
            msg = f"there is no preset {self.model!r}; there are {', '.join(ALL_PRESETS)}"
            raise InputError(msg)
        for unknown in sorted(self.require - set(WORDS)):
            raise InputError(f"nothing is called {unknown!r}; --require takes {', '.join(WORDS)}")
        if self.against is not None:
            options.refuse_beside("--against", {"--find": self.find != "wrong"})
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            msg = f"--minutes is {self.minutes}; write a number above 0, up to {MOST_MINUTES}"
            raise InputError(msg)
        processes_wanted(self.jobs)
        if self.emit is not None:
            check_folder(self.emit, "--emit")
        if self.export is not None:
            check_folder(self.export, "--export")
        check_whole("--examples", self.examples, 1)
        if self.against is not None and self.dask is not None:
            msg = "--dask is for a search; --against compares on this machine: give one of them"
            raise InputError(msg)
        for profile in self.profiles:
            if self.against is not None and self.against.engine != profile.engine:
                raise InputError(
                    f"{self.against} is another engine than {profile}: its flags and requests are"
                    " others; --against takes a profile of the same one, `cachesim compare` any"
                )
        for profile in (*self.profiles, *((self.against,) if self.against else ())):
            try_flags(profile, self.model, self.shape.fixed)

    @property
    def hunts(self) -> bool:
        """True if the search chooses its models and flags itself, and proves what it finds."""
        return self.prove and self.scope is None and not self.shape.around

    @property
    def goes_on(self) -> bool:
        """True if the search continues after findings, grouped by cause."""
        return self.everything or self.find == "lost" or self.prove or self.grouped

    def scope_of(self, profile: Profile) -> WholeScope | None:
        """The small scope to be run whole, if asked for."""
        if self.scope is None:
            return None
        return WholeScope(
            profile=profile, model=self.model, requests=self.scope, fixed=self.shape.fixed
        )

    @property
    def called(self) -> str:
        """Name of the model in a report."""
        if self.hunts:
            return ", ".join(self.models) or "all models"
        around = self.shape.around
        return OWN_LAYERS if around and around[0].model.preset is None else self.model

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of a search and a comparison."""
        return {
            "examples": self.examples,
            "seed": self.seed,
            "arithmetic": self.arithmetic,
            "shape": self.shape,
        }


def check_folder(emit: Path, option: str) -> None:
    """Refuse a folder without write permission, before the search starts."""
    try:
        emit.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=emit):
            pass
    except OSError as error:
        msg = f"{option} {emit}: cannot be written to: {error.strerror or error}"
        raise InputError(msg) from None
