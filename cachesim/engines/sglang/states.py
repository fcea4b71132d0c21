"""Where recurrent states are saved with `extra_buffer`: two slots, written in turn.

    chunk      [ prefix ....... |64 ....... |128 ....... |192 .. )
    saved                                     ^ the last grid position in it
    branch                        ^ or where attention would have gone on, instead

A decoding request saves every `mamba_track_interval` tokens.
"""

from cachesim.engines.sglang.request import Req


def plan_track(req: Req, grid: int) -> None:
    """What a chunk leaves a state at. Follows `_mamba_radix_cache_v2_req_prepare_for_extend`."""
    if req.extend < grid:
        return
    at = req.prefix + req.extend // grid * grid
    req.kept_track = req.next_track
    req.next_track = 1 - req.next_track
    branch = req.branch
    reached = branch is not None and req.prefix < branch < end_of_tracking(req, at)
    if branch is not None and reached and (branch - req.prefix) % grid == 0:
        at = branch
    req.tracked = req.track_at = at


def end_of_tracking(req: Req, at: int) -> int:
    """Up to where a branching point counts: the chunk's end, or one beyond a forced position.

    Trap: where pages are larger than the kernel's chunk, the position is forced and the end moves.
    """
    fine = req.prefix + req.extend // 64 * 64
    return at + 1 if fine != at else req.fill


def tracked_in_decode(req: Req) -> None:
    """A decoding request has passed a position at which a state is saved."""
    req.kept_track = req.next_track
    req.next_track = 1 - req.next_track
    req.tracked_before = req.tracked
    req.tracked = req.track_at
