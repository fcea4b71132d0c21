"""The wheels that carry llama.cpp's server: one version of a package for each build."""

import re
from dataclasses import dataclass
from typing import Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import ProfileError
from cachesim.lab.real.llama_cpp.workload import Release
from cachesim.lab.real.registry import versions_of

PACKAGE: Final = "xllamacpp"
_VERSION: Final = re.compile(r"\d{4}\.\d+\.(?P<build>\d+)(\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A build, and the version of the package that is it."""

    release: Release
    version: str

    @property
    def build(self) -> int:
        return int(self.release.removeprefix("b"))

    def __str__(self) -> str:
        return f"{self.release} ({PACKAGE} {self.version})"


def wheel_named(name: str) -> Wheel:
    """The wheel of a build (`b9713`), or of a version of the package (`2026.6.9713`)."""
    version = _VERSION.fullmatch(name)
    if version is not None:
        return Wheel(release=f"b{version['build']}", version=name)
    for each in FAMILY.releases:
        if name == each.name and each.package is not None:
            return Wheel(release=name, version=each.package.version)
    if re.fullmatch(r"b\d+", name):
        for wheel in _on_the_registry():
            if wheel.release == name:
                return wheel
    msg = (
        f"there is no wheel of llama.cpp {name!r}; write a build such as b9713 or a version of "
        f"{PACKAGE} such as 2026.6.9713; known are {', '.join(FAMILY.real())}"
    )
    raise ProfileError(msg)


def newest_wheel() -> Wheel:
    """The newest one that the registry has."""
    return _on_the_registry()[0]


def _on_the_registry() -> tuple[Wheel, ...]:
    shapes = ((version, _VERSION.fullmatch(version)) for version in versions_of(PACKAGE))
    return tuple(
        Wheel(release=f"b{shape['build']}", version=version) for version, shape in shapes if shape
    )
