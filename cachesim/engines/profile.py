"""A profile names an engine at one release, plus patches: `llama.cpp@b9538+24143`."""

import re
from dataclasses import dataclass, replace

from cachesim.engines.family import FAMILIES
from cachesim.errors import ProfileError

_SHAPE = re.compile(r"(?P<engine>[^@+]+)@(?P<release>[^@+]+)(?P<patches>(\+[^@+]+)*)")


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
        patches = tuple(part for part in shape["patches"].split("+") if part)
        family = FAMILIES.get(engine)
        current = release if family is None else family.current_name(release)
        return cls(engine, current, patches)

    def with_patches(self, *patches: str) -> "Profile":
        """The same release with further patches laid over it."""
        return replace(self, patches=(*self.patches, *patches))

    def __str__(self) -> str:
        return "+".join((f"{self.engine}@{self.release}", *self.patches))
