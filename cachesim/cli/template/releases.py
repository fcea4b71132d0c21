"""The releases, oldest first, and their rules."""

from cachesim.engines.family import Release

from .rules import Rules

RELEASES = (Release(name="1.0", about="the first release", rules=Rules()),)
