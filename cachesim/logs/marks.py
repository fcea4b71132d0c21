"""Where user messages begin, as far as a log shows it: states are saved there."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from cachesim.engines.llamacpp.checkpoint_events import CheckpointCreated
from cachesim.engines.rope import Rope
from cachesim.logs.replay import FRESH, Rebuilt, Replay, owner_of, place_of
from cachesim.logs.ways import Way

TURN: Final = 3
"""Tokens between what a reply leaves in the slot and the next message, or before its words."""

SHORTEST: Final = 6
"""Tokens of the shortest message, with all that templates put around it."""


def starts_in(marks: Mapping[int, AbstractSet[int]], prompt: Rope) -> tuple[int, ...]:
    """Where user messages begin in a prompt, as far as is known."""
    starts: list[int] = []
    at = 0
    if not marks:
        return ()
    for text, first, last in prompt.runs:
        places = marks.get(text, ())
        starts += (at + place - first for place in places if first <= place < last)
        at += last - first
    return tuple(sorted(starts))


def mark_states(replay: Replay, rebuilt: Rebuilt, prompt: Rope, *, told: bool) -> None:
    """Checkpoints that nothing else explains were taken where a user's message begins.

    `told`: the release takes them there.
    """
    request = rebuilt.observed
    if not request.created or not told:
        return
    whole = len(prompt)
    options = replay.settings.values
    ubatch = int(options.get("ubatch_size", 512))
    batch = int(options.get("batch_size", 2048))
    cached = rebuilt.lengths.cached.value or 0
    usual = {whole - 4, whole - 4 - ubatch, cached}
    for _, _, place in request.created:
        of_a_batch = (place - cached) % batch == 0
        if place not in usual and not of_a_batch and cached < place < whole:
            text, offset = place_of(prompt, place)
            replay.marks.setdefault(text, set()).add(offset)


def mark_turn(replay: Replay, rebuilt: Rebuilt, way: Way, *, told: bool) -> None:
    """Where no line tells of messages a chat's next turn is taken to begin after the reply's
    last token and what templates put at its end (`<|im_end|>`, a line end).
    """
    request, whole = rebuilt.observed, len(way.prompt)
    common = way.common.value or 0
    if told or not request.is_chat or not way.goes_on:
        return
    if common >= whole - TURN:
        return
    text, place = place_of(way.prompt, common)
    if place == 0 and text not in replay.hints.no_turn:
        replay.marks.setdefault(text, set()).add(TURN)


def mark_opening(replay: Replay, rebuilt: Rebuilt, way: Way) -> None:
    """Chats that part in their first text have the message before it in common.

    earlier   [ <|im_start|> system ... <|im_end|> ][ <|im_start|> user <nl> )( How ... )
    chat      [ <|im_start|> system ... <|im_end|> ][ <|im_start|> user <nl> )( Why ... )

    So a message of the user begins its mark before the first place where two part.
    """
    if not rebuilt.observed.is_chat or way.goes_on or way.at_joint:
        return
    common = way.common.value or 0
    if common < SHORTEST + TURN or common >= len(way.prompt):
        return
    text, last = place_of(way.prompt, common - 1)
    place = last + 1 - TURN
    is_first = common - 1 - last <= 1  # all chats have their first token in common
    if is_first and owner_of(text)[1] == FRESH:
        replay.openings[text] = min(place, replay.openings.get(text, place))


def refute_turn(replay: Replay, rebuilt: Rebuilt) -> None:
    """A state that the replay saved where it took a turn to begin, and that no line shows.

    Where a release names every state that it saves, no message begins there.
    """
    if rebuilt.asked is None:
        return
    shown = {place for _, _, place in rebuilt.observed.created}
    for event in rebuilt.replayed.events:
        if not isinstance(event, CheckpointCreated) or event.slot != rebuilt.observed.slot:
            continue
        if event.n_tokens in shown or event.n_tokens not in rebuilt.asked.user_starts:
            continue
        text, place = place_of(rebuilt.asked.prompt, int(event.n_tokens))
        if place == TURN:
            replay.no_turn.add(text)
