"""On which line of a TOML file each key stands, so that an error names the line.

The text has been parsed already: here only its shape is followed.

    [model]            ("model",)
    preset = "dense"   ("model", "preset")
    [[step]]           ("step", 0)
    prompt = "S"       ("step", 0, "prompt")
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from cachesim.scenario.readers import Place

_PART: Final = r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
HEADER: Final = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
ASSIGNED: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
PIECE: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[\]{}\n]''',
    re.DOTALL,
)
"""What can end a value, or hide its end."""


def lines_of(text: str) -> Mapping[Place, int]:
    """The line of every table and key, counted from 1."""
    starts = [0, *(each.end() for each in re.finditer(r"\n", text))]
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    at = 0
    while at < len(text):
        line = bisect_right(starts, at)
        header, assigned = HEADER.match(text, at), ASSIGNED.match(text, at)
        if header:
            table = _table(parts_of(header[2]), counts, is_list=header[1] == "[[")
            found.setdefault(table, line)
            at = header.end()
        elif assigned:
            path = (*table, *parts_of(assigned[1]))
            for end in range(len(table) + 1, len(path) + 1):
                found.setdefault(path[:end], line)
            at = assigned.end()
        at = _end_of_value(text, at)
    return found


def _table(parts: Place, counts: dict[Place, int], *, is_list: bool) -> Place:
    """The table that a header opens; a list's name stands for its last table."""
    path: Place = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if is_list and index == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _end_of_value(text: str, at: int) -> int:
    depth = 0
    for piece in PIECE.finditer(text, at):
        if piece[0] in "[{":
            depth += 1
        elif piece[0] in "]}":
            depth -= 1
        elif piece[0] == "\n" and depth <= 0:
            return piece.end()
    return len(text)


def parts_of(key: str) -> Place:
    """The names of a dotted key, without their quotes."""
    return tuple(each.strip("\"'") for each in re.findall(_PART, key))


def line_of(path: Place, lines: Mapping[Place, int]) -> int | None:
    """The line of a value, or of what it stands in."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None
