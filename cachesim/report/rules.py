"""The rules of the servers in plain words: what each entry of "why" means to a reader.

An entry says from how many tokens to how many a rule changed what was usable; `said` turns it
into one line. A rule without a sentence here is shown with its values, so none is ever hidden.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Detail = Mapping[str, Any]


def _values(detail: Detail) -> str:
    simple = (f"{key} {value}" for key, value in detail.items() if not isinstance(value, list))
    return ", ".join(simple)


def checkpoint_word(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint as people write it: its tokens, and the positions it covers."""
    return f"{checkpoint['n_tokens']}[{checkpoint['pos_min']}..{checkpoint['pos_max']}]"


def _refused(detail: Detail) -> str:
    refused = [f"{checkpoint_word(c)}: {c['refused']}" for c in detail.get("checkpoints", ())]
    return "; no checkpoint to try" if not refused else "; refused " + ", ".join(refused)


def _depth(detail: Detail) -> str:
    return f"memory begins at {detail.get('pos_min')}, needed below {detail.get('threshold')}"


SENTENCES: Final[Mapping[str, Callable[[Detail], str]]] = {
    "slot-tokens": lambda d: f"the slot chosen (slot {d.get('slot')}) does not hold them",
    "cache-prompt-off": lambda _: "cache_prompt is off",
    "chunk-reuse": lambda _: "moved chunks of the old prompt count as equal (n_cache_reuse)",
    "full-reprocessing": lambda d: _depth(d) + _refused(d) + ": everything is read again",
    "memory-depth": lambda d: _depth(d) + ": the live memory cannot be cut back to there",
    "checkpoint-restored": lambda d: f"went back to checkpoint {checkpoint_word(d)}",
    "last-token": lambda _: "the last token is read again for its logits",
    "seq-rm-refused": lambda d: f"memory refused to be cut at {d.get('p0')}: all is read again",
    "cache-keep": lambda d: (
        f"entry of {d.get('n_tokens')} tokens: {d.get('f_keep', 0):.2f} of it would be kept,"
        " below 0.25"
    ),
    "cache-not-better": lambda d: (
        f"entry of {d.get('n_tokens')} tokens does not beat the slot's own on both ratios"
    ),
    "cache-better-entry": lambda d: f"entry of {d.get('n_tokens')} tokens lost to another",
    "cache-obsolete-entry": lambda d: f"entry of {d.get('n_tokens')} tokens became obsolete",
    "cache-making-room": lambda d: f"entry of {d.get('n_tokens')} tokens was dropped to make room",
    "cache-load-failed": lambda _: "the entry's state did not load",
}
"""Sentences for the rules that llama.cpp's engine names."""


def said(entry: Mapping[str, Any]) -> str:
    """One entry of "why" as a line."""
    sentence = SENTENCES.get(entry["rule"])
    text = sentence(entry["detail"]) if sentence else _values(entry["detail"])
    return f"{entry['from']} → {entry['to']}  {entry['rule']}" + (f": {text}" if text else "")
