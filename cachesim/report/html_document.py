"""A report as one HTML page, without scripts or external resources."""

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cachesim.printable import printable
from cachesim.report.charts import STYLE as CHARTS
from cachesim.report.consoles import plain_text
from cachesim.report.document import Bar, Heading, PageOnly, Picture, as_text

STYLE: Final = """
:root { --line: #dde2ea; --quiet: #5b6576; color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2430; background: #fff; }
h1 { font-size: clamp(1.3rem, 5vw, 2rem); line-height: 1.25; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.quiet { color: var(--quiet); } .name { font-weight: 600; }
.wrong { color: #a3131c; font-weight: 600; }
tr.differs td { background: #fff4e5; }
.bar { background: var(--line); height: .6rem; min-width: 4rem; }
.bar i { display: block; height: 100%; background: #2f6fb0; }
pre { font: 14px/1.4 ui-monospace, monospace; overflow-x: auto; }
p, h1, td { overflow-wrap: anywhere; } .flag { white-space: nowrap; }
.flag, p.bold { font-family: ui-monospace, monospace; font-size: .93em; }
p.bold .flag, code .flag { font-size: 1em; } td:first-child { overflow-wrap: break-word; }
table:not(:has(thead)) td:first-child { white-space: nowrap; }
@media (max-width: 48rem) { thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, td.n { border: 0; padding: .1rem 0; text-align: left; }
  td.n { display: inline-block; margin-right: 1rem; }
  td:empty { display: none; }
  td[data-head]::before { content: attr(data-head) ": "; color: var(--quiet); }
  .bar { width: 100%; } }
@media (prefers-color-scheme: dark) { :root { --line: #303846; --quiet: #98a2b3; }
  body { color: #e5e9f0; background: #14181f; } tr.differs td { background: #3a2d16; }
  .wrong { color: #ff8b8b; } }
"""


def page(title: str, *parts: RenderableType) -> str:
    """Parts of a report as a page, titled by the first heading."""
    body = "\n".join(_blocks(parts))
    if "<h1>" not in body:
        body = f"<h1>{escape(printable(title))}</h1>\n{body}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(printable(title))}</title><style>{STYLE}{CHARTS}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _blocks(parts: Iterable[RenderableType]) -> Iterator[str]:
    for part in parts:
        match part:
            case Heading():
                yield f"<h{part.level}>{_inline(part)}</h{part.level}>"
            case str() | Text():
                text = as_text(part)
                if text.plain.strip():
                    yield f"<p{_class(str(text.style))}>{_inline(text)}</p>"
            case Table():
                table = part
                heads = [as_text(column.header).plain for column in table.columns]
                marks = [
                    (" class='n'" if column.justify == "right" else "") for column in table.columns
                ]
                lines = []
                if any(heads):
                    pairs = zip(marks, map(_code, heads), strict=True)
                    head = "".join(
                        f"<th{mark}>{name}</th>" if name else "<td></td>" for mark, name in pairs
                    )
                    lines.append(f"<thead><tr>{head}</tr></thead>")
                labels = [f" data-head='{_code(name)}'" if name else "" for name in heads]
                columns = zip(*(column.cells for column in table.columns), strict=True)
                for row, cells in zip(table.rows, columns, strict=True):
                    tds = "".join(
                        f"<td{mark}{label}>{_cell(cell)}</td>"
                        for mark, label, cell in zip(marks, labels, cells, strict=True)
                    )
                    lines.append(f"<tr{_class(str(row.style or ''))}>{tds}</tr>")
                title = f"<p>{_inline(as_text(table.title))}</p>" if table.title else ""
                yield (f"{title}<table>{''.join(lines)}</table>")
            case Group():
                yield from _blocks(part.renderables)
            case PageOnly():
                yield from _blocks(part.parts)
            case Padding():
                yield from _blocks([part.renderable])
            case Picture(markup=markup) if markup:
                yield markup
            case _:
                yield f"<pre>{escape(plain_text(part, width=100))}</pre>"


def _cell(cell: object) -> str:
    if isinstance(cell, Bar):
        return f"<div class='bar'><i style='width:{100 * cell.share:.0f}%'></i></div>"
    return _inline(as_text(cell))


def _class(style: str) -> str:
    return f" class='{escape(style)}'" if style else ""


def _inline(text: Text) -> str:
    """Text with its styles; backticks mark code."""
    pieces = []
    for line in text.split("\n"):
        ends = [at for span in line.spans for at in (span.start, span.end)]
        for start, end in pairwise(sorted({0, len(line), *ends})):
            styles = [str(s.style) for s in line.spans if s.start <= start < s.end and s.style]
            words = _code(line.plain[start:end])
            pieces.append(f"<span{_class(styles[-1])}>{words}</span>" if styles else words)
        pieces.append("<br>")
    return "".join(pieces[:-1])


FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?: \d+(?:\.\d+)?)?")


def _code(text: str) -> str:
    return with_flags(re.sub("`([^`]+)`", r"<code>\1</code>", escape(printable(text))))


def with_flags(markup: str) -> str:
    """Markup with flags in elements of a class that is not broken at hyphens."""
    return FLAG.sub(r'<span class="flag">\g<0></span>', markup)
