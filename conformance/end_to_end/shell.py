"""Lines for a shell, run as printed: `llama-server` is a wheel's own server and its own parser."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cachesim.prove.llama_cpp.server import environment_for
from conformance.end_to_end.program import PROGRAM
from conformance.servers import LLAMA_SERVER

SECONDS: Final = 240
PRINTED: Final = ("8080", "8081")
"""The ports of a report; where one is taken, free ones stand for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Result of some lines."""

    status: int
    out: str
    err: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The calls' answers, a mapping each; of several prompts in one call, each."""
        found: list[dict[str, Any]] = []
        for line in self.out.splitlines():
            if line.startswith(("{", "[")):
                told = json.loads(line)
                found += told if isinstance(told, list) else [told]
        return found


def run_lines(lines: Sequence[str], release: str, folder: Path) -> Shell:
    """Run lines in a folder, with `cachesim` and the server of a release to be found."""
    python = environment_for(release).ready()
    shims = folder / "bin"
    shims.mkdir(exist_ok=True)
    shim = shims / "llama-server"
    shim.write_text(
        f'#!/bin/sh\nGGML_NO_BACKTRACE=1 exec "{python}" "{LLAMA_SERVER}" "$@"\n', encoding="utf-8"
    )
    shim.chmod(0o755)
    text = "\n".join(lines)
    if any(is_taken(int(port)) for port in PRINTED):
        for port, free in zip(PRINTED, free_ports(), strict=True):
            text = re.sub(rf"\b{port}\b(?=[ /])", free, text)
    path = f"{shims}:{PROGRAM.parent}:{os.environ['PATH']}"
    with (folder / "stderr").open("w") as errors, subprocess.Popen(
        ["bash", "-u"],
        cwd=folder, env={**os.environ, "PATH": path}, stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            out, _ = shell.communicate(f"{text}\nkill $(jobs -p) 2> /dev/null\n", timeout=SECONDS)
        finally:
            with_children_ended(shell.pid)
    return Shell(status=shell.returncode, out=out, err=(folder / "stderr").read_text())


def with_children_ended(group: int) -> None:
    """End what the shell has started and left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_taken(port: int) -> bool:
    """True if a server listens there."""
    with socket.socket() as each:
        return each.connect_ex(("127.0.0.1", port)) == 0


def free_ports() -> tuple[str, ...]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return tuple(str(each.getsockname()[1]) for each in (one, other))


def printed_lines(report: str) -> list[str]:
    _, _, behind = report.partition("\nOn llama-servers of your own")
    block = behind.partition("\n\n")[2].partition("\n\n")[0]
    return [line.removeprefix("    ") for line in block.splitlines()]
