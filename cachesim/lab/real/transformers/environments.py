"""Environments of Transformers' releases."""

import re
from typing import Final

from cachesim.errors import OptionError
from cachesim.lab.real.environment import Environment

NEWEST: Final = "5.24.0"
RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")

OLDER_HUB: Final = ("huggingface_hub<2",)
"""What releases before 5.15 need beside them."""


def environment_for(release: str) -> Environment:
    """The environment of a release."""
    if not RELEASE.fullmatch(release):
        msg = f"--release {release!r} is no release of transformers; write one as {NEWEST}"
        raise OptionError(msg)
    older = tuple(map(int, release.split("."))) < (5, 15, 0)
    packages = ("torch==2.13.0", f"transformers=={release}", *(OLDER_HUB if older else ()))
    return Environment(name=f"transformers-{release}", requirements=packages)
