"""From log files to the report, in one call."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from cachesim.errors import InputError, OptionError, UpstreamAbort
from cachesim.lab.logs.lines import Line, Tally, lines_of
from cachesim.lab.logs.observed import ServerLog
from cachesim.lab.logs.passes import rebuild, unplayed
from cachesim.lab.logs.reading import Reader
from cachesim.lab.logs.replay import Replay
from cachesim.lab.logs.report import report_of
from cachesim.lab.logs.settings import settings_of
from cachesim.packed import HEAD_BYTES, unpacked

MOST_REQUESTS: Final = 100_000
"""Most requests of a log that are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """Server settings given by the user."""

    profile: str | None = None
    model: str | None = None
    window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    chats: bool = False  # every request is a chat, whether the log says so or not


@dataclass(slots=True)
class Read:
    """Content of the files: lines, servers, foreign logs."""

    servers: list[ServerLog]
    sources: list[str]
    lines: int
    known_lines: int
    wrapped_at: int  # characters after which a terminal broke the lines; 0 where none did
    foreign: set[str]


RECORD: Final = (
    "Such logs do not carry what a replay needs. Record the requests as JSON Lines (with `usage` "
    "and `timings` as they come back); `cachesim why` reads those too."
)
"""Advice for logs without the lines that a replay needs."""


def read_files(files: Sequence[tuple[str, BinaryIO]]) -> Read:
    """Read several logs as one."""
    reader, tally = Reader(), Tally()
    for name, file in files:
        reader.take(_of_one_server(lines_of(file, tally), name))
        if sum(len(each.requests) for each in reader.servers) > MOST_REQUESTS:
            msg = f"the log has more than {MOST_REQUESTS} requests: cut it, as with tail -n 500000"
            raise InputError(msg)
    servers = [each for each in reader.servers if not each.is_empty]
    return Read(
        servers=servers,
        sources=[name for name, _ in files],
        lines=tally.lines,
        known_lines=sum(each.known_lines for each in reader.servers),
        wrapped_at=tally.wrapped_at,
        foreign=set().union(*(each.foreign for each in reader.servers)),
    )


def _of_one_server(lines: Iterable[Line], name: str) -> Iterator[Line]:
    """The lines, unless several servers' are mixed, whose slot numbers collide.

    A server that is started again under another process number does not come back to the first.
    """
    origins: list[str] = []
    for line in lines:
        if line.origin and line.origin not in origins[-1:]:
            if line.origin in origins:
                raise InputError(_mixed(name, origins))
            origins.append(line.origin)
        yield line


def _mixed(name: str, origins: Sequence[str]) -> str:
    return (
        f"{name}: lines of several servers are mixed: {', '.join(origins)}. Explain one at a time: "
        f"keep its lines, as with grep -F '{origins[-1]}'"
    )


def replays_of(
    read: Read, user: UserSettings, progress: Callable[[int], None] | None = None
) -> list[Replay]:
    """Replay parsed logs."""
    if not read.servers:
        raise InputError(_nothing_in(read))
    replays = []
    for server in read.servers:
        if user.chats:
            server.holds_chats()
        settings = settings_of(
            server,
            profile=user.profile,
            model=user.model,
            window=user.window,
            given=user.options,
        )
        if settings.is_played:
            try:
                replays.append(rebuild(server, settings, progress=progress))
            except (OptionError, UpstreamAbort) as error:
                names = ", ".join(read.sources)
                msg = f"{names}: no server starts with what it says: {error}"
                raise InputError(msg) from None
        else:
            replays.append(unplayed(server, settings))
    return replays


def why(read: Read, replays: Sequence[Replay]) -> dict[str, Any]:
    """JSON of `cachesim why` for replayed logs."""
    found = report_of(replays, sources=read.sources, lines=read.lines, known_lines=read.known_lines)
    if read.wrapped_at:
        found["log"]["broken"] = _wrapped(read.wrapped_at)
    return found


def _wrapped(at: int) -> str:
    return (
        f"No line is longer than {at} characters, and many are as long: a terminal seems to have "
        "broken them. A number of which a part is on the next line is read wrongly. Save the log "
        "to a file instead."
    )


def _nothing_in(read: Read) -> str:
    names = ", ".join(read.sources)
    if read.foreign:
        return f"{names}: is a log of {', '.join(sorted(read.foreign))}. {RECORD}"
    if read.known_lines:
        return (
            f"{names}: {read.known_lines} of {read.lines} lines are a llama-server's, and none "
            "tells of a request. Requests are printed at the default verbosity (`-lv 3`) and above."
        )
    return (
        f"{names}: not a llama-server log: no line of {read.lines} was recognised. "
        "`cachesim why` reads the log of a llama-server (its standard error), or recorded "
        "requests as JSON Lines."
    )


def open_log(name: str) -> tuple[str, BinaryIO]:
    """Open one file, compressed or not."""
    path = Path(name)
    try:
        if path.is_dir():
            msg = f"{name}: is a folder; name a log file"
            raise InputError(msg)
        file = path.open("rb")
        return name, unpacked(name, file, file.peek(HEAD_BYTES))
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
