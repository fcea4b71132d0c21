"""What a log tells, as one HTML page without scripts or anything from elsewhere."""

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final

from cachesim.printable import printable
from cachesim.report.why import (
    WHAT_IF,
    advice_of,
    is_exact,
    kind_of,
    shown,
    totals_in_words,
    what_if_rows,
    wrong_in_words,
)
from cachesim.scenario.labels import SOURCE

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2430; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #dde2ea;
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.quiet { color: #5b6576; } .wrong { color: #a3131c; font-weight: 600; }
tr.differs td { background: #fff4e5; }
.bar { background: #dde2ea; height: .6rem; width: 8rem; } .bar i { display: block; height: 100%;
  background: #2f6fb0; }
p, h1, td { overflow-wrap: anywhere; }
@media (max-width: 48rem) { thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid #dde2ea; }
  td, td.n { border: 0; padding: .1rem 0; text-align: left; }
  td.n { display: inline-block; margin-right: 1rem; }
  td:empty { display: none; }
  td[data-head]::before { content: attr(data-head) ": "; color: #5b6576; }
  .bar { width: 100%; } }
@media (prefers-color-scheme: dark) { body { color: #e5e9f0; background: #14181f; }
  th, td { border-color: #303846; } tr.differs td { background: #3a2d16; }
  .quiet { color: #98a2b3; } .wrong { color: #ff8b8b; } .bar { background: #303846; } }
"""


def html_page(found: Mapping[str, Any]) -> str:
    """The page."""
    body = "\n".join(_parts(found))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>cachesim why</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _parts(found: Mapping[str, Any]) -> Iterator[str]:
    agreement = found["agreement"]
    yield f"<h1>{_text(', '.join(found['log']['sources']))}</h1>"
    if found["log"]["broken"]:
        yield f"<p class='wrong'>{_text(found['log']['broken'])}</p>"
    for server in found["servers"]:
        yield f"<p class='quiet'>{_text(_server(server))}</p>"
        for note in server["missing"]:
            yield f"<p class='quiet'>{_text(note)}</p>"
    agrees = (
        f"The replay agrees in {agreement['agreeing']:,} of {agreement['comparable']:,} requests. "
        if agreement["played"]
        else ""
    )
    yield f"<p>{agrees}{totals_in_words(found['totals'])}</p>"
    stale = [str(each["number"]) for each in found["requests"] if each["stale"]]
    if stale:
        told = f"request {', '.join(stale)}. Evidence: {SOURCE}."
        yield f"<p class='wrong'>Wrong answers are possible: {told}</p>"
    for place in found["places"]:
        yield f"<p>{_text(place['sentence'])} {_text(place['advice'])}</p>"
    if found["causes"]:
        yield "<h2>Why</h2>" + _table(
            ("tokens", "requests", "cause", "what helps"),
            (_cause(each, found["tuned"]) for each in found["causes"]),
        )
    if advice := advice_of(found["tuned"]):
        yield f"<p>{_text(advice)}</p>"
    if found["what_if"] and found["totals"]["processed"]:
        rows = what_if_rows(found["what_if"], exact=is_exact(found))
        yield "<h2>What if</h2>" + _table(("", *WHAT_IF[1:]), rows)
        if found["bytes_say"]:
            yield f"<p class='quiet'>{_text(found['bytes_say'])}</p>"
        if wrong := wrong_in_words(found["what_if"]):
            yield f"<p class='wrong'>{_text(wrong)}</p>"
    if found["log"]["long"]:
        yield f"<p class='quiet'>{_text(found['log']['long'])}</p>"
    yield "<h2>Requests</h2>" + _table(
        ("request", "prompt", "cached", "processed", "slot", "reused", "why"),
        map(_request, found["requests"]),
        classes=["" if each["agrees"] is not False else "differs" for each in found["requests"]],
    )


def _server(server: Mapping[str, Any]) -> str:
    flags = ", ".join(f"{n} {each['value']} ({each['how']})" for n, each in
                      server["options"].items())  # fmt: skip
    model = f", {server['model']['preset']} model" if server["played"] else ""
    return f"{server['profile']}{model}{'; ' if flags else ''}{flags}"


def _cause(each: Mapping[str, Any], tuned: Mapping[str, Any] | None) -> tuple[object, ...]:
    words = f"{each['cause']} ({kind_of(each, tuned)}): {each['example']}."
    see = f"See {each['upstream']}." if each["upstream"] else ""
    cure = " ".join(filter(None, (each["cure"], see, each["tried_says"])))
    return each["tokens"], len(each["requests"]), words, cure


def _request(each: Mapping[str, Any]) -> tuple[object, ...]:
    reasons = " ".join(
        f"{loss['from']:,} to {loss['to']:,}: {loss['sentence']}." for loss in each["why"]
    )
    if each["agrees"] is False:
        reasons = f"The replay differs: cached {shown(each['replayed']['cached'])}."
    whole, cached = each["prompt_tokens"] or 0, each["cached"] or 0
    return (
        each["number"],
        shown(each["prompt_tokens"]),
        shown(each["cached"]),
        shown(each["processed"]),
        shown(each["slot"]),
        Bar(cached / whole if whole else 0.0),
        reasons,
    )


NUMBER: Final = re.compile(r"[-+]?[\d,.]+( \([\d,.]+ to [\d,.]+\))?|-|not judged|")


class Bar(float):
    """A part of one, drawn."""


def _table(
    heads: Iterable[str], rows: Iterable[tuple[object, ...]], classes: list[str] | None = None
) -> str:
    names, rows = tuple(heads), list(rows)
    numbers = [bool(rows) and all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    marks = [" class='n'" if each else "" for each in numbers] or [""] * len(names)
    pairs = zip(names, marks, strict=True)
    head = "".join(f"<th{mark}>{_text(name)}</th>" for name, mark in pairs)
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(map(_cell, names, row))
        name = classes[index] if classes else ""
        lines.append(f"<tr{f' class={name!r}' if name else ''}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(name: str, value: object) -> str:
    """A cell; narrow screens show a row as a list, with the column's name before each."""
    label = f" data-head='{_text(name)}'" if name else ""
    if isinstance(value, Bar):
        return f"<td{label}><div class='bar'><i style='width:{100 * value:.0f}%'></i></div></td>"
    words = f"{value:,}" if isinstance(value, int | float) else str(value)
    mark = " class='n'" if _is_number(value) else ""
    return f"<td{mark}{label}>{_text(words)}</td>"


def _is_number(value: object) -> bool:
    if isinstance(value, Bar):
        return False
    return isinstance(value, int | float) or bool(NUMBER.fullmatch(str(value)))


def _text(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(printable(text)))
