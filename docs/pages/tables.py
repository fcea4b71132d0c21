"""Markdown in small pieces: tables, code, links to upstream."""

import re
from collections.abc import Iterable, Sequence

from cachesim.engines.family import family_of


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells become one line each."""
    lines = [_row(titles), _row(["---"] * len(titles)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def shape(text: str) -> str:
    """The accepted values, in few words."""
    text = re.sub(r"^a whole number from (\S+ to \S+)(?: \((\w+)\))?", r"\1 \2", text)
    text = re.sub(r"(-?\d[\d.]*) to (-?\d[\d.]*)", r"\1..\2", text)
    return re.sub(r"^(?:one of|a|an) ", "", text).replace("true or false", "boolean")


def code(text: str) -> str:
    """A name, a value, or nothing."""
    return f"`{text}`" if text else ""


def linked(text: str, engine: str) -> str:
    """Numbers of issues and proposals as links to where they were opened."""
    base = f"https://github.com/{family_of(engine).repository}/issues/"
    return re.sub(r"(?<![\w/])#(\d+)", rf"[#\1]({base}\1)", text)


def plain(text: str) -> str:
    """Prose from a docstring, with Markdown's markup escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[\]<>])", r"\\\1", part) for part in parts
    )
