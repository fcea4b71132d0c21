"""Commands that other rooms bring: the real engines, the search, the benchmarks.

They are imported when they are called: a plain `cachesim run` pays for none of them.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

from cyclopts import App, Parameter

import cachesim
from cachesim.errors import InputError

MOUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "check": (
        "cachesim.cli.check:check",
        "Search random workloads for an answer that differs from the cold answer.",
    ),
    "hunt": (
        "cachesim.cli.hunt:hunt_command",
        "Search a release for wrong answers, prove them on the real engine, write reports.",
    ),
    "why": (
        "cachesim.cli.why:why",
        "Read a llama-server's log, explain every miss, and say what would have helped.",
    ),
    "tune": (
        "cachesim.cli.tune:tune",
        "Play a log's requests with other settings, and recommend the best.",
    ),
    "record": (
        "cachesim.cli.record:record",
        "Pass requests on to a server, record them, and say why each was reprocessed.",
    ),
    "replay": (
        "cachesim.cli.replay:replay_command",
        "Play a production trace on servers, and count what is reused and what is lost.",
    ),
    "sweep": (
        "cachesim.cli.sweep:sweep_command",
        "Play traces on a grid of servers and flags, over processes or machines.",
    ),
}
"""Commands by name: where they are, and what a list of all says of them."""


def mount(app: App, arguments: Sequence[str]) -> None:
    """Hang in what the arguments ask for; a list of all commands names each in any case."""
    real = App(name="real", help="Play the same requests on the real engines.")
    if arguments[:1] == ["real"]:
        commands = importlib.import_module("cachesim.lab.real.commands")
        real.command(real_gguf, name="gguf")
        for name, function in real_functions(commands).items():
            real.command(function, name=name)
    app.command(real)
    for name, (where, about) in MOUNTED.items():
        if arguments[:1] == [name]:
            app.command(where, name=name)  # its docstring says more, and has an example
        else:
            app.command(where, name=name, help=about)
    app.command(bench, name="bench", show=_benchmarks_folder() is not None)


def real_functions(commands: ModuleType) -> dict[str, Callable[..., int]]:
    """The commands of `cachesim real` that there are: an engine's is named for it."""
    from cachesim.engines import FAMILIES

    named = {name: "real_" + re.sub(r"\W", "_", name) for name in ("vectors", *FAMILIES)}
    return {
        name: getattr(commands, function)
        for name, function in named.items()
        if hasattr(commands, function)
    }


def real_gguf(
    preset: str,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    seed: int = 0,
    window: int = 0,
    adapter: Annotated[str, Parameter(help="Write this adapter of it instead, for --lora.")] = "",
) -> int:
    """Write the network of a preset as a GGUF file that the real server loads.

    Example: cachesim real gguf hybrid -o hybrid.gguf
    """
    commands = importlib.import_module("cachesim.lab.real.commands")
    done = commands.real_gguf(preset, output=output, seed=seed, window=window, adapter=adapter)
    return int(done)


def _benchmarks_folder() -> Path | None:
    folder = Path(cachesim.__file__).parent.parent / "benchmarks"
    return folder if (folder / "__main__.py").is_file() else None


def bench(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Measure speed, side by side with the real engines.

    Example: cachesim bench
    """
    folder = _benchmarks_folder()
    if folder is None:
        msg = "there are no benchmarks in an installed package; they are run in a source tree"
        raise InputError(msg)
    import subprocess

    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=folder.parent, check=False).returncode
