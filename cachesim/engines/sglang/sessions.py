"""Sessions: requests that continue an earlier one, whose tokens the server keeps.

    first  [ P | reply ]            append   [ P | reply | new ]
    offset [ P | reply )[ new ]     drop     [ P | new ]

A session holds no memory: a continued request is matched in the tree like any other. Follows
`session_controller.py`. A streaming session does, and each of its requests continues the last: a
turn leaves its slots and states to the next one, and not to the tree.

    turn 1   [ prompt in the tree | reply ]       a record, and a lock on the tree's part
    turn 2   [ the record of turn 1       | new | reply ]       the same record, longer

A turn that is aborted gives the record away. Follows `StreamingSession` of 0.5.22 on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cachesim.engines.sglang.node import NO_SLOTS
from cachesim.engines.sglang.request import Req, Stream
from cachesim.engines.sglang.tree import Match, Tree
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
            raise OptionError(
                f"request field {FIELD!r} is no session; write {{ id = 'S', rid = 'r1' }}, with "
                "offset, replace, drop_previous_output, streaming or close where they are wanted"
            )
        read = {**given}
        kinds: dict[str, type] = {"id": str, "rid": str, "offset": int}
        for name, value in read.items():
            if type(value) is not kinds.get(name, bool):
                raise OptionError(f"request field {FIELD!r}: {name} is {value!r}")
        if not read.get("id"):
            raise OptionError(f"request field {FIELD!r} has no id; write the name of a session")
        return cls(**read)


@dataclass(slots=True, eq=False)
class SessionReqNode:
    """A request of a session, and those that continue it (`SessionReqNode`)."""

    name: str
    req: Req
    children: list["SessionReqNode"] = field(default_factory=list)

    def abort(self) -> None:
        """End the request with its next token."""
        if not self.req.finished:
            self.req.to_finish = True

    def clear_children(self, nodes: dict[str, "SessionReqNode"]) -> None:
        """End the requests that continue this one, and forget them."""
        for child in self.children:
            child.clear(nodes)
        self.children = []

    def clear(self, nodes: dict[str, "SessionReqNode"]) -> None:
        """End this request and those that continue it, and forget them."""
        for child in self.children:
            child.clear(nodes)
        self.abort()
        # Trap: two of one name are one entry, and forgetting the second ends the server.
        if self.name not in nodes:
            where = "SessionReqNode.clear"
            raise UpstreamAbort(where, f"KeyError: {self.name!r}")
        del nodes[self.name]


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
        """
        if self.closes:
            return None
        if self.stream is not None:
            return _next_turn(self.stream, params, tokens)
        # Trap: upstream empties the dictionary that it iterates over.
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
            last.clear_children(self.nodes)
        # The tokens of its reply are not known yet.
        elif not (last.req.finished and not last.req.dropped):
            return None
        end = last.req.num_prompt if params.drop_previous_output else last.req.num_tokens
        return np.concatenate((last.req.tokens[:end][: params.offset or None], tokens))

    def join(self, params: SessionParams, name: str, req: Req) -> None:
        """Keep a request under its name."""
        if self.stream is not None:
            self.stream.turn, self.stream.inflight = req, True
            return
        parent = self.nodes.get(params.rid) if params.rid else None
        node = self.nodes[name] = SessionReqNode(name, req)
        if parent is not None:
            parent.children.append(node)


def _next_turn(stream: Stream, params: SessionParams, tokens: Integers) -> Integers | None:
    """The prompt of a streaming session's next turn; None where it is refused."""
    if stream.inflight or params.replace or params.drop_previous_output or params.offset:
        return None
    _check_turn(stream)
    last = stream.last
    turn = tokens if last is None else np.concatenate((last.tokens[: last.num_tokens], tokens))
    return turn if len(turn) else None


def reap(sessions: dict[str, Session], close: Callable[[Stream], None]) -> None:
    """Close the sessions whose requests are done. Follows `maybe_reap`."""
    for name, session in [*sessions.items()]:
        stream = session.stream
        if not session.closes or (stream is not None and _keeps_open(stream)):
            continue
        del sessions[name]
        if stream is not None:
            _check_turn(stream)
            close(stream)


def _keeps_open(stream: Stream) -> bool:
    """Trap: a last turn that ended without a reason, as for memory, keeps its session open."""
    last = stream.last
    return stream.inflight or (last is not None and (last.dropped or not last.finished))


def _check_turn(stream: Stream) -> None:
    """Refuse a running turn that a release counts as over."""
    if stream.turn is not None and not stream.turn.finished:
        raise OptionError(
            "a streaming session counts as idle while a turn of it runs (another was refused), and "
            "gives the turn's memory away, which is not simulated"
        )


def streams(sessions: Mapping[str, Session]) -> list[Stream]:
    """The streaming sessions."""
    return [session.stream for session in sessions.values() if session.stream is not None]


def records(sessions: Mapping[str, Session]) -> list[Req]:
    """The records that sessions hold."""
    return [stream.holder for stream in streams(sessions) if stream.holder is not None]


RECORD: Final = (
    "row", "has_row", "protected", "inserted", "committed", "allocated", "window_evicted",
    "state", "state_source", "tracks", "next_track", "kept_track", "tracked", "tracked_before",
)  # fmt: skip
"""Attributes of a request that belong to its record (`ReqKvInfo`)."""


