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

`cachesim COMMAND --help` prints what stands here. `python -m cachesim` is the same program.
Results go to standard output, everything else to standard error; `NO_COLOR`, pipes and narrow
terminals work. Options with the same words as above are only named. `cachesim real ENGINE --help`
prints what each comparison with a real engine can do.

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
    shown: set[str] = set()
    for name in COMMANDS:
        text = _without_repeats(help_of(name), shown)
        if text:
            yield f"## cachesim {name}\n\n```text\n{text}\n```"


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


def _without_repeats(text: str, shown: set[str]) -> str:
    """Help in which options already on the page, word by word, are named in one line."""
    entries = re.split(r"\n(?= {1,4}(?:\*  )?-)", text)
    kept, named = entries[:1], []
    for each in entries[1:]:
        entry, gap, rest = each.partition("\n\n")
        known = " ".join(entry.split())
        if known in shown:
            named.append(known.split()[0])
        else:
            shown.add(known)
            kept.append(entry)
        if gap:
            kept[-1] += gap + rest
    return "\n".join([*kept, *([f"\n As above: {', '.join(named)}"] if named else [])])


def _plain(text: str) -> str:
    """Help without the frames of its boxes and the list of exit statuses, which is above."""
    kept = text.partition("Exit status:")[0]
    lines = [re.sub(r"^[│╭╰]─?|[─│╮╯ ]+$", "", line) for line in kept.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines)).strip()
