"""Patterns that read what users and servers wrote take a time that grows with the text alone.

A pattern that goes on without a bound and then fails is tried again at each character: a line of
70,000 characters is read 70,000 times. Each part of each pattern is pumped here.
"""

import ast
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from re import _constants as kinds
from re import _parser
from typing import Any

import pytest

import cachesim
from cachesim.why import from_report
from cachesim.why.infer import settings

SHORT, LONG = 1_000, 8_000
"""Characters of a text: 8 times as many may take 8 times as long, never 64 times."""

ENOUGH = 0.01
"""Seconds of processor time below which nothing is measured; a linear pattern takes 0.5 ms."""

REPEATS = (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT)
LEFT_OUT = ("conformance.real", "cachesim.prove", "cachesim.learn", "cachesim.cli.template")
"""Modules that read what this program wrote itself, or that run in other environments."""


def sample(parsed: Any) -> str:
    """A text that a part of a pattern matches, roughly."""
    text = ""
    for kind, value in parsed:
        if kind is kinds.LITERAL:
            text += chr(value)
        elif kind is kinds.NOT_LITERAL:
            text += "x" if value != ord("x") else "y"
        elif kind is kinds.ANY:
            text += "x"
        elif kind is kinds.IN:
            text += one_of(value)
        elif kind in REPEATS:
            text += sample(value[2]) * max(1, value[0])
        elif kind is kinds.SUBPATTERN:
            text += sample(value[-1])
        elif kind is kinds.BRANCH:
            text += sample(value[1][0])
    return text


def one_of(choices: Any) -> str:
    """A character of a set."""
    shape = re.compile("[" + "".join(map(spelled, choices)) + "]")
    candidates = "a1 x-./:=A_\t{[\"'`|,\n" + "".join(map(chr, range(33, 127)))
    return next((candidate for candidate in candidates if shape.fullmatch(candidate)), "")


def spelled(choice: tuple[Any, Any]) -> str:
    kind, value = choice
    if kind is kinds.NEGATE:
        return "^"
    if kind is kinds.RANGE:
        return "-".join(re.escape(chr(each)) for each in value)
    if kind is kinds.CATEGORY:
        name = str(value).rpartition("_")[2].lower()
        letter = {"digit": "d", "space": "s", "word": "w"}[name]
        return "\\" + (letter.upper() if "NOT" in str(value) else letter)
    return re.escape(chr(value))


def pumps(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What stands before a part that repeats without a bound, and one turn of it."""
    for at, (kind, value) in enumerate(parsed):
        lead = before + sample(parsed[:at])
        if kind in REPEATS:
            if value[1] is kinds.MAXREPEAT or value[1] > SHORT:
                yield lead, sample(value[2])
            yield from pumps(value[2], lead)
        elif kind is kinds.SUBPATTERN:
            yield from pumps(value[-1], lead)
        elif kind is kinds.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, lead)


def texts(pattern: re.Pattern[Any], size: int) -> Iterator[Any]:
    """Texts that a part of the pattern matches for long, while the whole one fails at the end."""
    shape = pattern.pattern
    parsed = _parser.parse(shape, pattern.flags & ~re.DEBUG)
    for lead, turn in pumps(parsed):
        for one in {turn, lead + turn}:
            text = lead + one * (size // max(1, len(one))) + "\0" if one else ""
            yield text.encode("latin-1", "replace") if isinstance(shape, bytes) else text


def seconds(pattern: re.Pattern[Any], text: Any, *, searched: bool) -> float:
    began = time.process_time()
    if searched:
        pattern.search(text)
    else:
        pattern.match(text)
    return time.process_time() - began


@cache
def calls() -> dict[str, set[str]]:
    """The methods that the program calls on each name."""
    methods: dict[str, set[str]] = defaultdict(set)
    for path in Path(cachesim.__path__[0]).rglob("*.py"):
        for name, method in re.findall(r"\b(\w+)(?=\.(\w+))", path.read_text(encoding="utf-8")):
            methods[name].add(method)
    return methods


def is_searched(name: str) -> bool:
    """True for a pattern that is tried at each character, not at the start of a text alone."""
    called = calls().get(name)
    return called is None or not called <= {"match", "fullmatch"}


def inside(value: Any) -> Iterator[re.Pattern[Any]]:
    """The patterns of a table."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from inside(each)
    elif hasattr(value, "shape"):
        yield from inside(value.shape)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """All patterns of the program's modules, and those that are written as texts."""
    for found in walk_packages(cachesim.__path__, "cachesim."):
        if found.name.startswith(LEFT_OUT) or found.name.endswith(("__main__", "_worker")):
            continue
        try:
            names = vars(import_module(found.name))
        except ImportError:  # an extra
            continue
        for name, value in names.items():
            for each in inside(value):
                yield f"{found.name}.{name}", each, is_searched(name)
    for name, value in vars(from_report).items():
        if name.isupper():
            for shape in value if isinstance(value, tuple) else (value,):
                if isinstance(shape, str):
                    yield f"from_report.{name}", re.compile(shape, re.IGNORECASE), True
    for kind, shape in settings.ARCHITECTURES:
        yield f"settings.ARCHITECTURES[{kind}]", re.compile(shape), True


def inline() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """The patterns that are written where they are used; what is put into one is a letter."""
    for path in sorted(Path(cachesim.__path__[0]).rglob("*.py")):
        module = ".".join(
            ("cachesim", *path.relative_to(cachesim.__path__[0]).with_suffix("").parts)
        )
        if module.startswith(LEFT_OUT):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=name),
                    args=[ast.Constant() | ast.JoinedStr() as shape, *_],
                ) if name not in {"escape", "compile"}:
                    parts = shape.values if isinstance(shape, ast.JoinedStr) else [shape]
                    text = "".join(
                        part.value if isinstance(part, ast.Constant) else "x" for part in parts
                    )
                    searched = name not in {"match", "fullmatch"}
                    yield f"{module}:{node.lineno}", re.compile(text), searched


def grows_with_the_text_alone(pattern: re.Pattern[Any], *, searched: bool) -> bool:
    for short, long in zip(texts(pattern, SHORT), texts(pattern, LONG), strict=True):
        if seconds(pattern, long, searched=searched) > ENOUGH:
            taken, least = (
                min(seconds(pattern, text, searched=searched) for _ in range(3))
                for text in (long, short)
            )
            if taken >= 24 * max(1e-4, least):
                return False
    return True


def test_each_pattern_takes_a_time_that_grows_with_the_text_alone() -> None:
    written = [*inline()]
    modules = {name.partition(":")[0] for name, _, _ in written}

    assert {"cachesim.why.from_report", "cachesim.probe.target"} <= modules
    assert [] == [
        (name, pattern.pattern)
        for name, pattern, searched in (*patterns(), *written)
        if not grows_with_the_text_alone(pattern, searched=searched)
    ]


@pytest.mark.parametrize("shape", [r"\w+;", r"[^\n]*\bserver\b"])
def test_a_pattern_that_grows_faster_is_found(shape: str) -> None:
    assert not grows_with_the_text_alone(re.compile(shape), searched=True)
