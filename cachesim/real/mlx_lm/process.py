"""A real release of mlx-lm in a process of its own: a line of JSON goes in, a line comes back."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.errors import CachesimError
from cachesim.real.environment import Environment, package_of
from cachesim.typed import Json


class RealMlxError(CachesimError):
    """The process with the real mlx-lm is gone."""


_STAND_IN: ContextVar[Mapping[str, str]] = ContextVar("stand_in", default=MappingProxyType({}))
"""Release -> the version of the package that is played in its place."""


@contextmanager
def played_by(release: str, version: str) -> Iterator[None]:
    """Have another version of the package answer where a release is asked for."""
    token = _STAND_IN.set({**_STAND_IN.get(), release: version})
    try:
        yield
    finally:
        _STAND_IN.reset(token)


def environment_for(release: str) -> Environment:
    """The environment that holds a release of mlx-lm on a CPU, or what stands in for it."""
    name, package = package_of(FAMILY, release)
    version = _STAND_IN.get().get(name, package.version)
    if version == package.version:
        return Environment(name=f"mlx-{name}", requirements=package.requirements)
    other = replace(package, version=version)
    return Environment(name=f"mlx-lm-{version}", requirements=other.requirements)


class RealProcess:
    """One of our workers, run by the interpreter that has the release installed."""

    def __init__(self, release: str, worker: Path, *, quiet: bool = False) -> None:
        """`quiet`: what the worker complains of is thrown away."""
        self.release = release
        self._process = subprocess.Popen(
            [str(environment_for(release).ready()), "-I", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
        )

    def order(self, line: object) -> Json:
        """Send one line, wait for the answer."""
        inbox, outbox = self._process.stdin, self._process.stdout
        if inbox is None or outbox is None:
            msg = f"mlx-lm {self.release} cannot be talked to"
            raise RealMlxError(msg)
        inbox.write(json.dumps(line) + "\n")
        inbox.flush()
        answer = outbox.readline()
        if not answer:
            msg = f"mlx-lm {self.release} ended in the middle of {json.dumps(line)[:300]}"
            raise RealMlxError(msg)
        return json.loads(answer)

    def __enter__(self) -> Self:
        """The process itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the worker by ending its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # busy machines take their time to end a thread
            self._process.kill()
