"""A real release of mlx-lm in a process of its own: a line of JSON goes in, a line comes back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.prove.environment import Environment, package_of
from cachesim.prove.worker_process import ModuleProcess

_STAND_IN: ContextVar[Mapping[str, str]] = ContextVar("stand_in", default=MappingProxyType({}))
"""Release -> the version of the package that is run in its place."""


@contextmanager
def played_by(release: str, version: str) -> Iterator[None]:
    """Use another version of the package in place of a release."""
    token = _STAND_IN.set({**_STAND_IN.get(), release: version})
    try:
        yield
    finally:
        _STAND_IN.reset(token)


def environment_for(release: str) -> Environment:
    """The environment that holds a release of mlx-lm on a CPU, or what stands in for it."""
    name, own = package_of(FAMILY, release)
    _, package = package_of(FAMILY, release, _STAND_IN.get().get(name, ""))
    folder = f"mlx-{name}" if package == own else f"mlx-lm-{package.version}"
    return Environment(name=folder, requirements=package.requirements)


class RealProcess(ModuleProcess):
    """A worker process, run by the interpreter that has the release installed."""

    def __init__(self, release: str, worker: str) -> None:
        """`worker`: the module that runs there."""
        python = environment_for(release).ready()
        super().__init__(f"mlx-lm {release}", python, worker)
