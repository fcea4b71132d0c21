"""Parts of exported Python files: names, comments, runs of tokens."""

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from cachesim.export.case import Case
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Prompt
from cachesim.scenario.prompts import piece_of

WIDTH: Final = 96

SPANS: Final = """\
rng = random.Random(0)


def span(first, count):
    \"\"\"Tokens that no other span begins with.\"\"\"
    return [first, *rng.choices(range({lowest}, {highest}), k=count - 1)]


"""


def name_of(word: str) -> str:
    """A name of a scenario as a Python name."""
    name = re.sub(r"\W", "_", word)
    name = f"_{name}" if name[:1].isdigit() else name
    return (
        f"{name}_" if keyword.iskeyword(name) or name in TAKEN or hasattr(builtins, name) else name
    )


TAKEN: Final = frozenset(
    {
        "only",
        "server",
        "rng",
        "span",
        "warm",
        "cold",
        "body",
        "res",
        "complete",
        "time",
        "random",
        "struct",
    }
)
"""Names that the files use for something else."""


def story(case: Case, indent: str) -> str:
    """The report that a scenario comes from and its story, as a comment."""
    return comment(f"{case.issue}: {case.about}" if case.issue else case.about, indent)


def comment(text: str, indent: str = "") -> str:
    """A text as lines of a comment."""
    width = WIDTH - len(indent) - 2
    lines = wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{indent}# {line}" for line in lines)


def span_lines(case: Case, spans: Mapping[str, Sequence[int]], used: str) -> str:
    """Assignments of the spans in use: lengths are drawn anew, ids stay as they are written."""
    spec, written = spec_of(case.scenario.model), case.scenario.spans
    lowest, highest = spec.first_plain, spec.vocabulary
    spans = {
        name: tokens for name, tokens in spans.items() if re.search(rf"\b{name_of(name)}\b", used)
    }
    if not spans:
        return ""
    drawn = {name for name in spans if isinstance(written[name], int)}
    fixed = {tokens[0] for name, tokens in spans.items() if name not in drawn and tokens}
    firsts = (number for number in range(lowest, highest) if number not in fixed)
    lines = [
        f"{name_of(name)} = span({next(firsts)}, {len(tokens)})"
        if name in drawn
        else f"{name_of(name)} = {list(map(int, tokens))}"
        for name, tokens in spans.items()
    ]
    head = SPANS.format(lowest=lowest, highest=highest) if drawn else ""
    return head + "\n".join(lines) + "\n"


def tokens_text(
    written: Prompt, ids: Sequence[int], replies: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Tokens as an expression: by the names of their spans and replies, or their ids."""
    if not isinstance(written, str):
        return str(list(map(int, ids)))
    parts = []
    for word in written.split():
        name, piece = piece_of(word)
        text = replies.get(name) or name_of(name)
        if piece != slice(None):
            ends = ("" if end is None else str(end) for end in (piece.start, piece.stop))
            text += f"[{':'.join(ends)}]"
        parts.append(text)
    return " + ".join(parts) or "[]"
