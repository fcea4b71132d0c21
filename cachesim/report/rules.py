"""The rules at work as lines: from how many tokens to how many, and why."""

from collections.abc import Iterator, Mapping
from typing import Any

Fact = tuple[str, str]
"""A word, and what it stands before."""


def checkpoint_word(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint as people write it: its tokens, and the positions it covers."""
    return f"{checkpoint['n_tokens']}[{checkpoint['pos_min']}..{checkpoint['pos_max']}]"


def rule_facts(step: Mapping[str, Any]) -> Iterator[Fact]:
    """What was equal, and a line for each rule that changed the number."""
    sentences = (step["explanation"] or {}).get("sentences", ())
    if sentences:
        yield "equal", sentences[0]
    for entry, sentence in zip(step["why"], sentences[1:], strict=False):
        words = sentence.rpartition(": ")[0] or entry["rule"]
        yield "rule", f"{entry['from']} → {entry['to']}  {words}"
    explanation = step["explanation"] or {}
    if explanation.get("lost", 0) > 0 and explanation["ideal"] > explanation["equal"]:
        yield "ideal", f"a cache that had every state would have reused {explanation['ideal']}"
