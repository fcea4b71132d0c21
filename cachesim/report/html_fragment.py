"""A run as a piece of HTML without scripts: for notebooks, and for browsers that run none."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from cachesim.report.cells import SHOWN, count, worst_answer
from cachesim.report.findings import is_of_interest
from cachesim.report.ribbon import letters, prompt_parts, scale_of
from cachesim.scenario.result import Run, Step

STYLE: Final = """\
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
"""Letters of a ribbon."""


def fragment(run: Run, *, styled: bool = True, steps: int | None = None) -> str:
    """One entry of "runs": its verdict, a row per step, and the facts of steps of interest.

    The verdict is of all steps; `steps` says how many of them are shown.
    """
    name, profile = escape(run.scenario), escape(run.profile)
    shown = run.steps[:steps]
    rows = "".join(map(_row, shown))
    told = "".join(_facts(shown))
    if len(shown) < len(run.steps):
        told += f"<p>The first {len(shown)} of {len(run.steps)} steps.</p>"
    tone = worst_answer(run.steps) or ""
    if tone == "same" and any(step.reuse == "lost" for step in run.steps):
        tone = "lost"
    return (
        f'{STYLE if styled else ""}<section class="cachesim {escape(tone)}">'
        f'<p><span class="what">{name}</span> on {profile}: {escape(_verdict(run.steps))}</p>'
        '<table><thead><tr><th>step</th><th class="n">prompt</th><th class="n">cached</th>'
        '<th>tokens</th><th>answer</th><th class="n">lost</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{told}</section>"
    )


def _verdict(steps: Sequence[Step]) -> str:
    answer = worst_answer(steps)
    words = {
        None: "not compared with a cold run",
        "same": "every answer is the cold answer",
        "rounding": "every answer is the cold answer, but for rounding",
        "by-design": "answers differ, by design of the server",
        "diverged": "an answer is WRONG",
    }
    missed = sum(step.lost for step in steps if step.reuse == "lost")
    return words[answer] + (f"; {missed} tokens of reuse were lost" if missed else "")


def _row(step: Step) -> str:
    answer = step.error or SHOWN.get(step.answer or "", step.answer or "-")
    missed = str(step.lost) if step.reuse == "lost" else ""
    cells = (
        f'<th scope="row">{escape(step.name)}</th>',
        f'<td class="n">{step.prompt_tokens}</td>',
        f'<td class="n">{count(step.cached)}</td>',
        f"<td><code>{_ribbon_letters(step)}</code></td>",
        f"<td>{escape(answer)}</td>",
        f'<td class="n">{missed}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _ribbon_letters(step: Step) -> str:
    """R reused, F foreign, r processed again, C computed: to scale where there are many."""
    if step.cached is None or not step.explanation:
        return ""
    parts = prompt_parts(step)
    shown = letters(parts, scale_of(parts, widest=WIDEST))
    return "".join(f'<span class="{style}">{word}</span>' for word, style in shown)


def _facts(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        if is_of_interest(step):
            told = "".join(
                f"<dt>{escape(each.word)}</dt><dd>{escape(each.sentence)}</dd>"
                for each in step.statements
            )
            yield f'<p class="what">step {escape(step.name)}</p><dl>{told}</dl>'
