"""The story of a run, step by step: what came in, what was held, which rule was at work."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cachesim.report.cells import answer_text
from cachesim.report.events import QUIET, event_line
from cachesim.report.memory import memory_facts
from cachesim.report.paragraphs import wrong_facts
from cachesim.report.ribbon import LEGEND, ribbon
from cachesim.report.rules import checkpoint_word, rule_facts

MOST_CHECKPOINTS = 8


def story(run: Mapping[str, Any]) -> RenderableType:
    """A whole run."""
    parts: list[RenderableType] = [Text(LEGEND, style="quiet")]
    for index, step in enumerate(run["steps"]):
        parts += [Text(), step_before(run, index)]
        events = [event for event in step["events"] if event["event"] not in QUIET]
        parts += [Padding(event_line(event), (0, 0, 0, 4), expand=False) for event in events]
        parts.append(step_after(run, index))
    return Group(*parts)


def step_before(run: Mapping[str, Any], index: int) -> RenderableType:
    """What comes in, and what the server holds when it does."""
    step = run["steps"][index]
    text = Text(f"{index + 1}. {step['name']}", style="name")
    if step["do"] != "complete":
        text.append(f"  {step['do']}", style="")
    else:
        text.append(f"  a prompt of {step['prompt_tokens']} tokens", style="")
    return text


def step_after(run: Mapping[str, Any], index: int) -> RenderableType:
    """What became of it."""
    step = run["steps"][index]
    facts = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    facts.add_column(style="quiet", min_width=13, no_wrap=True)
    facts.add_column(overflow="fold")
    for word, fact in _facts(run, index):
        facts.add_row(f"   {word}", fact)
    return Group(*_heading(step), facts)


def _heading(step: Mapping[str, Any]) -> Iterator[RenderableType]:
    if step["error"] is not None:
        yield Text(f"   {step['error']}: {step['message']}", style="wrong")


def _facts(run: Mapping[str, Any], index: int) -> Iterator[tuple[str, RenderableType]]:
    step = run["steps"][index]
    explanation = step["explanation"]
    if explanation:
        yield "prompt", _prompt_ribbon(step, explanation)
    yield from rule_facts(step)
    for slot in step["slots"]:
        yield f"slot {slot['id']}", _slot_ribbon(run, index, slot)
    yield from memory_facts(run, index)
    if step["checkpoints"]:
        shelf = [checkpoint_word(each) for each in step["checkpoints"]]
        shown = shelf if len(shelf) <= MOST_CHECKPOINTS else ["...", *shelf[-MOST_CHECKPOINTS:]]
        yield "checkpoints", " ".join(shown)
    if step["prompt_cache"]:
        yield "prompt cache", entries_text(step["prompt_cache"])
    if step["answer"] is not None:
        yield "answer", answer_text(step["answer"])
    yield from wrong_facts(step)


def entries_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """The parked conversations, oldest first."""
    return ", ".join(
        f"{each['n_tokens']} tokens"
        + (f" with {each['checkpoints']} checkpoint" if each["checkpoints"] else "")
        + "s"[: each["checkpoints"] > 1]
        for each in entries
    )


def _prompt_ribbon(step: Mapping[str, Any], explanation: Mapping[str, Any]) -> Text:
    cached, equal = step["cached"], max(explanation["equal"], step["cached"])
    new = step["prompt_tokens"] - equal
    return ribbon([("R", cached), ("r", equal - cached), ("C", new)])


def _slot_ribbon(run: Mapping[str, Any], index: int, slot: Mapping[str, Any]) -> RenderableType:
    """What a slot holds now, and what it held that is gone."""
    step = run["steps"][index]
    before = next(
        (
            each["n_tokens"]
            for each in (run["steps"][index - 1]["slots"] if index else ())
            if each["id"] == slot["id"]
        ),
        0,
    )
    if slot["id"] != step["slot"] or step["cached"] is None:
        return ribbon([(".", slot["n_tokens"])]) if slot["n_tokens"] else Text("empty", "quiet")
    kept = min(step["cached"], slot["n_tokens"])
    cut = max(0, before - kept)
    return ribbon([("R", kept), ("C", slot["n_tokens"] - kept), ("X", cut)])
