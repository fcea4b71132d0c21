"""Environments of Transformers' releases."""

import re
from typing import Final

from cachesim.errors import OptionError
from cachesim.lab.real.environment import Environment

NEWEST: Final = "5.24.0"
RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")

OLDER: Final = (((5, 15, 0), "huggingface_hub<2"), ((5, 21, 0), "psutil"))
"""What releases before another need beside them; psutil for continuous batching on a CPU."""


BACKENDS: Final = ("optimum-quanto", "hqq")
"""Backends of quantised caches."""


def environment_for(release: str, *, serves: bool = False, quantises: bool = False) -> Environment:
    """The environment of a release.

    `serves`: with what `transformers serve` needs; `quantises`: with backends of quantised caches.
    """
    if not RELEASE.fullmatch(release):
        msg = f"--release {release!r} is no release of transformers; write one as {NEWEST}"
        raise OptionError(msg)
    numbers = tuple(map(int, release.split(".")))
    more = (package for first, package in OLDER if numbers < first)
    name, extra = ("transformers-serve", "[serving]") if serves else ("transformers", "")
    name = f"{name}-quantised" if quantises else name
    backends = BACKENDS if quantises else ()
    packages = ("torch==2.13.0", f"transformers{extra}=={release}", *more, *backends)
    return Environment(name=f"{name}-{release}", requirements=packages)
