"""How far it is confirmed that a release answers wrongly: a label for each claim."""

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from cachesim.engines.family import Family
    from cachesim.engines.profile import Profile

Evidence: TypeAlias = Literal[
    "confirmed on the real engine", "derived from its runner's metadata", "source only, not run"
]

CONFIRMED: Final[Evidence] = "confirmed on the real engine"
"""The real engine gave the wrong answer."""

SOURCE: Final[Evidence] = "source only, not run"
"""The release's code says so; nothing of it computed an answer."""


def evidence_of(family: "Family[Any, Any]", profile: "Profile", issue: str = "") -> str:
    """The label of a release's wrong answer; empty for patched profiles, and where the real engine
    itself plays the answers.

    `issue` names the report that a scenario follows, and with it the defect.
    """
    if profile.patches or family.plays_answers:
        return ""
    known = (each for each in family.patches if each.cures and each.pull)
    named = [each for each in known if issue == f"{family.repository}#{each.pull}"]
    return named[0].evidence if named else SOURCE
