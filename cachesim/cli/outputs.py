"""Files that flags of a command name, opened before its work and written after it."""

from pathlib import Path

from rich.text import Text

from cachesim.files import Output
from cachesim.report.consoles import notes, show


def output_at(path: Path | None, flag: str, kind: bytes = b"") -> Output | None:
    """The file that a flag names, if it is given, checked before any work is done for it."""
    return None if path is None else Output.at(path, flag, kind)


def write(output: Output, text: str) -> None:
    """Write what a flag asked for; its name goes to standard error."""
    output.write(text)
    show(notes(), Text(f"{output.flag[2:]}: {output.path}"))
