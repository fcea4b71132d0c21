"""The worst miss of a log as a scenario of its own: the same cause in as few requests as possible.

No text of the user's is in it: prompts are spans with lengths, and what they share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.rope import Rope
from cachesim.errors import InputError
from cachesim.logs.other import options_for
from cachesim.logs.player import Asked, Player, Replayed
from cachesim.logs.replay import Rebuilt, Replay
from cachesim.scenario.format import FORMAT, Expect, Model, Scenario, Server, Source, Step

MOST_EARLIER: Final = 400
"""Requests before the worst one that are looked at."""


def worst_scenario(replays: Sequence[Replay]) -> Scenario:
    """The request that read most again although it was equal, and what it takes to show it."""
    replay, worst = _worst(replays)
    steps = _before(replay, worst)
    wanted = _signature(_last(replay, steps))
    steps = shrunk(replay, steps, wanted)
    return scenario_of(replay, steps, worst, _last(replay, steps))


def whole_scenario(replay: Replay) -> Scenario:
    """All requests of a log, one after the other, without what each is expected to reuse."""
    steps = [_finished(each.asked) for each in replay.requests if each.asked is not None]
    whole = scenario_of(replay, [*replay.invented, *steps], replay.requests[-1], None)
    return replace(
        whole,
        about=f"Rebuilt from a server's log: {len(steps)} requests.",
        source=Source(note="Spans have no text."),
    )


def _worst(replays: Sequence[Replay]) -> tuple[Replay, Rebuilt]:
    best: tuple[int, Replay, Rebuilt] | None = None
    for replay in replays:
        for each in replay.requests:
            cached = each.replayed.cached
            if not each.agrees or each.asked is None or cached is None or each.observed.cancelled:
                continue
            lost = each.replayed.equal - cached
            if lost > 1 and (best is None or lost > best[0]):
                best = (lost, replay, each)
    if best is None:
        msg = "--scenario: no request that the replay explains lost any tokens"
        raise InputError(msg)
    return best[1], best[2]


def _before(replay: Replay, worst: Rebuilt) -> list[Asked]:
    """All that was asked up to the worst request, one after the other."""
    steps = list(replay.invented)
    for each in replay.requests:
        if each.asked is not None:
            steps.append(_finished(each.asked))
        if each is worst:
            break
    return steps[-MOST_EARLIER:]


def _finished(asked: Asked) -> Asked:
    """A cancelled request as one that ended by itself, with as many tokens in the slot."""
    if asked.cancel_at is None:
        return asked
    length = max(1, asked.cancel_at - len(asked.prompt) + 1)
    return replace(asked, reply=asked.reply[:length], cancel_at=None)


def _last(replay: Replay, steps: Sequence[Asked]) -> Replayed | None:
    """What becomes of the last of some requests."""
    player = Player(replay.settings.profile, replay.settings.spec, replay.settings.values)
    answer = None
    for asked in steps:
        player.launch(asked)
        answer = player.run_until(asked.number)
        if player.dead:
            return None
    return answer


def _signature(answer: Replayed | None) -> tuple[object, ...]:
    """What has to stay: how many tokens are reused, of how many, and for which reasons."""
    if answer is None:
        return ()
    return answer.cached, answer.equal, tuple(each.rule for each in answer.losses)


def shrunk(replay: Replay, steps: list[Asked], wanted: tuple[object, ...]) -> list[Asked]:
    """Leave out what is not needed: halves first, then smaller pieces, then single requests."""
    earlier, last = steps[:-1], steps[-1]
    size = max(1, len(earlier) // 2)
    while earlier:
        at, shorter = 0, False
        while at < len(earlier):
            fewer = earlier[:at] + earlier[at + size :]
            if _signature(_last(replay, [*fewer, last])) == wanted:
                earlier, shorter = fewer, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return [*earlier, last]


def scenario_of(
    replay: Replay, steps: Sequence[Asked], worst: Rebuilt, answer: Replayed | None
) -> Scenario:
    """The file: spans for texts, a step for each request, and what the last one reused."""
    settings = replay.settings
    spans, names = _spans(steps)
    release = settings.profile.partition("@")[2]
    lost = 0 if answer is None else answer.equal - (answer.cached or 0)
    equal = 0 if answer is None else answer.equal
    return Scenario(
        format=FORMAT,
        name="from-a-log",
        about=(
            f"Rebuilt from a server's log: {lost} tokens of the last request matched what the "
            f"server held ({equal} in all) and were reprocessed."
        ),
        kind="lost-reuse",
        source=Source(note=f"Request {worst.observed.number} of the log. Spans have no text."),
        model=Model(
            preset=str(settings.preset.value),
            window=None if not settings.window.value else int(settings.window.value),
        ),
        engine=Server(
            name="llama.cpp", profiles=(release,), options=options_for(release, settings.values)
        ),
        spans=spans,
        step=tuple(_step(asked, names) for asked in steps),
        expect=() if answer is None else (_expected(release, steps, answer),),
    )


def _expected(release: str, steps: Sequence[Asked], answer: Replayed) -> Expect:
    counts: tuple[Any, ...] = (*("any" for _ in steps[:-1]), answer.cached)
    return Expect(profile=release, cached=counts, answer="any")


def _spans(steps: Iterable[Asked]) -> tuple[dict[str, int], dict[int, str]]:
    lengths: dict[int, int] = {}
    for asked in steps:
        for rope in (asked.prompt, asked.reply):
            for text, _, last in rope.runs:
                lengths[text] = max(lengths.get(text, 0), last)
    names = {text: f"t{index}" for index, text in enumerate(lengths, 1)}
    return {names[text]: length for text, length in lengths.items()}, names


def _step(asked: Asked, names: dict[int, str]) -> Step:
    fields: dict[str, Any] = {}
    if asked.user_starts:
        spans = tuple({"role": "user", "start": at} for at in asked.user_starts)
        fields["options"] = {"message_spans": spans}
    return Step(
        name=f"r{asked.number}" if asked.number >= 0 else f"before{-asked.number}",
        prompt=_pieces(asked.prompt, names),
        reply=_pieces(asked.reply, names),
        predict=len(asked.reply),
        slot=asked.slot,
        cache_prompt=asked.cache_prompt,
        **fields,
    )


def _pieces(rope: Rope, names: dict[int, str]) -> str:
    """A rope in the words of a scenario: `t1[:50] t4`."""
    words = []
    for text, first, last in rope.runs:
        start = "" if first == 0 else str(first)
        words.append(f"{names[text]}[{start}:{last}]")
    return " ".join(words)
