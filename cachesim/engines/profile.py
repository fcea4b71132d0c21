"""A profile names an engine at one release, plus patches: `llama.cpp@b9538+24143`.

What was merged can be taken back as well: `llama.cpp@b11549-28302`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cachesim.engines.family import FAMILIES
from cachesim.errors import ProfileError

_SHAPE = re.compile(r"(?P<engine>[^@+]+)@(?P<release>[^@+]+)(?P<patches>(\+[^@+]+)*)")
_BACK = re.compile(r"(?P<rest>[^@+]+?)(?P<back>(-\d+)+)")
"""A name, and what is taken back after it: only numbered patches were merged."""


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine at one release, with the patches laid over it in order."""

    engine: str
    release: str
    patches: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """Read `engine@release+patch+patch`; older names of a release become the current one."""
        shape = _SHAPE.fullmatch(text.strip())
        if shape is None:
            msg = (
                f"{text!r} is not a profile: write ENGINE@RELEASE+PATCH, like llama.cpp@b9538+24143"
            )
            raise ProfileError(msg)
        engine, release = shape["engine"], shape["release"]
        family = FAMILIES.get(engine)
        named = () if family is None else (*family.names(), *(each.name for each in family.patches))
        release, *patches = _apart(release, named)
        for each in shape["patches"].split("+")[1:]:
            patches += _apart(each, named)
        current = release if family is None else family.current_name(release)
        return cls(engine, current, tuple(patches))

    def with_patches(self, *patches: str) -> "Profile":
        """The profile with further patches."""
        return replace(self, patches=(*self.patches, *patches))

    def __str__(self) -> str:
        signed = (each if each.startswith("-") else f"+{each}" for each in self.patches)
        return "".join((f"{self.engine}@{self.release}", *signed))


def _apart(text: str, named: Sequence[str]) -> list[str]:
    """A name, and the patches taken back after it, with their signs: `b11549-28302`."""
    parts = _BACK.fullmatch(text)
    if parts is None or text in named:
        return [text]
    return [parts["rest"], *re.findall(r"-\d+", parts["back"])]
