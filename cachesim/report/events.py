"""One event as one line: its name in words, then its numbers."""

from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

QUIET: Final = frozenset({"batch-decoded", "cache-state", "memory-cut", "prompt-started"})
"""Events that happen all the time."""

MOST: Final = 6
"""Longer lists are shown by their length."""

LEFT_OUT: Final = frozenset({"event", "slot", "task", "size", "size_companion", "tone", "sentence"})


def loudness(event: Mapping[str, Any]) -> str:
    """The style of an event's line."""
    return "quiet" if event["event"] in QUIET else ""


def event_line(event: Mapping[str, Any]) -> Text:
    """`checkpoint created  n_tokens 96  pos 95..95`."""
    values = {key: value for key, value in event.items() if key not in LEFT_OUT and _says(value)}
    if {"pos_min", "pos_max", "n_tokens"} <= set(values):
        low, high = values.pop("pos_min"), values.pop("pos_max")
        values["n_tokens"] = f"{values['n_tokens']}[{low}..{high}]"
    text = Text(event["event"].replace("-", " "))
    for key, value in values.items():
        text.append(f"  {key} ", style="quiet")
        text.append(_shown(value))
    return text


def _says(value: object) -> bool:
    """Whether there is anything to show: a number or a no is something, nothing is not."""
    return value is not None and value not in ("", [], {})


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        plain = len(value) <= MOST and not any(isinstance(each, dict | list) for each in value)
        return " ".join(map(_shown, value)) if plain else f"({len(value)})"
    if isinstance(value, dict):
        return f"({len(value)})"
    return str(value)
