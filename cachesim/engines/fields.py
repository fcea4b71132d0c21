"""Every field of an engine's own configuration, and what becomes of it here.

An engine's `fields.py` declares two values. `FIELDS` has a row for each field of the newest
release: it is simulated, has no influence on what is cached, or is not simulated. `SOURCES` says
where a release declares them, so that `cachesim real ENGINE --newest` finds the field of a new
release that has no row, and the row of a field that is gone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cachesim.engines.option import listed

Class: TypeAlias = Literal["simulated", "no influence", "not simulated"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of upstream's configuration; exactly one of its three texts is set."""

    owner: str  # upstream's class, or the function that declares its flags
    name: str
    flag: str = ""  # as upstream spells it
    simulated: str = ""  # the option here that stands for it, several with commas between them
    no_influence: str = ""  # why nothing that is cached depends on it
    differs: str = ""  # what would differ from the simulation

    def __post_init__(self) -> None:
        if sum(map(bool, (self.simulated, self.no_influence, self.differs))) != 1:
            msg = f"{self.owner}.{self.name}: set one of simulated, no_influence and differs"
            raise ValueError(msg)

    @property
    def kind(self) -> Class:
        """Which of the three texts it has."""
        if self.simulated:
            return "simulated"
        return "no influence" if self.no_influence else "not simulated"

    @property
    def options(self) -> tuple[str, ...]:
        """The options here that stand for it."""
        return listed(self.simulated)

    @property
    def advice(self) -> str:
        """What to write in its place where somebody sets it."""
        if self.simulated:
            return f"is called {' and '.join(map(repr, self.options))} here"
        if self.no_influence:
            return f"has no influence on what is cached ({self.no_influence}); leave it out"
        return f"is not simulated: {self.differs}; leave it out"


def fields_of(
    owner: str,
    *,
    simulated: str = "",
    renamed: Mapping[str, str] | None = None,
    no_influence: Mapping[str, str] | None = None,
    differs: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    flagless: str = "",
) -> tuple[Field, ...]:
    """The rows of one class or parser, sorted by name.

    `simulated` has the names that are those of our options, `renamed` others with our options.
    `no_influence` and `differs` have a text, and the names it holds for. A flag is the name with
    dashes, unless `flags` has another, or the name is one of `flagless`; `*` are all that `flags`
    does not have.
    """

    def rows() -> Iterator[Field]:
        own = {name: name for name in simulated.split()}
        for name, options in (own | dict(renamed or {})).items():
            yield Field(owner, name, flag_of(name), simulated=options)
        for text, names in (no_influence or {}).items():
            for name in names.split():
                yield Field(owner, name, flag_of(name), no_influence=text)
        for text, names in (differs or {}).items():
            for name in names.split():
                yield Field(owner, name, flag_of(name), differs=text)

    def flag_of(name: str) -> str:
        if name in (flags or {}):
            return (flags or {})[name]
        return "" if {name, "*"} & {*flagless.split()} else f"--{name.replace('_', '-')}"

    return tuple(sorted(rows(), key=lambda row: row.name))
