"""What a search is asked for, and that it can be done."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from cachesim.cli.workers import processes_wanted, processors
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import PRESETS
from cachesim.testing.flags import try_flags
from cachesim.testing.survey import Find
from cachesim.testing.trial import EXERCISED
from cachesim.testing.workloads import Shape

WORDS: Final = ("reuse", *EXERCISED, "refusal")
"""What a search may be required to have exercised."""

MOST_MINUTES: Final = 7 * 24 * 60

EXAMPLES: Final = 200
"""Workloads where nobody says how many, nor how long."""

WITHOUT_END: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to play, and for how long."""

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
    require: frozenset[str]
    find: Find = "wrong"
    everything: bool = False  # go on past the first finding
    dask: str | None = None  # whose workers search: an address, or a number of own ones

    def __post_init__(self) -> None:
        """Refuse what cannot be played, before anything is."""
        if not self.profiles:
            msg = "name a profile to check, such as llama.cpp@b11549+erase-equal"
            raise InputError(msg)
        if self.model not in PRESETS:
            msg = f"there is no preset {self.model!r}; there are {', '.join(PRESETS)}"
            raise InputError(msg)
        for unknown in sorted(self.require - set(WORDS)):
            msg = f"nothing is called {unknown!r}; --require takes {', '.join(WORDS)}"
            raise InputError(msg)
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            msg = f"--minutes is {self.minutes}; write a number above 0, up to {MOST_MINUTES}"
            raise InputError(msg)
        processes_wanted(self.jobs)
        self._check_folder()
        if self.examples < 1:
            msg = f"--examples is {self.examples}; write a whole number from 1"
            raise InputError(msg)
        if self.against is not None and self.dask is not None:
            msg = "--dask is for a search; --against compares on this machine: give one of them"
            raise InputError(msg)
        if self.against is not None and self.goes_on:
            msg = "--against compares two profiles; --all and --find search one: give one of them"
            raise InputError(msg)
        for profile in self.profiles:
            if self.against is not None and self.against.engine != profile.engine:
                msg = (
                    f"{self.against} is another engine than {profile}: its flags and requests are"
                    " others; --against takes a profile of the same one, `cachesim diff` any"
                )
                raise InputError(msg)
        for profile in (*self.profiles, *((self.against,) if self.against else ())):
            try_flags(profile, self.model, self.shape.fixed)

    def _check_folder(self) -> None:
        if self.emit is not None:
            check_folder(self.emit)

    @property
    def goes_on(self) -> bool:
        """Whether findings are grouped by their cause, and the search goes on past each."""
        return self.everything or self.find == "lost"

    @property
    def how(self) -> dict[str, Any]:
        """What a search and a comparison are told alike."""
        return {
            "examples": self.examples,
            "seed": self.seed,
            "arithmetic": self.arithmetic,
            "shape": self.shape,
        }


def many(examples: int | None, minutes: float | None) -> int:
    """How many workloads: as many as time allows where only a time is given."""
    if examples is not None:
        return examples
    return EXAMPLES if minutes is None else WITHOUT_END


def workers_for(jobs: int | None) -> int:
    """How many processes: all processors where nobody says."""
    return processors() if jobs is None else jobs


def check_folder(emit: Path) -> None:
    """Refuse a folder that cannot be written to: no search begins whose finding is not kept."""
    try:
        emit.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=emit):
            pass
    except OSError as error:
        msg = f"--emit {emit}: cannot be written to: {error.strerror or error}"
        raise InputError(msg) from None
