"""What the real server's log says of its caches, call by call, without times and addresses."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cachesim.real.llama_cpp.worker import CALL_MARK

PHRASES: Final = (
    "selected slot",
    "saving prompt",
    "saving idle slot",
    "already in the cache",
    "removing obsolete",
    "looking for better prompt",
    "found better prompt",
    "prompt with length",
    "failed to",
    "limit reached",
    "making room",
    "too large",
    "cache state",
    "- prompt 0x",
    "clearing prompt",
    "purging",
    "new prompt",
    "n_past",
    "n_cache_reuse",
    "reusing chunk",
    "checking checkpoint",
    "restored context checkpoint",
    "forcing full prompt",
    "erased invalidated",
    "erasing",
    "superseding",
    "created context checkpoint",
    "do_checkpoint",
    "cached n_tokens",
    "memory_seq_rm",
    "slot context shift",
    "retrying",
    "draft",
    "stop processing",
    "GGML_ASSERT",
    "deferred",
    "defer",
)
"""A line that holds none of these says nothing about caches."""

_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_MILLISECONDS = re.compile(r"[\d.]+ ms")


def calls_of(log: Path) -> list[list[str]]:
    """The telling lines of every call, in order."""
    calls: list[list[str]] = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(CALL_MARK):
            calls.append([])
        elif calls:
            calls[-1].extend(_telling(line))
    return calls


def _telling(line: str) -> Iterator[str]:
    lowered = line.lower()
    if any(phrase.lower() in lowered for phrase in PHRASES) and "launching slot" not in line:
        plain = _STAMP.sub("", line)
        yield _MILLISECONDS.sub("... ms", _ADDRESS.sub("0x...", plain)).strip()
