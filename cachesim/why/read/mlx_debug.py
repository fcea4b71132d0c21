r"""mlx-lm's log with `--log-level DEBUG`, which has whole requests: converted to recorded requests.

    DEBUG - Incoming Request Body: {       a request, over many lines, up to a line that is }
    INFO - Prompt processing progress: 64/165     what of it no cache had
    DEBUG - Outgoing Response: {           what came back, with its usage; not of streamed answers

Lines name no request. Two at once are told apart by how much they have to process, as far as that
goes; where it does not, the one that came first is taken.

Each line may have a supervisor's prefix. A body's lines begin with a tab, the last one is `}`:

    Jun 02 10:11:12 host mlx_lm.server[812]: \t"max_tokens": 4,
    \--------------- prefix ---------------/
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, Final

from cachesim.why.read.lines import unwrapped

IN, OUT = b"Incoming Request Body: {", b"Outgoing Response: {"

PROGRESS: Final = re.compile(rb"Prompt processing progress: (\d{1,12})/(\d{1,12})")
REFUSED: Final = re.compile(rb'"POST /\S{1,200} HTTP/[\d.]+" [45]\d\d')

LONGEST_BODY: Final = 64 * 2**20
"""Most bytes of a request with its whole conversation."""


@dataclass(slots=True)
class Call:
    """A request, from the lines so far."""

    body: dict[str, Any]
    processed: int | None = None
    done: int = 0
    usage: dict[str, Any] | None = None

    def fits(self, usage: dict[str, Any]) -> bool:
        """True if an answer's usage matches the processed tokens."""
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        whole = usage.get("prompt_tokens")
        if not isinstance(cached, int) or not isinstance(whole, int):
            return True
        return self.processed in {None, whole - cached}

    def as_line(self) -> bytes:
        """The request as a line of recorded requests."""
        entry: dict[str, Any] = {"request": self.body}
        if self.usage is not None:
            entry["usage"] = self.usage
        if self.processed is not None:
            entry["timings"] = {"prompt_n": self.processed}
        return json.dumps(entry).encode() + b"\n"


def has_bodies(head: bytes) -> bool:
    """True if a log begins like mlx-lm's at DEBUG."""
    return IN in head


def as_dump(file: BinaryIO) -> BinaryIO:
    """A log as recorded requests, one per line."""
    calls: list[Call] = []
    open_: list[Call] = []
    lines = _lines(file)
    for raw in lines:
        if IN in raw or OUT in raw:
            body = _body(lines)
            if body is None:
                continue
            if IN in raw:
                calls.append(Call(body))
                open_.append(calls[-1])
            else:
                _answered(open_, body)
        elif (progress := PROGRESS.search(raw)) is not None:
            _progressed(open_, int(progress[1]), int(progress[2]))
        elif REFUSED.search(raw) is not None and open_ and open_[-1].processed is None:
            calls.remove(open_.pop())
    return BytesIO(b"".join(call.as_line() for call in calls))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines; an object of a log collector may have several, as it may have a whole body."""
    is_list = False  # of objects over many lines, of which one has the message
    while raw := file.readline(LONGEST_BODY):
        has_message = raw.startswith(b" ") and b'"textPayload"' in raw
        is_list |= has_message
        if is_list and not has_message:
            continue
        if has_message or b"\x1b" in raw or raw.startswith(b"{"):
            text = unwrapped(raw.decode("utf-8", "replace").rstrip("\r\n"))
            yield from (part.encode() + b"\n" for part in text.split("\n"))
        else:
            yield raw


def _body(following: Iterator[bytes]) -> dict[str, Any] | None:
    lines, size = [b"{"], 0
    for raw in following:
        prefix, tab, rest = raw.partition(b"\t")
        lines.append(rest or raw)
        size += len(raw)
        if not tab and prefix.rstrip().endswith(b"}"):
            lines[-1] = b"}"
            break
        if size >= LONGEST_BODY:
            break
    try:
        body = json.loads(b"".join(lines))
    except (ValueError, RecursionError):
        return None  # cut, or another line in the middle of it
    return body if isinstance(body, dict) else None


def _progressed(open_: list[Call], done: int, whole: int) -> None:
    for call in open_:
        if call.processed == whole and call.done < done:
            call.done = done
            break
    else:
        fresh = next((new for new in open_ if new.processed is None), None)
        if fresh is None:
            return
        fresh.processed, fresh.done = whole, done
        call = fresh
    if done >= whole and call.body.get("stream") is True:
        open_.remove(call)  # nothing more is printed of it


def _answered(open_: list[Call], body: dict[str, Any]) -> None:
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return
    waiting = [request for request in open_ if request.body.get("stream") is not True]
    call = next((request for request in waiting if request.fits(usage)), None)
    if call is not None:
        call.usage = usage
        open_.remove(call)
