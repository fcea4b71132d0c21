"""Sessions: requests that continue an earlier one, whose tokens the server keeps.

    first  [ P | reply ]            append   [ P | reply | new ]
    offset [ P | reply )[ new ]     drop     [ P | new ]

A session holds no memory: a continued request is matched in the tree like any other. A streaming
session does, and each of its requests continues the last (see `streaming`). Follows
`session_controller.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cachesim.engines.sglang.request import Req, Stream
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.units import Integers

FIELD: Final = "session_params"

STUB: Final = np.zeros(1, np.int64)
"""The prompt of a request that is refused: it is processed all the same."""


@dataclass(frozen=True, slots=True)
class SessionParams:
    """Continuation of an earlier request (`SessionParams`)."""

    id: str
    rid: str = ""
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False
    streaming: bool = False  # of the session that a request opens
    close: bool = False  # `/close_session` right behind the request

    @classmethod
    def of(cls, given: object) -> "SessionParams":
        """Read a request's field."""
        if not isinstance(given, Mapping) or not given.keys() <= set(cls.__slots__):
            msg = (
                f"request field {FIELD!r} is no session; write {{ id = 'S', rid = 'r1' }}, with "
                "offset, replace, drop_previous_output, streaming or close where they are wanted"
            )
            raise OptionError(msg)
        read = {**given}
        kinds: dict[str, type] = {"id": str, "rid": str, "offset": int}
        for name, value in read.items():
            if type(value) is not kinds.get(name, bool):
                msg = f"request field {FIELD!r}: {name} is {value!r}"
                raise OptionError(msg)
        if not read.get("id"):
            msg = f"request field {FIELD!r} has no id; write the name of a session"
            raise OptionError(msg)
        return cls(**read)


@dataclass(slots=True, eq=False)
class SessionReqNode:
    """A request of a session, and those that continue it."""

    req: Req
    children: dict[str, "SessionReqNode"] = field(default_factory=dict)

    def abort(self) -> None:
        """End the request with its next token."""
        if not self.req.finished:
            self.req.to_finish = True


@dataclass(slots=True)
class Session:
    """The requests of a session, by their names (`Session`)."""

    nodes: dict[str, SessionReqNode] = field(default_factory=dict)
    stream: Stream | None = None
    closes: bool = False  # close_on_finish

    @classmethod
    def of(cls, params: SessionParams) -> "Session":
        """The session that a request opens."""
        return cls(stream=Stream() if params.streaming else None)

    def prompt(self, params: SessionParams, tokens: Integers) -> Integers | None:
        """The prompt of a request of these tokens; None where it is refused. Follows
        `create_req`.

        Trap: to replace all of a session ends the server, which empties the dictionary that it
        goes through.
        """
        if self.closes:
            return None
        if self.stream is not None:
            return _next_turn(self.stream, params, tokens)
        if params.replace and not params.rid and self.nodes:
            where = "Session.create_req"
            raise UpstreamAbort(where, "RuntimeError: dictionary changed size during iteration")
        if not params.rid:
            return tokens
        last = self.nodes.get(params.rid)
        if last is None:
            return None
        if params.replace:
            last.abort()
            for name in list(last.children):
                self._clear(name)
            last.children.clear()
        elif not (last.req.finished and not last.req.dropped):
            return None
        end = last.req.num_prompt if params.drop_previous_output else last.req.num_tokens
        return np.concatenate((last.req.tokens[:end][: params.offset or None], tokens))

    def join(self, params: SessionParams, name: str, req: Req) -> None:
        """Keep a request under its name."""
        if self.stream is not None:
            self.stream.turn, self.stream.inflight = req, True
            return
        node = self.nodes[name] = SessionReqNode(req)
        if params.rid:
            self.nodes[params.rid].children[name] = node

    def _clear(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            for child in list(node.children):
                self._clear(child)
            node.abort()


def _next_turn(stream: Stream, params: SessionParams, tokens: Integers) -> Integers | None:
    """The prompt of a streaming session's next turn; None where it is refused."""
    if stream.inflight or params.replace or params.drop_previous_output or params.offset:
        return None
    _check_turn(stream)
    last = stream.last
    found = tokens if last is None else np.concatenate((last.tokens[: last.num_tokens], tokens))
    return found if len(found) else None


def reap(sessions: dict[str, Session], close: Callable[[Stream], None]) -> None:
    """Close the sessions whose requests are done. Follows `maybe_reap`."""
    for name, session in [*sessions.items()]:
        stream = session.stream
        if not session.closes or (stream is not None and _waits(stream)):
            continue
        del sessions[name]
        if stream is not None:
            _check_turn(stream)
            close(stream)


def _waits(stream: Stream) -> bool:
    """Trap: a last turn that ended without a reason, as for memory, keeps its session open."""
    last = stream.last
    return stream.inflight or (last is not None and (last.dropped or not last.finished))


def _check_turn(stream: Stream) -> None:
    """Refuse what a release does to a turn under way that counts as over."""
    if stream.turn is not None and not stream.turn.finished:
        msg = (
            "a streaming session counts as idle while a turn of it runs (another was refused), and "
            "gives the turn's memory away, which is not simulated"
        )
        raise OptionError(msg)


def streams(sessions: Mapping[str, Session]) -> list[Stream]:
    """The streaming sessions."""
    return [each.stream for each in sessions.values() if each.stream is not None]


def records(sessions: Mapping[str, Session]) -> list[Req]:
    """The records that sessions hold."""
    return [each.holder for each in streams(sessions) if each.holder is not None]
