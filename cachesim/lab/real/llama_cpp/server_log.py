"""Log lines of the real server about its caches, call by call, without times and addresses."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cachesim.lab.real.llama_cpp.worker import CALL_MARK
from cachesim.units import Token, Tokens

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


SECONDS_TO_CATCH_UP: Final = 1.0
IDLE: Final = "all slots are idle"
"""The last line of a call; the log is written behind the server's back."""

_BEST = re.compile(r"seq_id (\d+), draft candidate\s+0, pos\s+(\d+):\s+(\d+)")
_ROOM = re.compile(r"task (\d+) \| max possible draft:\s+[1-9]")
_FULL: Final = "draft: llama_decode returned"
_DRAFT = re.compile(r"id\s+(\d+) \| task (\d+) \| generate_draft: .*#draft=(\d+)")
_LAUNCH = re.compile(r"id\s+\d+ \| task (\d+) \| processing task")


def drafts_of(lines: list[str]) -> list[tuple[Tokens, ...]]:
    """Per request of one call, in the order they were sent: what was proposed, step by step.

    A step begins with the room there is for a draft. Where the companion's memory is full it may
    propose nothing at all, and the log says no more of that step.
    """
    begun: set[int] = set()
    refused: set[int] = set()
    said: dict[int, list[Token]] = {}
    drafts: dict[int, list[Tokens]] = {}
    for line in lines:
        if found := _BEST.search(line):
            slot, position, token = (int(each) for each in found.groups())
            if position == 0:
                said[slot] = []
            said.setdefault(slot, []).append(Token(token))
        elif found := _DRAFT.search(line):
            slot, task, count = (int(each) for each in found.groups())
            if count and slot not in said:
                continue  # what was accepted before a restore, read once more
            drafts.setdefault(task, []).append(tuple(said.pop(slot, [])[:count]))
            begun.discard(task)
            refused.discard(task)
        elif found := _ROOM.search(line):
            task = int(found[1])
            if task in refused:
                drafts.setdefault(task, []).append(())
                refused.discard(task)
            begun.add(task)
        elif _FULL in line:
            refused |= begun
        elif found := _LAUNCH.search(line):
            drafts.setdefault(int(found[1]), [])
    return [tuple(drafts[task]) for task in sorted(drafts)]


def last_call(log: Path, start: int) -> tuple[list[str], int]:
    """The lines of the call whose mark lies at or behind `start`, and where the log ends."""
    patience = time.monotonic() + SECONDS_TO_CATCH_UP
    while True:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
        _, _, call = data.rpartition(CALL_MARK.encode())
        text = call.decode(errors="replace")
        if IDLE in text or time.monotonic() > patience:
            return text.splitlines(), start + len(data)
        time.sleep(0.005)
