"""Words that a native technical writer would not use here, kept out of all that people read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
BANNED: Final = {
    r"mend(s|ed|ing)?": "fix",
    r"equal with": "equal to, or matches",
    r"goes on": "continues, or resumes",
    r"who has time": "if you have time",
    r"there was begins": "starts like",
    r"behind": "after, or past; for causes: that caused",
    r"read again": "reprocessed",
    r"shares? nothing with": "have nothing in common",
    r"unrelated ones": "unrelated tokens",
    r"by luck": "by chance",
    r"no checkpoint will do": "no checkpoint fits",
    r"drives? (it|the old one|them) out": "evicts",
    r"memory begins at": "the state is at",
    r"worth something at": "valid at",
    r"this much is equal": "equal",
    r"held against": "compared with",
    r"told apart": "distinguished",
    r"otherwise than": "differently from, or unlike",
    r"foretold": "predicted",
    r"what one (sees|learns|looks at)": "what you see",
    r"place to go on (at|from)": "place to resume from",
    r"(go|goes|going|gone) on from": "resume from, or continue",
    r"parts? from": "diverges from",
    r"part(s|ed)? at token": "diverges at token",
    r"(lie|lies|lay) (after|at|before|beyond|close|elsewhere|exactly|here|near|there|within)": "is",
    r"anew": "again, or restarted",
    r"for ever": "forever",
    r"(slots?|still) at work": "busy, or running",
    r"cured": "fixed",
    r"tokens read": "tokens prefilled, or reprocessed",
    r"the most tokens": "maximum tokens",
    r"no checkpoint was of use": "no checkpoint helped",
    r"comes? to rest": "is idle",
    r"(is|are|was|were|be|been|not|once|again) played": "run, or replayed",
    r"plays? (a|it|the|all|its|each|every|one|random|what|workloads)": "run, or replay",
}
EXAMPLE: Final = "Example: cachesim "
"""Start of the example in each command's help."""
PATTERN: Final = re.compile(rf"(?<![-\w])({'|'.join(BANNED)})(?![-\w])", re.IGNORECASE)

READ: Final = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs" / "playground").iterdir(),
        *(ROOT / "cachesim" / "learn" / "texts").glob("*.md"),
        *(ROOT / "scenarios").rglob("*.toml"),
    )
    if not {"_generated", "_build"} & set(path.parts)
)
CODE: Final = sorted([*(ROOT / "cachesim").rglob("*.py"), *(ROOT / "docs" / "pages").rglob("*.py")])


CONF: Final = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
SITE: Final = [
    path
    for path in READ
    if path == ROOT / "README.md"
    or (
        (path.suffix == ".md" and {"docs", "texts"} & {*path.relative_to(ROOT).parts})
        and f'"{path.relative_to(ROOT).as_posix().removeprefix("docs/")}"' not in CONF
    )
]
"""README, lessons, and the pages of the site that are written by hand."""

VOICE: Final = {
    r"\b(you|your|yours|yourself)\b": (0.15, 1),
    r"\b\w+n't\b|\b\w+'(re|ve|ll|d)\b|\b(it|that|there|what|here|let)'s\b": (0.05, 1),
    r"\b(for example|for instance|e\.g\.|such as)\b": (0.03, 1),
    r";": (0, 0.04),
    r"^(\S+\s+){30}\S": (0, 0.04),
}
"""A sentence's reader, contraction, example, semicolon and length, each with its share of all."""


def sentences(text: str) -> Iterator[str]:
    """Those of paragraphs and lists; code, tables, headings and links' targets are left out."""
    text = re.sub(r"^(```+).*?^\1\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *([|#<:{!]|    ).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))
    for paragraph in re.split(r"\n\s*\n(?:\s*[-*]\s)?|\n\s*(?:[-*]|\d+\.)\s", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"*\[(])", " ".join(paragraph.split())):
            if len(sentence.split()) >= 3:
                yield sentence


def found(text: str) -> list[str]:
    return [match[0] for match in PATTERN.finditer(" ".join(text.split()))]


def spoken(path: Path) -> Iterator[str]:
    """The texts of a module that it may print: all but docstrings; a command's are its help."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if EXAMPLE in node.value or id(node) not in silent | notes:
            yield node.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It goes\non, and is equal with B.", ["goes on", "equal with"]),
        ("search-read-again and `b11549+resume-behind` are names", []),
        ("a patch that mends; behind it", ["mends", "behind"]),
        ("it shares\nnothing with B, by luck", ["shares nothing with", "by luck"]),
        (
            "they part at token 5; a slot at work goes on from there",
            ["part at token", "slot at work", "goes on"],
        ),
    ],
)
def test_a_banned_word_is_found_across_lines_and_a_name_is_none(
    text: str, expected: list[str]
) -> None:
    assert expected == found(text)


def test_pages_lessons_and_scenarios_hold_no_banned_word() -> None:
    texts = {path: found(path.read_text(encoding="utf-8")) for path in READ}

    assert {str(path.relative_to(ROOT)): words for path, words in texts.items() if words} == {}


@pytest.mark.thorough
def test_nothing_that_the_program_prints_holds_one() -> None:
    texts = {path: [word for text in spoken(path) for word in found(text)] for path in CODE}

    assert {str(path.relative_to(ROOT)): words for path, words in texts.items() if words} == {}


def test_a_sentence_is_one_of_prose() -> None:
    text = "# Head\n\nFor example, `a; b` runs.\nDo you see?\n\n| a | b; c |\n"
    text += "\n```text\nno; no\n```\n\n- It isn't so.\n"
    assert ["For example, CODE runs.", "Do you see?", "It isn't so."] == list(sentences(text))


@pytest.mark.parametrize("pattern", VOICE)
def test_the_site_speaks_to_its_reader(pattern: str) -> None:
    told = [each for path in SITE for each in sentences(path.read_text(encoding="utf-8"))]
    share = sum(bool(re.search(pattern, each, re.IGNORECASE)) for each in told) / len(told)

    least, most = VOICE[pattern]
    assert least <= share <= most
