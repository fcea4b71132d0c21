"""Flags that a release's server has, and models that it loads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.lab.real.llama_cpp.workload import Release

PRESETS: Final[Mapping[str, int]] = {
    "dense": 0,
    "swa": 0,
    "recurrent": 0,
    "hybrid": 0,
    "hybrid-delta": 0,
    "hybrid-swa": 0,
    "hybrid-mtp": 9294,
}
"""Preset -> the first build whose server loads such a model as what it is."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The flags and presets of one release's server."""

    release: Release

    def has(self, flag: str) -> bool:
        """True where the server has such a flag; a new build has those of the one before."""
        return nearest_release(self.release) in FAMILY.having(FAMILY.option(flag))

    @property
    def presets(self) -> tuple[str, ...]:
        build = _build_of(self.release)
        return tuple(preset for preset, first in PRESETS.items() if first <= build)


def _build_of(release: Release) -> int:
    return int(release.removeprefix("b"))


def nearest_release(release: Release) -> Release:
    """The known release that describes a build best: the last one until then, else the first."""
    until = [name for name in FAMILY.names() if _build_of(name) <= _build_of(release)]
    return until[-1] if until else FAMILY.names()[0]
