"""`cachesim completion`: scripts by which shells complete a command line."""

import sys
from typing import Literal

from cyclopts import App

from cachesim.cli.status import AS_EXPECTED


def completion_command(app: App, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the script of a shell."""
    sys.stdout.write(app.generate_completion(shell=shell).rstrip("\n") + "\n")
    return AS_EXPECTED
