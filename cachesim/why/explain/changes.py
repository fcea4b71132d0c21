"""What a changed text is: a clock, a counter, a working directory, recalled memories.

earlier   Working directory: /home/a      the label before the change, the tag and the heading
later     Working directory: /home/b      around it, and the changed words themselves tell
                                   ^ at
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

AROUND: Final = 24
"""Characters of a changed word that are shown, and of the text around it that are searched."""

FAR: Final = 10_000
"""Distance from which two plain numbers are no counter."""


def _names(text: str) -> set[str]:
    """Names with their abbreviations: `november`, `nov`, `nove`."""
    return {name[:length] for name in text.split() for length in (3, 4, len(name))}


@dataclass(frozen=True, slots=True)
class Topic:
    """What a text is about, by its label or by the words of its sentence."""

    kind: str
    line: re.Pattern[str]
    label: re.Pattern[str]
    prose: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Labels:
    """The words and patterns of `labels.toml`."""

    date_words: frozenset[str]
    short_days: frozenset[str]  # `Mo`, `Di`: the first of the two letters is a capital one
    clock: re.Pattern[str]
    model: re.Pattern[str]
    topics: tuple[Topic, ...]


@cache
def labels() -> Labels:
    """The labels, read where a prompt is first compared: a log has no texts, and needs none."""
    told = tomllib.loads(Path(__file__).with_name("labels.toml").read_text("utf-8"))
    months = _names(told["months"])
    month = "|".join(sorted(months, key=len, reverse=True))

    def pattern(parts: Sequence[str]) -> re.Pattern[str]:
        return re.compile("|".join(parts).replace("MONTH", month), re.IGNORECASE)

    return Labels(
        date_words=frozenset(_names(told["days"]) | months | set(told["parts"].split())),
        short_days=frozenset(name[:2] for name in told["days"].split()),
        clock=pattern(told["clocks"]),
        model=pattern(told["models"]),
        topics=tuple(
            Topic(
                topic["kind"],
                *(pattern(topic.get(key, ["(?!)"])) for key in ("line", "label", "prose")),
            )
            for topic in told["topics"]
        ),
    )


NEAR: Final = 12
"""Characters beside a clock within which a number is part of it: `22 November 2026`."""

TOKEN: Final = re.compile(r"[0-9A-Fa-f-]{5,}|(?=\w*\d)[A-Za-z0-9_]{12,}")
DIGIT: Final = re.compile(r"\d")
WORD: Final = re.compile(r"[\w:./+-]+")
STOPS: Final = ".,:/+-"
"""Characters that end a sentence or a clause, and are not part of the preceding word."""

PIECES: Final = re.compile(r"[\w-]+"), re.compile(r"\w+")
"""Shapes of an identifier inside a longer word, such as a path."""

NUMBER: Final = re.compile(r"(?<![\w.,])(?<!\w-)(\d[\d.,]*)(%|[^\W\d_]{0,3}(?![\w-]))")
VERSION: Final = re.compile(r"(?<![\w.])v?\d+(?:\.\d+){2,3}(?:[-.+]\w+)*")


KEPT: Final = frozenset(
    (
        *("clock", "git-status", "editor-state", "file-list", "working-directory"),
        *("billing-header", "reading", "examples", "model-name"),
    )
)
"""Topics of which a number is a part; the numbers of others are counters."""

SHAPES: Final = (
    (
        "file-list",
        re.compile(
            r"\s{0,80}[│├└].*|[-*\s]{0,80}(?:[\w.@-]{1,80}/){0,20}[\w@-]{1,80}\.[a-z]\w{0,4}"
        ),
    ),
    (
        "git-status",
        re.compile(
            r"\s{0,80}(?:[MADRCU]{1,2}|\?\?|(?=[a-f]{0,39}\d)[0-9a-f]{7,40}) \S.*"
            r"|\(?clean\)?|nothing to commit.*"
        ),
    ),
    (
        "todo",
        re.compile(
            r"[-*\d.\s]{0,80}(?:\[(?:[ xX~-]|pending|completed|in[_ ]progress|done|open)\]|"
            r"[☐☑✅⬜]).*"
        ),
    ),
    ("lore", re.compile(r"\[[A-Z][\w '-]{1,40}: .{10,}\]")),
)
"""Lines that tell by themselves what they are, in both requests."""

PATH: Final = re.compile(r"[\"'`(]?(?:~?/|[A-Z]:[\\/])\S+")
UNBROKEN: Final = re.compile(r"\S+")
KEY: Final = re.compile("([^\\W\\d_][\\w '/-]{1,40})[*\"']*\\s*[:\uff1a=(]")
TAG: Final = re.compile(r"<(/?)([A-Za-z][\w:-]{0,40})[^<>\n]{0,200}>")
HEADING: Final = re.compile(
    r"\s*(?:#+|\*\*|=+|-{2,})\s*(\S.*)|(\S.{0,80}):\s*|([A-Z][A-Z _-]{3,40})"
    r"|\[([A-Z][\w '&/-]{2,60})\]"
)
SENTENCE: Final = re.compile(r"(?<=[.!?。|])\s+|\n")
ABOVE: Final = 4_000
"""Characters before a change in which its heading is looked for."""

LEVELS: Final = 7
"""More than the depth of any heading."""

MOST_LINES: Final = 60
BEFORE, AFTER = 22, 26
"""Characters shown before and after the beginning of a change: a line of the live view."""


def excerpt(text: str, at: int) -> str:
    """The text around a character, cut to a word."""
    if not text:
        return ""
    start = at
    while start > 0 and at - start < AROUND and WORD.fullmatch(text[start - 1]):
        start -= 1
    found = WORD.match(text, start)
    word = found.group().rstrip(STOPS) if found else ""
    end = max(at + 1, start + len(word))
    return text[start : min(end, start + 2 * AROUND)]


def line_around(text: str, at: int) -> str:
    """The line of a character, cut, as a terminal shows it."""
    start = max(text.rfind("\n", 0, at) + 1, at - BEFORE)
    end = text.find("\n", at) if "\n" in text[at:] else len(text)
    shown = text[start : min(end, at + AFTER)]
    if not shown:
        return ""
    first = "…" if start > 0 and text[start - 1] != "\n" else ""
    last = "…" if end > at + AFTER else ""
    return (
        first + "".join(letter if letter.isprintable() else " " for letter in shown).strip() + last
    )


def named(then: str, now: str, at: int, *, is_clients: bool) -> str:
    """The kind of a change that the words tell; empty for none.

    `is_clients`: no user writes there, so the labels around it are the client's.
    """
    if at > min(len(then), len(now)):
        return ""  # only hashes are known
    words = excerpt(then, at), excerpt(now, at)
    if all(_is_clock(text, at, word) for text, word in zip((then, now), words, strict=True)):
        return "clock"
    if is_clients and words[0] != words[1] and all(map(_is_date_word, words)):
        return "clock"
    if _is_in_code(now, at):
        return "file-contents"
    if is_clients and all(labels().model.match(_piece(UNBROKEN, text, at)) for text in (then, now)):
        return "model-name"
    topic = _topic(then, now, at) if is_clients else ""
    if topic not in KEPT and _is_count(_number(then, at), _number(now, at)):
        return "counter"
    if topic:
        return topic
    if all(_at(VERSION, text, at) for text in (then, now)):
        return "version"
    for shape in PIECES:
        one, other = _piece(shape, then, at), _piece(shape, now, at)
        if TOKEN.fullmatch(one) and TOKEN.fullmatch(other) and DIGIT.search(one + other):
            return "identifier"
    paths = (PATH.match(_piece(UNBROKEN, text, at)) for text in (then, now))
    if not is_clients:
        return ""
    begins = (text[text.rfind("\n", 0, at) + 1 : at + 1] for text in (then, now))
    persona = all(line.startswith("You are ") for line in begins)
    return "working-directory" if all(paths) else "mode" if persona else ""


def _is_clock(text: str, at: int, word: str) -> bool:
    """True inside a date or a time, or a number beside one."""
    near = NEAR if DIGIT.search(word) else 0
    found = labels().clock.finditer(text, max(0, at - AROUND), at + 2 * AROUND)
    return any(match.start() - near <= at <= match.end() + near for match in found)


def _is_date_word(word: str) -> bool:
    bare = word.rstrip(STOPS)
    return bare.lower() in labels().date_words or (
        bare.istitle() and bare.lower() in labels().short_days
    )


def _at(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """The match of a pattern that a character is in, or just behind."""
    found = pattern.finditer(text, max(0, at - AROUND), at + 2 * AROUND)
    return next((match for match in found if match.start() <= at <= match.end()), None)


def _number(text: str, at: int) -> re.Match[str] | None:
    found = _at(NUMBER, text, at)
    return found if found and found[1].rstrip(".,").count(".") < 2 else None


def _is_count(one: re.Match[str] | None, other: re.Match[str] | None) -> bool:
    """True for two numbers with units or marks, or for two that are near each other."""
    if one is None or other is None:
        return False
    first, second = (word[1].rstrip(".,") for word in (one, other))
    if one[2] or {".", ","} & {*first, *second}:
        return True
    return abs(int(first) - int(second)) < FAR


def _piece(shape: re.Pattern[str], text: str, at: int) -> str:
    start = at
    while start > 0 and at - start < 2 * AROUND and shape.fullmatch(text[start - 1]):
        start -= 1
    found = shape.match(text, start, start + 4 * AROUND)
    return found.group() if found else ""


def _is_in_code(text: str, at: int) -> bool:
    """True inside a block of code: an odd number of fences stands before."""
    return text[max(0, at - ABOVE) : at].count("```") % 2 == 1


def _topic(then: str, now: str, at: int) -> str:
    """What the text is about, by the nearest label that says it.

    Text that was put in behind a line break begins after its own blanks.
    """
    put_in = now if len(now) > len(then) else then
    after = put_in[at:].lstrip()
    if put_in[at : at + 1] in {"\n", "\r"} and after:
        then, now, at = put_in, put_in, len(put_in) - len(after)
    head = now[max(0, at - ABOVE) : at]
    begin = now.rfind("\n", 0, at) + 1
    lines = [text[begin : begin + 200].partition("\n")[0] for text in (now, then)]
    for line in lines:
        if found := next((topic.kind for topic in labels().topics if topic.line.match(line)), ""):
            return found
    told_by = [label for label, end in map(_label, lines) if begin + end >= at]
    sentence = SENTENCE.split(head)[-1]
    told_by += KEY.findall(sentence)[-1:]
    if found := _first(told_by):
        return found
    for text in (now, then):
        words = f"{sentence[-60:]}{text[at : at + AROUND]}".partition("\n")[0]
        if found := next(
            (topic.kind for topic in labels().topics if topic.prose.search(words)), ""
        ):
            return found
    if found := _first(_open_tags(head, now[at : at + ABOVE])):
        return found
    told = [line for line in dict.fromkeys(lines) if line.strip()]
    shapes = (kind for kind, shape in SHAPES if told and all(map(shape.fullmatch, told)))
    level = _level(lines[0 if put_in is now else 1]) if at == begin else LEVELS
    above = _about_above(head.split("\n")[-MOST_LINES:-1], level)
    if above == "file-list" and not any("/" in line or "." in line for line in told):
        above = ""  # "EDITING FILES" is no list
    found = next(shapes, "")
    return above if above in KEPT - {"file-list"} else found or above


def _about_above(lines: Sequence[str], level: int) -> str:
    """The kind by the labels of a paragraph, then by the nearest heading that it is under.

    The keys of a list's items are not labels: `- commit: write a commit`.
    """
    is_paragraph = True
    for line in reversed(lines):
        is_paragraph = is_paragraph and bool(line.strip())
        is_heading = _level(line) < level
        is_label = is_heading or (is_paragraph and line.lstrip()[:1] not in {"-", "*"})
        if found := _about(_label(line)[0]) if is_label else "":
            return found
        level = min(level, _level(line))
    return ""


def _level(line: str) -> int:
    """The depth of a heading: its number of `#`; 1 for capitals and rules; `LEVELS` for none."""
    if HEADING.fullmatch(line) is None:
        return LEVELS
    marks = len(line) - len(line.lstrip("#"))
    return marks or (1 if line.isupper() or line[:2] in {"==", "--"} else LEVELS - 1)


def _label(line: str) -> tuple[str, int]:
    """The tag, key or heading that a line begins with, and its end."""
    blanks = len(line) - len(line.lstrip())
    if line.startswith("#"):
        return line.strip("# ")[:80], len(line)
    tag = TAG.match(line, blanks)
    if tag:
        return tag[2], tag.end()
    marks = len(line) - len(line.lstrip(" \t-*#"))
    key = KEY.match(line, marks)
    if key:
        return key[1], key.end(1)
    found = HEADING.fullmatch(line)
    return (next(filter(None, found.groups()))[:80], len(line)) if found else ("", 0)


def _first(labels: Iterator[str] | Sequence[str]) -> str:
    """The kind of the first label that has one."""
    return next(filter(None, map(_about, labels)), "")


def _about(label: str) -> str:
    """The kind of a label."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[_:-]", " ", label).strip()
    return (
        next((topic.kind for topic in labels().topics if topic.label.search(plain)), "")
        if plain
        else ""
    )


def _open_tags(head: str, rest: str) -> Iterator[str]:
    """The tags that a place is inside of, innermost first."""
    tags: list[str] = []
    for match in TAG.finditer(head):
        if not match[1]:
            tags.append(match[2])
        elif match[2] in tags:
            del tags[len(tags) - 1 - tags[::-1].index(match[2]) :]
    yield from (tag for tag in reversed(tags) if f"</{tag}>" in rest)
