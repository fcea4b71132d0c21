"""What was merged between the releases: each pull request with the rule fields it set.

b8672 --- pull --- pull ---> b8929 --- pull ---> ...

A release's rules are those of the oldest with everything laid over them that had landed by then. So
each pull request can be laid over an older release, and taken back from a younger one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.release import Rules
from cachesim.errors import ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One change that was merged: `sets` names fields as `reuse.search_limit`."""

    about: str
    landed: str  # the first release that has it
    sets: Mapping[str, Rules]
    pull: int = 0  # 0: it is not known which one
    perhaps: tuple[int, ...] = ()  # pull requests that may have been it, where none is confirmed
    name: str = ""  # where one pull request has another name, or none
    cures: str = ""  # the wrong answers that there were before, by their cause

    @property
    def title(self) -> str:
        """What a profile calls it; empty where nothing tells one change from the others."""
        return self.name or (str(self.pull) if self.pull else "")

    def laid(self, rules: ServerRules) -> ServerRules:
        """The rules with this change."""
        return with_fields(rules, self.sets)


def with_fields(rules: ServerRules, fields: Mapping[str, Rules]) -> ServerRules:
    """The rules with some fields set."""
    for path, value in fields.items():
        part, _, field = path.partition(".")
        rules = replace(rules, **{part: replace(getattr(rules, part), **{field: value})})
    return rules


def field_of(rules: ServerRules, path: str) -> Rules:
    """What the rules say in one field."""
    part, _, field = path.partition(".")
    return getattr(getattr(rules, part), field)


@dataclass(frozen=True, slots=True)
class History:
    """The oldest release's rules, and what landed since, oldest first."""

    oldest: ServerRules
    merged: tuple[Merged, ...]
    releases: tuple[str, ...]

    def rules(self, release: str) -> ServerRules:
        """The rules of a release."""
        rules = self.oldest
        for each in self.until(release):
            rules = each.laid(rules)
        return rules

    def until(self, release: str) -> Iterator[Merged]:
        """What had landed by a release."""
        known = self.releases[: self.releases.index(release) + 1]
        return (each for each in self.merged if each.landed in known)

    def before(self, merged: Merged) -> Mapping[str, Rules]:
        """What the fields of a change were when it landed."""
        rules = self.oldest
        for each in self.merged[: self.merged.index(merged)]:
            rules = each.laid(rules)
        return {path: field_of(rules, path) for path in merged.sets}

    def undone(self, merged: Merged, rules: ServerRules) -> ServerRules:
        """The rules without a change; refused where a later one was built on it."""
        changed = [path for path, value in merged.sets.items() if field_of(rules, path) != value]
        if changed:
            later = [
                each.title
                for each in self.merged[self.merged.index(merged) + 1 :]
                if any(path in each.sets for path in changed)
            ]
            msg = f"{merged.title} cannot be taken back here: {_why(later)}"
            raise ProfileError(msg)
        return with_fields(rules, self.before(merged))

    def older(self, merged: Merged) -> tuple[str, ...]:
        """The releases over which a change can be laid."""
        return self.releases[: self.releases.index(merged.landed)]


def _why(later: Sequence[str]) -> str:
    if not later:
        return "another patch has changed what it set"
    return f"take back {' and '.join(later)} first, which changed what it set"
