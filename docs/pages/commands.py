"""The commands: the help text that each prints."""

import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

from cachesim.cli.app import COMMANDS
from cachesim.cli.main import main

INTRODUCTION = """\
# Commands

`cachesim COMMAND --help` explains each flag, and `cachesim real ENGINE --help` what each comparison
with a real engine can do. `python -m cachesim` is the same program. Results go to standard output,
everything else to standard error. `NO_COLOR`, pipes and narrow terminals work.

| status | meaning |
|---|---|
| 0 | all as expected |
| 1 | an unexpected wrong answer, a failed check, or two sides differ |
| 2 | wrong usage, or a wrong file |
| 3 | cachesim broke a contract of its own: please report it |
| 4 | nothing was tested that could have failed, because something was missing, which is named |
| 130 | interrupted |
"""


def page() -> str:
    """All commands, one after the other; those of `real` print their own help."""
    return "\n\n".join([INTRODUCTION, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for name in COMMANDS:
        text = help_of(name)
        if text:
            about = re.split(r"\n (?:Arguments|Parameters|Commands)\n", text)[0].strip()
            flags = ", ".join(
                dict.fromkeys(re.findall(r"^ +(?:\*  )?(--[\w-]+)", text, re.MULTILINE))
            )
            yield f"## cachesim {name}\n\n```text\n{about}\n```"
            yield f"Flags: {flags}"


def help_of(*words: str) -> str:
    """The output of `--help`; nothing where the command is not installed."""
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "96"
    try:
        with redirect_stdout(printed):
            status = main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return _plain(printed.getvalue()) if status == 0 else ""


def _plain(text: str) -> str:
    """Help without the frames of its boxes and the list of exit statuses, which is above."""
    kept = text.partition("Exit status:")[0]
    lines = [re.sub(r"^[│╭╰]─?|[─│╮╯ ]+$", "", line) for line in kept.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines)).strip()
