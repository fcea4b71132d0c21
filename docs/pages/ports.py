"""Ported functions and oddities, from what the docstrings and comments of the engines say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pages.source import PACKAGE, comments, documented, folders, strings
from pages.tables import code, plain, table

FOLLOWS: Final = re.compile(r"\b(?:Follows|Ports|the port of)\b[^.]*?`[^`]+`[^.]*")
NAMED: Final = re.compile(
    r"\(`([\w:~.]*(?:_|::|\.)[\w:~.]*|alloc)`"  # (`llama_batch_allocr::init`)
    r"|`((?:llama|common|server)_[\w:]+|update_slots)`"
    r"|\((llama_[\w:]+)\)"
)
"""The ways in which a docstring names the function that it follows."""

TRAP: Final = re.compile(r"\bTraps?\b(?: of [^:]*)?:.*", re.DOTALL)
REMARK: Final = re.compile(r"\s*[(;,]?\s*\(?an oddity[^).]*\)?", re.IGNORECASE)

FUNCTIONS = """\
# Ported functions

A function or class that follows one of upstream's says so in its docstring; this table is made of
those docstrings. Names and the order of branches are upstream's, so that both can be laid side by
side.
"""

ODDITIES = """\
# Oddities

What the real servers do and probably do not mean to do. They are kept, named and tested, never
repaired in silence: a simulator that is better than the real thing would be of no use. The list
is made of the sentences that the source marks as traps or oddities.
"""


def functions_page() -> str:
    """Every function that names the one it follows."""
    blocks = [FUNCTIONS]
    for engine, folder in folders().items():
        blocks += [f"## {engine}", table(("upstream", "here", "what it does"), _functions(folder))]
    return "\n\n".join(blocks) + "\n"


def _functions(folder: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(folder.rglob("*.py")):
        for name, text in documented(path):
            names = ", ".join(map(code, upstream_names(text)))
            if names:
                yield names, _place(path, name), plain(_summary(text))


def upstream_names(text: str) -> list[str]:
    """The functions of upstream's that a docstring names."""
    found = FOLLOWS.search(text)
    if found:
        return re.findall(r"`([^`]+)`", found[0])
    named = NAMED.search(text.split("\n\n", maxsplit=1)[0])
    return [next(filter(None, named.groups()))] if named else []


def _summary(text: str) -> str:
    """The first sentence of a docstring that says more than what it follows."""
    first, _, second = text.partition("\n\n")
    rest = FOLLOWS.sub("", first).strip(" .\n")
    words = first if not FOLLOWS.search(first) else rest or second.split("\n\n", maxsplit=1)[0]
    is_prose = "  " not in words and not words.startswith("Trap")
    return words if is_prose else ""


def oddities_page() -> str:
    """Every trap."""
    blocks = [ODDITIES]
    for engine, folder in folders().items():
        blocks += [f"## {engine}", table(("oddity", "where"), _oddities(folder))]
    return "\n\n".join(blocks) + "\n"


def _oddities(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py")):
        for name, text in (*documented(path), *strings(path), *comments(path)):
            for told in oddities_of(text):
                yield plain(told), _place(path, name)


def oddities_of(text: str) -> Iterator[str]:
    """From "Trap:" to the end of a paragraph, or the one sentence with a mark at its end."""
    for paragraph in text.split("\n\n"):
        trap = TRAP.search(paragraph)
        if trap:
            yield _sentence(re.sub(r"^Traps?(: | of (the )?)", "", trap[0]))
            continue
        if "   " in paragraph:  # a glossary, or a picture
            continue
        for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(paragraph.split())):
            if REMARK.search(sentence) and "oddities" not in sentence:
                yield _sentence(REMARK.sub("", sentence))


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _place(path: Path, name: str) -> str:
    here = f"{path.relative_to(PACKAGE / 'engines')}: {name}"
    return code(here.removesuffix(": "))
