"""Calls of libllama b11739, recorded: the port returns what the library returned."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesim.engines.llamacpp.memory.rules import B9094
from cachesim.errors import UpstreamAbort
from conformance.real.llama_cpp.library import mismatch, rules_of

VECTORS = Path(__file__).parents[3] / "vectors" / "libllama-b11739.jsonl.gz"
LINES = tuple(map(json.loads, gzip.decompress(VECTORS.read_bytes()).decode().splitlines()))


def plays_otherwise(line: dict[str, Any], **older: Any) -> bool:
    """True if a memory with an older rule returns something else, or ends the process."""
    rules = replace(rules_of("b11549+28873"), **older)
    try:
        return mismatch(line, rules) is not None
    except UpstreamAbort:
        return True


def test_every_call_returns_what_the_library_returned() -> None:
    assert [] == [line["id"] for line in LINES if plays_otherwise(line)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rule",
    [
        "saves_plain_partially",
        "rolls_back_shared",
        "refuses_foreign_ids",
        "attention_header",
    ],
)
def test_an_older_rule_plays_some_of_them_otherwise(rule: str) -> None:
    assert any(plays_otherwise(line, **{rule: getattr(B9094, rule)}) for line in LINES)
