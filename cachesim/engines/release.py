"""Releases of an engine, and patches that may be laid over their rules, as plain data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

R = TypeVar("R")
"""An engine's value of rules."""

Rules: TypeAlias = Any
"""The rules of any engine, a part or a field of them."""


class PatchedRelease(Protocol):
    """A release with patches laid over it, as a `Profile` names them."""

    @property
    def release(self) -> str:
        """The release's name."""
        ...

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches in order, with the sign of one that is taken back."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The package of a real release: its version, and the packages it is installed with."""

    name: str
    version: str
    beside: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages to install."""
        return (*self.beside, f"{self.name}=={self.version}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Generic[R]):
    """A release: its rules, and their source."""

    name: str
    about: str
    rules: R
    date: str = ""
    upstream: str = ""  # the tag or commit whose code the rules follow; the release itself if empty
    aliases: tuple[str, ...] = ()  # builds under another number with the same cache logic
    package: Package | None = None

    @property
    def follows(self) -> str:
        """The tag or commit whose code the rules follow."""
        return self.upstream or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch(Generic[R]):
    """A proposed, foreign or merged change, laid over the rules of a release.

    One that was merged can be taken back from the releases that have it: `b11549-28302`.
    """

    name: str
    about: str
    fits: tuple[str, ...]
    lay: Callable[[R], R]
    pull: int = 0  # its number where it was proposed; 0: our own, or unknown where it landed
    perhaps: tuple[int, ...] = ()  # numbers that may be its own, where none could be confirmed
    landed: str = ""  # the first release that has it
    back: Callable[[R], R] | None = None  # the rules without it, where it was merged
    cures: str = ""  # the wrong answers that there are without it, by their cause


def tagged(name: str, date: str, rules: R, about: str, package: str) -> Release[R]:
    """A release whose tag is its number, and which a package of that number plays."""
    return Release(
        name=name,
        about=about,
        rules=rules,
        date=date,
        upstream=f"v{name}",
        package=Package(name=package, version=name),
    )


def laying(**changes: Rules) -> Callable[[Rules], Rules]:
    """A patch that sets fields of the rules; a mapping sets fields of the part that it names."""

    def lay(rules: Rules) -> Rules:
        return replace(
            rules, **{name: _laid(getattr(rules, name), each) for name, each in changes.items()}
        )

    return lay


def _laid(before: Rules, change: Rules) -> Rules:
    if not isinstance(change, Mapping):
        return change
    return {**before, **change} if isinstance(before, Mapping) else replace(before, **change)


def switching(landed: str, **changes: Rules) -> dict[str, Any]:
    """The fields of a merged patch and their former values, where all are booleans."""
    return {"landed": landed, "lay": laying(**changes), "back": laying(**_switched(changes))}


def _switched(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _switched(each) if isinstance(each, Mapping) else not each
        for name, each in changes.items()
    }
