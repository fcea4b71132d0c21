"""The rules at work as lines: from how many tokens to how many, and why."""

from collections.abc import Iterator, Mapping
from typing import Any

Fact = tuple[str, str]
"""A word, and what it stands before."""


def checkpoint_word(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint as people write it: its tokens where they are told, the positions it covers."""
    tokens = checkpoint.get("n_tokens", "")
    return f"{tokens}[{checkpoint['pos_min']}..{checkpoint['pos_max']}]"


def is_same_checkpoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two events speak of one checkpoint; some servers' logs leave its tokens out."""
    told = {"n_tokens", "pos_min", "pos_max"} & one.keys() & other.keys()
    return all(one[key] == other[key] for key in told)


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
        yield "ideal", f"an ideal cache would have reused {explanation['ideal']}"
