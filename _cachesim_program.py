"""Where the installed program begins: Ctrl-C is answered before anything of the package is loaded.

It lies outside the package, whose own loading takes longer than most who press it wait.
"""

import os
import signal


def leave(_number: int, _frame: object) -> None:
    """Nothing has begun, so there is nothing to put in order."""
    os.write(2, b"cachesim: interrupted\n")
    os._exit(130)


def main() -> int:
    """Load the program and run it; it answers Ctrl-C itself from then on."""
    signal.signal(signal.SIGINT, leave)
    from cachesim.cli.main import main as program

    return program()
