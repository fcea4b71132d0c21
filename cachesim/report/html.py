"""Runs as one HTML page: a template, a style, scripts and the runs' JSON.

    page/page.html      the frame, with holes for the three below
    page/style.css      light, dark, wide, narrow, printed
    page/*.js           plain scripts, put one after the other
    the data            what `--format json --detail` prints, equal parts written once (`packed`)

Nothing is loaded from anywhere, and the page's own policy forbids it. The scripts put every text
of a scenario into the page as text, never as markup.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from html import escape
from importlib import resources
from typing import Any, Final, TypeAlias

from cachesim.errors import InputError
from cachesim.play.result import Run, Step
from cachesim.report.chain import chain
from cachesim.report.picture import decisive, held, positions_of, request, short
from cachesim.report.picture import story as pictured
from cachesim.report.story import SIGNS_TEXT, letters, prompt_parts, scale_of
from cachesim.report.svg import STYLE, frame, hatches, row_svg, standalone
from cachesim.report.tables import cached_row, count, is_of_interest, worst_answer
from cachesim.report.texts import Texts, texts_of
from cachesim.typed import Json
from cachesim.verify.verdict import SHOWN

FRAGMENT_STYLE: Final = """\
<style>
.cachesim { font: 14px/1.5 system-ui, sans-serif; max-width: 60em; margin: 0 0 1.4em;
  padding-left: 1em; border-left: 4px solid #3a9060; }
.cachesim.diverged { border-left-color: #d0453c; }
.cachesim.by-design, .cachesim.lost { border-left-color: #c98a1b; }
.cachesim table { border-collapse: collapse; margin: .6em 0; font: inherit; }
.cachesim th, .cachesim td { text-align: left; padding: .15em 1.2em .15em 0; font-weight: 400; }
.cachesim td.n, .cachesim th.n { text-align: right; font-variant-numeric: tabular-nums; }
.cachesim tbody th, .cachesim .what { font-weight: 600; }
.cachesim dt { float: left; clear: left; width: 6em; opacity: .65; }
.cachesim dd { margin: 0 0 .15em 6.5em; }
.cachesim code { white-space: pre-wrap; overflow-wrap: anywhere; background: none; }
.cachesim .wrong { background: #d0453c60; }
.cachesim .reused { background: #3a906040; }
.cachesim .again { background: #e0a02050; }
.cachesim .computed { background: #4a86d040; }
</style>"""

WIDEST: Final = 48
"""Most letters of a ribbon."""


def fragment(run: Run, *, styled: bool = True, steps: int | None = None) -> str:
    """An entry of "runs": its verdict, a row per request, and the facts of relevant ones.

    The verdict is of all requests; only the first `steps` of them are shown.
    """
    name, profile = escape(run.scenario), escape(run.profile)
    shown = run.steps[:steps]
    rows = "".join(map(_row, shown))
    parts = "".join(_facts(shown))
    if len(shown) < len(run.steps):
        parts += f"<p>The first {len(shown)} of {len(run.steps)} requests.</p>"
    tone = worst_answer(run.steps) or ""
    if tone == "same" and any(step.reuse == "lost" for step in run.steps):
        tone = "lost"
    return (
        f'{FRAGMENT_STYLE if styled else ""}<section class="cachesim {escape(tone)}">'
        f'<p><span class="what">{name}</span> on {profile}: {escape(_verdict(run.steps))}</p>'
        '<table><thead><tr><th>request</th><th class="n">prompt</th><th class="n">cached</th>'
        '<th>tokens</th><th>answer</th><th class="n">lost</th></tr></thead>'
        f"<tbody>{rows}</tbody></table><p>{SIGNS_TEXT}</p>{parts}</section>"
    )


def _verdict(steps: Sequence[Step]) -> str:
    answer = worst_answer(steps)
    words = {
        None: "not compared with an uncached run",
        "same": "every answer matches the uncached run",
        "rounding": "every answer matches the uncached run, but for rounding",
        "by-design": "answers differ, by design of the server",
        "diverged": "an answer is WRONG",
    }
    missed = sum(step.missed for step in steps)
    return words[answer] + (f"; {missed} tokens of reuse were lost" if missed else "")


def _row(step: Step) -> str:
    answer = step.error or SHOWN.get(step.answer or "", step.answer or "-")
    missed = str(step.missed) if step.reuse == "lost" else ""
    cells = (
        f'<th scope="row">{escape(step.name)}</th>',
        f'<td class="n">{count(step.prompt_tokens)}</td>',
        f'<td class="n">{count(step.cached)}</td>',
        f"<td><code>{_ribbon_letters(step)}</code></td>",
        f"<td>{escape(answer)}</td>",
        f'<td class="n">{missed}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _ribbon_letters(step: Step) -> str:
    """The letters of a prompt, scaled."""
    if step.cached is None or not step.explanation:
        return ""
    parts = prompt_parts(step)
    shown = letters(parts, scale_of(parts, widest=WIDEST))
    return "".join(f'<span class="{style}">{word}</span>' for word, style in shown)


def _facts(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        if is_of_interest(step):
            items = "".join(
                f"<dt>{escape(statement.word)}</dt><dd>{escape(statement.sentence)}</dd>"
                for statement in step.statements
            )
            yield f'<p class="what">request {escape(step.name)}</p><dl>{items}</dl>'


SMALL: Final = 24
"""Characters below which parts are not shared."""


class Packer:
    """Deduplication of equal values in JSON."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._sizes: list[int] = []
        self._uses: Counter[int] = Counter()
        self._pool: list[Any] = []
        self._places: dict[int, int] = {}

    def number(self, value: object) -> int:
        """The number of a value; uses by each holder count once."""
        if isinstance(value, Mapping):
            parts = tuple((str(key), self.number(item)) for key, item in value.items())
            inner = [n for _, n in parts]
            size = 2 + sum(len(key) + 4 + self._sizes[n] for key, n in parts)
            return self._known(("mapping", parts), dict(parts), inner, size)
        if isinstance(value, list | tuple):
            inner = [self.number(item) for item in value]
            size = 2 + sum(1 + self._sizes[n] for n in inner)
            return self._known(("list", tuple(inner)), inner, inner, size)
        return self._known((type(value).__name__, value), value, [], len(repr(value)))

    def _known(self, key: tuple[str, object], value: object, inner: list[int], size: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append((key[0], value))
            self._sizes.append(size)
            self._uses.update(inner)
        return number

    def written(self, number: int) -> Json:
        """A value, or its number if it is used more than once."""
        kind, value = self._values[number]
        if kind not in {"mapping", "list"}:
            return value
        if self._uses[number] < 2 or self._sizes[number] < SMALL:
            return self._spelled(kind, value)
        if number not in self._places:
            spelled = self._spelled(kind, value)
            self._places[number] = len(self._pool)
            self._pool.append(spelled)
        return {"$": self._places[number]}

    def _spelled(self, kind: str, value: Json) -> Json:
        if kind == "list":
            return [self.written(item) for item in value]
        mapping = {key: self.written(item) for key, item in value.items()}
        return {"$": mapping} if "$" in mapping else mapping

    def pack(self, value: object) -> dict[str, Any]:
        """The deduplicated document."""
        document = self.written(self.number(value))
        return {"pool": self._pool, "document": document}


def packed(document: object) -> dict[str, Any]:
    """A document with every larger part written once."""
    return Packer().pack(document)


def thinner(runs: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """The runs with all states, with fewer, without any, then without prompt tokens and keys."""
    yield runs
    for keep in (_loud, _last, _none):
        yield [_thinned(run, keep) for run in runs]
    yield [_pictured(run) for run in runs]


def _thinned(run: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    """A run with the states chosen by `keep`."""
    if "detail" not in run:
        return dict(run)
    steps = [{**step, "detail": {**step["detail"], "at": keep(step)}} for step in run["steps"]]
    wanted = {n for step in steps for n in (*step["detail"]["at"], step["detail"]["before"])}
    states = [state if n in wanted else None for n, state in enumerate(run["detail"]["states"])]
    if keep is _none:
        states = []
    thin = {**run, "steps": steps, "detail": {**run["detail"], "states": states}}
    if "picture" in run:
        rows = zip(run["picture"]["states"], states, strict=False)
        drawn = [None if state is None else picture for picture, state in rows]
        thin["picture"] = {**run["picture"], "states": drawn}
    return thin


def _pictured(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run with the last picture of each step: a prompt of 50,000 tokens alone fills a page, and
    so do the keys of mlx-lm's entries.
    """
    thin = _thinned(run, _last)
    if "detail" not in thin:
        return thin
    steps = [
        {
            **step,
            "detail": {**step["detail"], "prompt": []},
            "events": [
                {**event, "key": []} if "key" in event else event for event in step["events"]
            ],
        }
        for step in thin["steps"]
    ]
    return {**thin, "steps": steps, "detail": {**thin["detail"], "states": []}}


def _loud(step: Mapping[str, Any]) -> list[int]:
    """True for a decision, or a step's last event."""
    at: list[int] = list(step["detail"]["at"])
    before = step["detail"]["before"]
    for index, event in enumerate(step["events"][:-1]):
        if event["tone"] == "quiet":
            at[index] = at[index - 1] if index else before
    return at


def _last(step: Mapping[str, Any]) -> list[int]:
    at = step["detail"]["at"]
    return [at[-1]] * len(at) if at else []


def _none(step: Mapping[str, Any]) -> list[int]:
    return [-1] * len(step["detail"]["at"])


Part: TypeAlias = Any
"""A part of a state: a dataclass, a mapping, a list, or a plain value."""

LIMIT: Final = 300_000
"""Bytes of a whole page."""

EVENT: Final = 100
"""Bytes of an event on a page without states, unless it equals many others."""

MOST_EVENTS: Final = 200
"""Events of each step, where a page with all of them is too large."""

SCRIPTS: Final = (
    "data.js", "words.js", "tokens.js", "picture.js", "memory.js", "panels.js", "align.js",
    "cursor.js", "start.js",
)  # fmt: skip


class TooLargeError(InputError):
    """A page above the limit even without states; `size` is its size."""

    def __init__(self, size: int, limit: int) -> None:
        kilo = limit // 1000
        super().__init__(
            f"the report would be larger than {kilo} kB: name fewer scenarios or profiles"
        )
        self.size = size
        self._limit = limit

    def __reduce__(self) -> tuple[type["TooLargeError"], tuple[int, int]]:
        return type(self), (self.size, self._limit)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A page and the list of its omissions."""

    text: str
    runs: int  # runs that are left out
    note: str  # which steps of a run are there, where not all of them are


def page_of_most(runs: Sequence[Run], *, limit: int = LIMIT) -> Fitted:
    """A page of as many runs as fit; of a single long one its first steps.

    Runs that were not as expected come first, then those that show a wrong answer.
    """
    kept = list(range(len(runs)))
    wrong = {i for i in kept if any(step.answer == "diverged" for step in runs[i].steps)}
    urgent = sorted(kept, key=lambda i: (runs[i].as_expected, i not in wrong, i))
    while True:
        try:
            return Fitted(page([runs[i] for i in kept], limit=limit), len(runs) - len(kept), "")
        except TooLargeError as error:
            if len(kept) == 1:
                return _beginning(runs[kept[0]], error, len(runs) - 1, limit)
            fits = int(0.9 * len(kept) * limit / error.size)
            kept = sorted(urgent[: min(max(1, fits), len(kept) - 1)])


def _beginning(run: Run, error: TooLargeError, left_out: int, limit: int) -> Fitted:
    """A page of the first steps of a run, as many as fit; of steps with many events the first."""
    long = _is_long(run, limit)
    short = replace(run, steps=tuple(map(_first_events, run.steps))) if long else run
    steps = len(run.steps)
    if long:
        note = _cut_note(run, steps, limit)
        with suppress(TooLargeError):
            return Fitted(page([short], limit=limit, of=run), left_out, note)
    while steps > 1:
        steps = min(steps - 1, max(1, int(0.9 * steps * limit / error.size)))
        note = _cut_note(run, steps, limit)
        try:
            text = page([short], limit=limit, steps=steps, of=run if long else None)
            return Fitted(text, left_out, note)
        except TooLargeError as again:
            error = again
    raise error


def _is_long(run: Run, limit: int) -> bool:
    """True where the events of a step fill half of a page."""
    return any(len(step.events) * EVENT > limit // 2 for step in run.steps)


def _first_events(step: Step) -> Step:
    detail = step.detail and replace(step.detail, at=step.detail.at[:MOST_EVENTS])
    return replace(step, events=step.events[:MOST_EVENTS], detail=detail)


def _cut_note(run: Run, steps: int, limit: int) -> str:
    others = run.steps[steps:]
    wrong = sum(step.answer == "diverged" for step in others)
    lost = sum(step.reuse == "lost" for step in others)
    text = f"the first {steps} of {len(run.steps)} steps are on this page"
    if _is_long(run, limit):
        text += f", of each its first {MOST_EVENTS} events"
    if all(step.answer is None for step in others):
        return text
    return (
        f"{text}; of the others {wrong or 'none'} with a wrong answer, {lost or 'none'} that lost"
        " tokens"
    )


def page(
    runs: Sequence[Run], *, limit: int = LIMIT, steps: int | None = None, of: Run | None = None
) -> str:
    """A page of all runs; states beyond the limit are omitted.

    `steps` limits the steps of each run; `of` is the whole run of which a single one is a part. A
    note on the page reports both.
    """
    least = EVENT * sum(len(step.events) for run in runs for step in run.steps[:steps])
    if least > limit:
        raise TooLargeError(least, limit)
    plain = "\n".join(fragment(run, styled=False, steps=steps) for run in runs)
    for entries in thinner([_entry(run, steps, of, limit) for run in runs]):
        # The filled template; data comes last, as it may contain placeholders.
        scripts = "\n".join(_asset(name) for name in SCRIPTS)
        text = _asset("page.html").replace("/*style*/", STYLE + _asset("style.css"), 1)
        text = text.replace("<!--patterns-->", hatches(""), 1)
        head, tail = text.replace("/*script*/", scripts, 1).split("<!--plain-->", 1)
        before, after = tail.split("/*data*/", 1)
        text = f"{head}{plain}{before}{island({'format': 1, 'runs': list(entries)})}{after}"
        size = len(text.encode())
        if size <= limit:
            return text
    raise TooLargeError(size, limit)


def _entry(run: Run, steps: int | None, of: Run | None, limit: int) -> dict[str, Any]:
    shown = run if steps is None and of is None else beginning(run, steps or len(run.steps))
    entry = shown.to_json() | {"picture": drawn(shown)}
    if len(shown.steps) < len(run.steps) or of is not None:
        entry["cut"] = _cut_note(of or run, len(shown.steps), limit)
    return entry


def beginning(run: Run, steps: int) -> Run:
    """The first steps of a run, with their states."""
    kept = run.steps[:steps]
    if run.detail is None:
        return replace(run, steps=kept)
    known = [step.detail for step in kept if step.detail is not None]
    last = max((n for detail in known for n in (detail.before, *detail.at)), default=-1)
    texts = texts_of(run)
    states = tuple(_spelled_out(state, texts, steps) for state in run.detail.states[: last + 1])
    return replace(run, steps=kept, detail=replace(run.detail, states=states))


def drawn(run: Run) -> dict[str, Any]:
    """The rows of every request and state, and the chain to each error.

    A row is a list of one text: so equal rows are written once.
    """
    wide = positions_of(run)
    requests = [tuple(request(run, index)) for index in range(len(run.steps))]
    states = [held(run, state) for state in (() if run.detail is None else run.detail.states)]
    return {
        **frame((row for rows in (*requests, *states) for row in rows), wide, ""),
        "requests": [[[row_svg(row, wide, "")] for row in rows] for rows in requests],
        "states": [[[row_svg(row, wide, "")] for row in rows] for rows in states],
        "short": [short(run, index, states) for index in range(len(run.steps))],
        "chains": [[asdict(link) for link in chain(run, index)] for index in range(len(run.steps))],
    }


def _spelled_out(value: Part, texts: Texts, steps: int) -> Part:
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(
            value, **{name: _spelled_out(part, texts, steps) for name, part in parts.items()}
        )
    if isinstance(value, dict):
        if {"count", "step"} <= value.keys() and value["step"] >= steps:
            return {"tokens": list(texts.tokens(value))}
        return {key: _spelled_out(item, texts, steps) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_spelled_out(item, texts, steps) for item in value)
    return value


@cache
def _asset(name: str) -> str:
    return resources.files("cachesim.report").joinpath("page", name).read_text(encoding="utf-8")


def island(document: Mapping[str, Any]) -> str:
    """JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(packed(document), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """Runs in a notebook, as HTML without scripts, elsewhere as a line; `runs` are the values."""

    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        """A line: scenario, profile, cached tokens, the worst answer."""
        lines = (
            f"{run.scenario} on {run.profile}: cached {cached_row(run.steps)},"
            f" {SHOWN.get(worst_answer(run.steps) or '', 'not compared')}"
            for run in self.runs
        )
        return f"<{'; '.join(lines)}>"

    def _repr_html_(self) -> str:
        pictures = (standalone(decisive(pictured(run))) for run in self.runs if run.detail)
        return "".join([*pictures, *map(fragment, self.runs)])

    def page(self) -> str:
        """The whole report as an HTML file; best with `detail=True`."""
        return page(self.runs)

    def frame(self, height: int = 900) -> "Framed":
        """The whole report in a frame of a notebook."""
        return Framed(page(self.runs), height)


@dataclass(frozen=True, slots=True, repr=False)
class Framed:
    """A page in an HTML frame."""

    text: str
    height: int

    def __repr__(self) -> str:
        return f"<report of {len(self.text) // 1000} kB>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="cachesim report" sandbox="allow-scripts" width="100%"'
            f' height="{int(self.height)}" style="border: 0" srcdoc="{escape(self.text)}"></iframe>'
        )


def show(runs: Run | Sequence[Run]) -> Shown:
    """Wrap one or several results of `run_scenario` for a notebook.

    As the last line of a cell it is drawn there; `.frame()` puts the whole report into the cell,
    `.page()` returns it as an HTML file.

    >>> from cachesim import run_scenario, show
    >>> show(run_scenario("llama.cpp-two-codes"))
    <llama.cpp-two-codes on llama.cpp@b11549: cached 0 6 6 7, WRONG>
    """
    return Shown((runs,) if isinstance(runs, Run) else tuple(runs))
