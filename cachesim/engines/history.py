"""`History`: how an engine's releases and patches differ, as data.

    oldest --- merged --- merged ---> 0.29.0 --- merged ---> 0.30.0 ...

The rules of a release are those of the oldest state with the changes that were merged until then.
A merged change is a patch too: it can be laid over an older release, and taken back on a newer one.
Each engine's history is in its `releases.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from cachesim.engines.family import Patch, Rules
from cachesim.engines.search import R
from cachesim.errors import ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged change; `sets` has paths of fields like `reuse.search_limit`."""

    about: str
    landed: str  # the first release that has it
    sets: Mapping[str, Rules]
    pull: int = 0  # 0: unknown
    perhaps: tuple[int, ...] = ()  # candidate pull requests, if none is confirmed
    name: str = ""  # if not the number of the pull request
    cures: str = ""  # the wrong answers before it, by cause
    since: str = ""  # the first release that it can be laid over; all if empty

    @property
    def title(self) -> str:
        """The change's name in profiles."""
        return self.name or str(self.pull)

    def laid(self, rules: R) -> R:
        """The rules with this change."""
        return _with_fields(rules, self.sets)


def _with_fields(rules: R, fields: Mapping[str, Rules]) -> R:
    for path, value in fields.items():
        rules = _with(rules, path.split("."), value)
    return rules


def _with(part: Rules, path: Sequence[str], value: Rules) -> Rules:
    """A part of the rules with the field at a path set, through tables too."""
    name, *rest = path
    changed = _with(_member(part, name), rest, value) if rest else value
    return (
        {**part, name: changed} if isinstance(part, Mapping) else replace(part, **{name: changed})
    )


def _member(part: Rules, name: str) -> Rules:
    return part[name] if isinstance(part, Mapping) else getattr(part, name)


def _field_of(rules: Rules, path: str) -> Rules:
    for name in path.split("."):
        rules = _member(rules, name)
    return rules


@dataclass(frozen=True, slots=True)
class History(Generic[R]):
    """The oldest state's rules, and the changes since then: merged ones in their order."""

    oldest: R
    names: tuple[str, ...]  # of the releases, oldest first
    merged: tuple[Merged, ...]
    proposed: tuple[Patch[R], ...] = ()

    @property
    def patches(self) -> tuple[Patch[R], ...]:
        """Proposals first, then merged changes, in the order in which they landed."""
        return (*self.proposed, *map(self._patch, self.merged))

    def _patch(self, merged: Merged) -> Patch[R]:
        return Patch(
            name=merged.title,
            pull=merged.pull,
            perhaps=merged.perhaps,
            about=merged.about,
            fits=self._older(merged),
            lay=merged.laid,
            landed=merged.landed,
            back=partial(self._undone, merged),
            cures=merged.cures,
        )

    def rules(self, release: str) -> R:
        """The rules of a release."""
        rules = self.oldest
        for merged in self._until(release):
            rules = merged.laid(rules)
        return rules

    def _until(self, release: str) -> Iterator[Merged]:
        known = self.names[: self.names.index(release) + 1]
        return (merged for merged in self.merged if merged.landed in known)

    def _older(self, merged: Merged) -> tuple[str, ...]:
        """The releases before a change that it can be laid over."""
        first = self.names.index(merged.since) if merged.since else 0
        return self.names[first : self.names.index(merged.landed)]

    def _undone(self, merged: Merged, rules: R) -> R:
        """The rules without a change; refused if a later one depends on it."""
        at = self.merged.index(merged)
        changed = [path for path, value in merged.sets.items() if _field_of(rules, path) != value]
        if changed:
            later = [
                other.title
                for other in self.merged[at + 1 :]
                if any(path in other.sets for path in changed)
            ]
            raise ProfileError(f"{merged.title} cannot be taken back here: {_why(later)}")
        before = self.oldest
        for other in self.merged[:at]:
            before = other.laid(before)
        return _with_fields(rules, {path: _field_of(before, path) for path in merged.sets})


def _why(later: Sequence[str]) -> str:
    if not later:
        return "another patch has changed what it set"
    return f"take back {' and '.join(later)} first, which changed what it set"
