"""Inputs of `why`, `tune` and `record`: logs or recorded requests, server settings.

Logs come from files or from standard input; what a flag asks for is written to files.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, RawIOBase
from typing import Annotated, BinaryIO, Final, TypeAlias, cast

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli.jobs import setting
from cachesim.cli.options import Preset, Profile
from cachesim.errors import InputError
from cachesim.packed import in_utf8, unpacked
from cachesim.report.consoles import notes, show
from cachesim.scenario.shipped import STDIN
from cachesim.why.explain.whole import UserSettings, open_log
from cachesim.why.read.dump import DumpReader, Recorded, is_dump
from cachesim.why.read.mlx_debug import as_dump, has_bodies

HEAD: Final = 1 << 20
"""Leading bytes of a log with its first request, after what a server prints at its start."""

FIRST: Final = 1 << 16
"""Leading bytes by which logs and recorded requests are distinguished."""

STANDARD_INPUT: Final = "standard input"

Chats: TypeAlias = Annotated[
    bool, Parameter(help="Say that all requests are chats; not every log does.")
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """Server settings, each with a flag of its own."""

    profile: Profile = None
    model: Preset = None
    window: Annotated[int | None, Parameter(help="The model's sliding window.")] = None

    def wanted(self, flags: Sequence[str] | None, *, chats: bool = False) -> UserSettings:
        """The settings with the flags that the server was started with."""
        if self.window is not None and self.window < 1:
            raise InputError(f"--window is {self.window}; write a number of tokens from 1")
        return UserSettings(
            profile=self.profile,
            model=self.model,
            window=self.window,
            options=dict(map(setting, flags or ())),
            chats=chats,
        )


UNSAID: Final = ServerFlags()
"""No setting given: all are read from the log or the requests."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input: its name, its bytes, and its first bytes (read again)."""

    name: str
    file: BinaryIO
    head: bytes

    @property
    def is_recording(self) -> bool:
        return is_dump(self.head[:FIRST])

    @property
    def has_requests(self) -> bool:
        return self.is_recording or has_bodies(self.head)


class _RewoundStream(RawIOBase):
    """A stream whose head was already read, from the start."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        part = self._head[: len(view)] or self._rest.read(len(view))
        self._head = self._head[len(part) :]
        view[: len(part)] = part
        return len(part)


@contextmanager
def given(files: Sequence[str], *, example: str) -> Iterator[list[InputFile]]:
    """The opened inputs; standard input is read as it arrives."""
    if not files:
        msg = f"name a log: a file, several of one server, or - for standard input, as in {example}"
        raise InputError(msg)
    with ExitStack() as stack:
        yield [stack.enter_context(_opened(name)) for name in files]


def _peeked(stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    head = stream.read(HEAD)
    return head, cast("BinaryIO", BufferedReader(_RewoundStream(head, stream)))


@contextmanager
def _opened(name: str) -> Iterator[InputFile]:
    if name in {"-", STDIN}:
        head, file = _peeked(cast("BinaryIO", sys.stdin.buffer))
        for convert in (partial(unpacked, STANDARD_INPUT), in_utf8):
            inner = convert(file, head)
            if inner is not file:
                head, file = _peeked(inner)
        yield InputFile(STANDARD_INPUT, file, head)
        return
    _, file = open_log(name)
    with file:
        head = file.read(HEAD)
        file.seek(0)
        inner = in_utf8(file, head)
        if inner is not file:
            head, file = _peeked(inner)
        yield InputFile(name, file, head)


def requests_in(inputs: Sequence[InputFile]) -> list[Recorded]:
    """Recorded requests, if no input is a log."""
    logs = [file.name for file in inputs if not file.has_requests]
    recorded = [file.name for file in inputs if file.is_recording]
    if logs and recorded:
        msg = f"{recorded[0]} has recorded requests, and {logs[0]} is a log; read one at a time"
        raise InputError(msg)
    if logs:
        return []
    reader = DumpReader()
    for file in inputs:
        reader.read(file.name, as_dump(file.file) if has_bodies(file.head) else file.file)
    left_out = ", ".join(f"{why} ({count})" for why, count in sorted(reader.unread.items()))
    if left_out:
        show(notes(), Text(f"requests without a prompt are left out: {left_out}"))
    if not reader.requests:
        msg = f"{', '.join(file.name for file in inputs)}: no request with a prompt is recorded"
        raise InputError(msg)
    for place in reader.cut:
        show(notes(), Text(f"{place}: the last line is cut; it is left out"))
    return reader.requests
