"""Streaming sessions: a turn leaves its slots and states to the next one, and not to the tree.

    turn 1   [ prompt in the tree | reply ]       a record, and a lock on the tree's part
    turn 2   [ the record of turn 1       | new | reply ]       the same record, longer

A turn that is aborted gives the record away. Follows `StreamingSession` of 0.5.22 on.
"""

from typing import Final

from cachesim.engines.sglang.node import NO_SLOTS
from cachesim.engines.sglang.request import Req, Stream
from cachesim.engines.sglang.tree import Match, Tree
from cachesim.errors import UpstreamAbort

RECORD: Final = (
    *("row", "has_row", "protected", "inserted", "committed", "allocated", "window_evicted"),
    *("state", "state_source", "tracks", "next_track", "kept_track", "tracked", "tracked_before"),
)
"""Attributes of a request that belong to its record (`ReqKvInfo`)."""


def _give(source: Req, target: Req) -> None:
    """Move a record; the source has an empty one then."""
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
    if req.to_finish:
        stream.inflight = req.in_session = False
        req.stream = None
        return None
    if stream.holder is not req:
        _give(stream.holder, req)
        stream.holder = req
    prefix = min(req.committed, length)
    if prefix < req.protected:
        where = "StreamingSession.try_match_prefix"
        raise UpstreamAbort(where, "assert: streaming session prefix shrank")
    page = tree.shape.page
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
    """Give a first turn's record and lock to its session. Follows `take`.

    Trap: a refused request takes them too where the session has none, which ends the server if
    the first turn is in the same batch.
    """
    stream = req.stream
    if stream is None or stream.holder is req:
        return
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
    drafts the last token counts as computed, which without overlap it is not.
    """
    stream = req.stream
    if stream is None:
        return False
    if stream.holder is not req:
        where = "StreamingSession.try_cache_finished_req"
        raise UpstreamAbort(where, "assert: a streaming request does not run on its slot")
    if aborted:
        stream.holder, stream.inflight = None, False
        req.last_node, req.lock = stream.node, stream.lock
        return False
    if req.finished_len is not None:
        req.num_tokens = req.num_prompt + req.finished_len
    target, page = req.num_tokens, tree.shape.page
    _cut(tree, req, target // page * page if req.window_evicted > target else target)
    record = Req(req.id, NO_SLOTS, 0, 0)
    _give(req, record)
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
    _give(Req(record.id, NO_SLOTS, 0, 0), record)
    return True
