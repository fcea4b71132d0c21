"""Passes over a log: a later request can determine an earlier one.

request 3 (cancelled)   [ prompt, length unknown ... reply )
request 4               restores the state of 2 tokens     so 3's prompt had 6: one lies 4 before
request 9               restores the state of 75 tokens    so a message of the user begins there
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from cachesim.engines.tokens import Rope
from cachesim.lab.logs.evidence import common_with_holder, lengths_of
from cachesim.lab.logs.observed import Observed, ServerLog
from cachesim.lab.logs.rebuild import TURN, Rebuilder
from cachesim.lab.logs.replay import FRESH, Hints, Rebuilt, Replay, owner_of, place_of, text_of
from cachesim.lab.logs.settings import Settings

PASSES: Final = 4
"""Most passes over a log."""

BEFORE_END: Final = 4
"""Tokens between the last checkpoint of a prompt and its end."""


def rebuild(
    log: ServerLog,
    settings: Settings,
    *,
    passes: int = PASSES,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Replay a log; repeat where a request determines an earlier one."""
    best = Rebuilder(log, settings, Hints(), progress).play()
    for _ in range(passes - 1):
        no_turn = best.hints.no_turn | best.no_turn
        one = {
            text: places - {TURN} if text in no_turn else places
            for text, places in best.marks.items()
        }
        other = _marks_wanted(best)
        hints = Hints(
            no_turn=no_turn,
            openings=best.openings,
            marks={text: one.get(text, set()) | other.get(text, set()) for text in {*one, *other}},
            prefixes=best.hints.prefixes | best.prefixes,
            lengths=best.hints.lengths | _lengths_wanted(best),
            files=best.hints.files,
        )
        if hints == best.hints:  # nothing else explains what a slot held
            hints = replace(hints, files=best.hints.files | best.files)
        if hints == best.hints:
            break
        again = Rebuilder(log, settings, hints, progress).play()
        if again.agreeing < best.agreeing:
            break
        best = again
    return best


def unplayed(log: ServerLog, settings: Settings) -> Replay:
    """A log whose lines print all reported numbers; nothing is rebuilt or replayed."""
    return Replay(log, settings, requests=[as_printed(each) for each in log.requests])


def as_printed(request: Observed) -> Rebuilt:
    """A request with the numbers of its own lines only."""
    lengths = lengths_of(request)
    common = request.shared
    if common is None:
        common = common_with_holder(request, lengths.prompt.value, 0, verbose=True)
    holder = f"slot {request.slot}" if request.slot >= 0 else "the instance"
    holder = holder if common.value else "nothing"
    return Rebuilt(request, lengths, common=common, holder=holder, is_played=False)


def _states_wanted(replay: Replay) -> Iterator[tuple[Rebuilt, int, int]]:
    """States from which requests resumed and which the replay lacks, by text and place."""
    for each in replay.requests:
        cached, common = each.lengths.cached.value, each.common
        if each.agrees or each.submitted is None or not cached or common.value is None:
            continue
        if cached < len(each.submitted.prompt) and cached < common.value:
            yield (each, *place_of(each.submitted.prompt, cached))
        elif cached == common.value:  # what was held went on; the prompt did not
            text, last = place_of(each.submitted.prompt, cached - 1)
            yield each, text, last + 1


def _marks_wanted(replay: Replay) -> dict[int, set[int]]:
    """Starts of user messages, where a state was restored that nothing else explains."""
    wanted: dict[int, set[int]] = {}
    for _, text, place in _states_wanted(replay):
        wanted.setdefault(text, set()).add(place)
    return wanted


def _lengths_wanted(replay: Replay) -> dict[int, int]:
    """Prompt lengths of cancelled requests, from their last checkpoint, as no line has them."""
    wanted: dict[int, int] = {}
    for each, text, _ in _states_wanted(replay):
        number, use = owner_of(text)
        if use != FRESH or not 0 <= number < each.observed.number:
            continue
        owner, cached = replay.requests[number], each.lengths.cached.value or 0
        held = owner.observed.held_after
        if owner.observed.cancelled and held is not None and cached + BEFORE_END <= held:
            wanted[number] = cached + BEFORE_END
    return wanted


HEADER: Final = 3
"""Tokens before the first text of a chat: a mark, a role, a line end."""


def other_candidates(replay: Replay) -> Replay | None:
    """The log with the last candidate instead of the first, where several agree.

    Prompts that no line compares with anything begin with the same few tokens, as chats do. None
    where nothing was open, or where the log is not met as well as before.
    """
    strangers = {
        each.observed.number: Rope.of(text_of(replay.requests[0].observed.number, FRESH), HEADER)
        for each in replay.requests[1:]
        if not each.common.value and each.observed.choice in {"age", "id"} and not each.is_verbose
    }
    if not strangers and all(each.candidates < 2 for each in replay.requests):
        return None
    hints = replace(replay.hints, prefixes=strangers | replay.hints.prefixes)
    other = Rebuilder(replay.log, replay.settings, hints, likeliest_first=False).play()
    return other if other.agreeing >= replay.agreeing else None
