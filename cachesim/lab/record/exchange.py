"""A proxied request with its answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cachesim.lab.logs.dump import LONGEST_REQUEST
from cachesim.lab.logs.slot_actions import ACTIONS
from cachesim.lab.record.answer import AnswerReader
from cachesim.printable import printable

RECORDED: Final = (
    "/chat/completions",
    "/completions",
    "/completion",
    "/infill",
    "/v1/messages",
    "/v1/responses",
    "/api/chat",  # Ollama
    "/generate",  # Ollama, SGLang, KoboldCpp
    "/generate/stream",  # KoboldCpp
    "/api/v1/chat",  # LM Studio
)
"""Ends of paths whose requests hold a prompt."""

NAMELESS: Final = re.compile(r"[^/]{24,}")
"""Parts of paths that may be keys or user ids."""


def path_shown(path: str) -> str:
    """A printable path: without a query, and without parts that may be secret."""
    return printable(NAMELESS.sub("*", path[:200]))


SLOT: Final = re.compile(r"/slots/(\d{1,4})/?$")


def holds_prompt(method: str, path: str) -> bool:
    """True if a call is recorded; others are only forwarded."""
    return method == "POST" and path.rstrip("/").endswith(RECORDED)


def slot_action(method: str, path: str, query: Mapping[str, str]) -> tuple[str, int] | None:
    """Action and slot of a call of llama-server's `/slots/N?action=...`."""
    found = SLOT.search(path) if method == "POST" else None
    action = query.get("action", "")
    return None if found is None or action not in ACTIONS else (action, int(found[1]))


@dataclass(slots=True)
class Body:
    """The bytes of a request, up to the longest that is recorded."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    encoding: str = ""

    def add(self, chunk: bytes) -> None:
        """Add forwarded bytes."""
        self.size += len(chunk)
        if self.size <= LONGEST_REQUEST:
            self.chunks.append(chunk)
        else:
            self.chunks.clear()

    @property
    def is_whole(self) -> bool:
        return self.size <= LONGEST_REQUEST


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and its answer; times are seconds, `began` since 1970, the others since then."""

    number: int
    method: str
    path: str  # without what follows a question mark: keys may stand there
    client: str
    began: float
    body: Body
    answer: AnswerReader
    action: tuple[str, int] | None = None  # on which slot, where it is no request with a prompt
    status: int | None = None
    first_byte: float | None = None
    seconds: float | None = None
    cancelled: bool = False  # the client disconnected before the end of the answer
    broken: str = ""  # what went wrong between server and recorder

    def add_chunk(self, chunk: bytes, seconds: float) -> None:
        """Record a forwarded chunk of the answer."""
        if self.first_byte is None:
            self.first_byte = seconds
        self.answer.feed(chunk)