def _move_record(source: Req, target: Req) -> None:
    """Move a record; the source keeps an empty one."""
    empty = Req(source.id, NO_SLOTS, 0, 0)
    for name in RECORD:
        setattr(target, name, getattr(source, name))
        setattr(source, name, getattr(empty, name))


def borrowed(req: Req) -> Stream | None:
    """The session whose record a request has. Follows `borrowed_slot`."""
    return req.stream if req.stream is not None and req.stream.holder is req else None


def match(tree: Tree, req: Req, length: int) -> Match | None:
    """Lend a session's record to its next turn; None where it has none. Follows
    `try_match_prefix`.

    Trap: a refused request marks the session as idle, though another turn may run.
    """
    stream = req.stream
    if stream is None or stream.holder is None:
        return None
    # Trap: a refused request marks the session as idle, though another turn may run.
    if req.to_finish:
        stream.inflight = req.in_session = False
        req.stream = None
        return None
    if stream.holder is not req:
        _move_record(stream.holder, req)
        stream.holder = req
    prefix = min(req.committed, length)
    # The tree's part is locked: a turn can only add to it.
    if prefix < req.protected:
        where = "StreamingSession.try_match_prefix"
        raise UpstreamAbort(where, "assert: streaming session prefix shrank")
    page = tree.shape.page
    # The window of the cut page is gone, so the page is computed again.
    if page > 1 and req.window_evicted > prefix:
        prefix = prefix // page * page
    _cut(tree, req, prefix)
    return Match(req.row[:prefix].copy(), tree.root, attention=prefix)


def _cut(tree: Tree, req: Req, length: int) -> None:
    """Free whole pages beyond a length. Follows `_free_tail` and `_trim_overshoot`."""
    page = tree.shape.page
    tree.free_row(req, -(-length // page) * page, req.allocated)
    req.allocated = min(req.allocated, length)
    req.committed = min(req.committed, length)
    req.window_evicted = min(req.window_evicted, length)


def take(req: Req) -> None:
    """Give a first turn's record and lock to its session. Follows `take`."""
    stream = req.stream
    if stream is None or stream.holder is req:
        return
    # Trap: a refused request takes the record too where there is none, which ends the server if the
    # first turn is in the same batch.
    if stream.holder is not None:
        where = "StreamingSession.take"
        raise UpstreamAbort(where, "assert: the session already has a slot")
    stream.holder, stream.publishes = req, True
    _lock_to_session(req, stream)


def _lock_to_session(req: Req, stream: Stream) -> None:
    stream.node, stream.lock = req.last_node, req.lock
    req.last_node = req.lock = None


def checkpoint(tree: Tree, req: Req) -> None:
    """Insert a computed chunk, of a session only its first prompt. Follows `try_checkpoint`."""
    stream = borrowed(req)
    if stream is None:
        tree.cache_unfinished(req)
    # Only the first prompt enters the tree; later turns stay in the record.
    elif stream.publishes:
        req.last_node, req.lock = stream.node, stream.lock
        tree.cache_unfinished(req)
        _lock_to_session(req, stream)
    else:
        req.prefix = req.fill


def keep_turn(tree: Tree, req: Req, *, aborted: bool) -> bool:
    """Keep the record of a turn that is over or retracted. Follows `try_cache_finished_req`.

    Traps: a retracted turn counts as the session's last, and leaves the session if it is retracted
    again; one of a model with states that was aborted in the queue counts as the last, too. With
    drafts the last token counts as computed, which it is not without overlap, nor where a run of
    one token reached `max_new_tokens`: no step is in flight then (`_reqs_finishing_inflight`).
    """
    stream = req.stream
    if stream is None:
        return False
    if stream.holder is not req:
        where = "StreamingSession.try_cache_finished_req"
        raise UpstreamAbort(where, "assert: a streaming request does not run on its slot")
    # An aborted turn gives the record away: the next one is matched in the tree.
    if aborted:
        stream.holder, stream.inflight = None, False
        req.last_node, req.lock = stream.node, stream.lock
        return False
    # A run may have gone beyond the last token.
    if req.finished_len is not None:
        req.num_tokens = req.num_prompt + req.finished_len
    target, page = req.num_tokens, tree.shape.page
    _cut(tree, req, target // page * page if req.window_evicted > target else target)
    record = Req(req.id, NO_SLOTS, 0, 0)
    _move_record(req, record)
    record.committed = req.committed = min(target, record.allocated)
    req.window_branch = None
    stream.holder, stream.publishes = record, False
    if stream.last is not None:
        stream.last.stream, stream.last.in_session = None, False
    stream.last, stream.inflight = req, False
    return True


def release(tree: Tree, stream: Stream) -> bool:
    """Free the record of a session that closes; False if it has none. Follows
    `release_session`.
    """
    record, stream.holder = stream.holder, None
    if record is None:
        return False
    if stream.node is not None:
        tree.unlock(stream.node, stream.lock)
    tree.free_row(record, record.protected, record.allocated)
    for state in (record.state, *(record.tracks or ())):
        if state is not None:
            tree.state_pool.free(state)
    _move_record(Req(record.id, NO_SLOTS, 0, 0), record)
    return True
