"""Where a trace comes from, how much of it is played, and what it is scaled to.

conversation_trace.jsonl    a file as its publishers write it
made:100000, made:100000:7  so many requests that are made up, with a seed
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from cachesim.traces.made import UNIT, made_requests
from cachesim.traces.reading import Asked, TraceError, open_trace

MADE: Final = re.compile(r"made:(\d{1,10})(?::(\d{1,10}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace, and how it is read."""

    name: str
    unit: int = 0  # tokens of a block; 0: as the first request has it
    first: int | None = None  # so many requests; all if None
    scale: int = 32  # tokens that become one
    replies: int | None = (
        None  # tokens of every reply, after scaling; as the trace has them if None
    )

    def __post_init__(self) -> None:
        for name, value in (("--first", self.first), ("--replies", self.replies)):
            if value is not None and value < 1:
                msg = f"{name} is {value}; write a whole number from 1"
                raise TraceError(msg)
        if self.scale < 1:
            msg = f"--scale is {self.scale}; write a whole number from 1"
            raise TraceError(msg)
        if self.name.startswith("made:") and not MADE.fullmatch(self.name):
            msg = f"{self.name} is no trace; write made:REQUESTS or made:REQUESTS:SEED"
            raise TraceError(msg)

    def open(self) -> tuple[int, Iterator[Asked]]:
        """The tokens of a block, and the requests."""
        made = MADE.fullmatch(self.name)
        if made:
            unit, requests = UNIT, made_requests(int(made[1]), int(made[2] or 0))
        else:
            unit, requests = open_trace(Path(self.name), self.unit)
        if unit % self.scale:
            msg = f"--scale is {self.scale}; it must divide the trace's blocks of {unit} tokens"
            raise TraceError(msg)
        return unit, islice(requests, self.first)

    def digest(self) -> str:
        """What is in the trace: the same for the same requests, wherever the file lies."""
        if MADE.fullmatch(self.name):
            return self.name
        try:
            with Path(self.name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            msg = f"{self.name}: cannot be read: {error.strerror or error}"
            raise TraceError(msg) from None
