"""Other workloads that fit a log: what its lines leave open, and what an answer owes to that.

open                  where messages begin that no line shows; where a prompt parts from others;
                      which conversation was loaded; the order of requests that overlap
one answer from all   the log settles it
several answers       a saving is not proven
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.why.advise.orders import other_orders, overlapping
from cachesim.why.infer.evidence import Interval
from cachesim.why.rebuild.left_open import OtherPrompts
from cachesim.why.replay.other import Workload, play_workload, workload_of
from cachesim.why.replay.player import Replayed, ReplayRequest
from cachesim.why.replay.proof import Proof, counts_of, proof_of
from cachesim.why.replay.replayed import FRESH, Replay, text_of

FIRST_DRAWS, MORE_DRAWS, LOST_DRAWS = range(2), range(2, 8), range(1, 8)
"""Draws of prompts: the least and the most shared; those that only a promise has to stand; and
those for a setting that keeps what the server had lost.
"""

SHORT: Final = 8
"""Most new tokens without room for a message and its marks."""


PLACES: Final = (0.0, 0.5, 1.0)
"""Places of a tried message in a request's new part: start, middle, end."""

ROUNDS: Final = 6
"""Most rounds in which messages are removed until the log's numbers agree."""


def workloads_of(replay: Replay) -> list[Workload]:
    """The likeliest workload, then others with which the server answers as the log says."""
    likeliest, values = workload_of(replay), replay.settings.values
    proof = proof_of(counts_of(replay), likeliest.outcome(values).played)
    others = [*_with_other_starts(replay, likeliest), *_drawn(replay, proof, FIRST_DRAWS)]
    return [likeliest, *others]


def more_of(replay: Replay, likeliest: Workload, proof: Proof) -> Iterator[Workload]:
    """Further prompts that fit the log, and other orders of requests that overlapped."""
    yield from _drawn(replay, proof, MORE_DRAWS)
    for order in other_orders(likeliest.order, int(replay.settings.values.get("parallel", 1))):
        yield replace(likeliest, order=order, moves=())


def like_lost(replay: Replay, proof: Proof) -> Iterator[Workload]:
    """Workloads whose prompts also go on like conversations that the server had lost."""
    yield from _drawn(replay, proof, LOST_DRAWS, lost=True)


def meets_more(workload: Workload, own: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    """True if a request meets a conversation under changed settings that it did not meet before,
    or comes into another slot. How much it shares with that, no line need say.
    """
    before, after = (play_workload(workload, workload.profile, each) for each in (own, changed))
    for number, held in after.held.items():
        if before.replayed[number].slot != after.replayed[number].slot:
            return True
        for rope in held:
            if all(rope.common(known) < len(rope) for known in before.held.get(number, ())):
                return True
    return False


def uncompared(replay: Replay) -> set[int]:
    """Requests that overlapped, in a log that compares no prompt with what the slots hold.

    Two clients may have sent one prompt, which other settings reuse: the lines are the same.
    """
    if compares(replay):
        return set()
    slots = {request.observed.number: request.observed.slot for request in replay.requests}
    return overlapping(tuple(replay.order), slots)


def compares(replay: Replay) -> bool:
    """True if the log's lines compare prompts with what every slot holds (`checking sim`)."""
    return any(request.observed.slot_common for request in replay.requests)


def _drawn(
    replay: Replay, proof: Proof, draws: Iterable[int], *, lost: bool = False
) -> Iterator[Workload]:
    """Workloads whose prompts are drawn, where they have the log's counts."""
    for draw in draws:
        drawn = workload_of(OtherPrompts(replay, draw, lost=lost).play())
        if proof.is_met(drawn.outcome(replay.settings.values).played):
            yield drawn


def _with_other_starts(replay: Replay, workload: Workload) -> Iterator[Workload]:
    """Workloads with message starts anywhere in a request's new part, or without any."""
    names_chats = any(request.is_chat for request in replay.log.requests)
    open_ = [
        request.observed.number
        for request in replay.requests
        if request.submitted is not None
        and (request.observed.is_chat or not (names_chats or request.is_verbose))
    ]
    if not open_:
        return
    for part in PLACES:
        starts = {number: _start_in(workload.submitted[number], part) for number in open_}
        found = {number: at for number, at in starts.items() if at is not None}
        other = _as_logged(replay, workload, found)
        if other is not None:
            yield other
    if any(submitted.user_starts for submitted in workload.submitted.values()):
        submitted = {
            n: replace(request, user_starts=()) for n, request in workload.submitted.items()
        }
        without = replace(workload, submitted=submitted)
        if not _wrong(replay, without):
            yield without


def _as_logged(
    replay: Replay, workload: Workload, starts: dict[int, tuple[int, int]]
) -> Workload | None:
    """A workload with further messages for which the server answers as logged.

    Where it does not, the newest text in those requests has no message of its own.
    """
    for _ in range(ROUNDS):
        other = _with_starts(workload, starts)
        wrong = _wrong(replay, other)
        if not wrong:
            return other
        known = {text for text, _ in starts.values()}
        texts = {
            max((text for text, _, _ in other.submitted[n].prompt.runs if text in known), default=0)
            for n in wrong
        }
        starts = {number: at for number, at in starts.items() if at[0] not in texts}
    return None


def _wrong(replay: Replay, workload: Workload) -> list[int]:
    """Requests with another answer than the log's."""
    played = play_workload(workload, workload.profile, replay.settings.values).replayed
    return [
        request.observed.number
        for request in replay.requests
        if request.submitted is not None
        and played[request.observed.number].cached != request.replayed.cached
    ]


def _start_in(request: ReplayRequest, part: float) -> tuple[int, int] | None:
    """Text and place of a possible message start in a request's new part."""
    own = text_of(request.number, FRESH)
    for text, first, last in request.prompt.runs:
        if text == own and last - first > SHORT:
            return own, first + 1 + int(part * (last - first - SHORT))
    return None


def _with_starts(workload: Workload, more: Mapping[int, tuple[int, int]]) -> Workload:
    places = dict(more.values())
    submitted = {}
    for number, request in workload.submitted.items():
        at, starts = 0, set(request.user_starts)
        for text, first, last in request.prompt.runs:
            place = places.get(text)
            if place is not None and first <= place < last:
                starts.add(at + place - first)
            at += last - first
        submitted[number] = replace(request, user_starts=tuple(sorted(starts)))
    return replace(workload, submitted=submitted)


def cached_over(played: Sequence[Mapping[int, Replayed]]) -> dict[int, Interval]:
    """The least and the most cached tokens of each request."""
    found: dict[int, Interval] = {}
    for number in played[0]:
        counts = [run[number].cached for run in played if number in run]
        known = [count for count in counts if count is not None]
        if known:
            found[number] = Interval(min(known), max(known))
    return found
