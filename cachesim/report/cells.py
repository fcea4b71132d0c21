"""The short words that tables are made of: what one step, or one run, showed."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from cachesim.scenario.result import Step

STYLE: Final = {"same": "right", "rounding": "right", "by-design": "lost", "diverged": "wrong"}
SHOWN: Final = {"diverged": "DIVERGED"}
WORST_FIRST: Final = ("diverged", "by-design", "rounding", "same", None)


def answer_text(answer: str | None) -> Text:
    """The verdict on an answer; the wrong one in capitals, for those who see no colour."""
    if answer is None:
        return Text("not judged", style="quiet")
    return Text(SHOWN.get(answer, answer), style=STYLE.get(answer, ""))


def count(value: int | None) -> str:
    """A number of tokens, or a dash where there is none."""
    return "-" if value is None else str(value)


def shortened(error: str, most: int = 13) -> str:
    """A server's word for a refusal, as far as a cell is wide."""
    return error if len(error) <= most else f"{error[: most - 1]}…"


def step_cell(step: Step) -> Text:
    """What a profile made of one step: cached tokens, the answer, what was lost."""
    if step.error is not None:
        return Text(f"{'-':>6} ") + Text(shortened(step.error), style="wrong")
    if step.do != "complete":
        return Text(f"{'-':>6} ") + Text("done", style="quiet")
    if step.cached is None:
        return Text(f"{'-':>6} ") + Text("cancelled", style="quiet")
    cell = Text(f"{step.cached:>6} ") + answer_text(step.answer)
    if step.reuse == "lost":
        cell.pad_right(max(0, 15 - cell.cell_len))
        cell.append(f"{step.lost:>5}", style="lost")
    return cell


def worst_answer(steps: Sequence[Step]) -> str | None:
    """The answer of a whole run: its worst."""
    found = {step.answer for step in steps}
    return next((each for each in WORST_FIRST if each in found), None)


def short_profile(profile: str) -> str:
    """A profile without its engine, for headings that name the engine already."""
    return profile.partition("@")[2] or profile


def cached_row(steps: Sequence[Step]) -> str:
    """The cached tokens of every step."""
    return " ".join(count(step.cached) for step in steps)
