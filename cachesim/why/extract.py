"""The worst miss of a log as a scenario: the same cause in as few requests as possible.

No text of the user's is in it: prompts are spans with lengths, and what they share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.tokens import Rope
from cachesim.errors import InputError
from cachesim.model.spec import ModelSpec
from cachesim.scenario.format import FORMAT, Expect, Model, Scenario, Server, Source, Step
from cachesim.why.explain.live import Live
from cachesim.why.explain.whole import UserSettings
from cachesim.why.read.dump import Recorded
from cachesim.why.rebuild.from_recording import request_of, spec_for
from cachesim.why.replay.other import options_for
from cachesim.why.replay.player import FAILED, Player, Replayed, ReplayRequest, accepts_spans
from cachesim.why.replay.replayed import Rebuilt, Replay

ORIGINS: Final = {"log": "a server's log", "recording": "recorded requests"}

MOST_EARLIER: Final = 400
"""Most requests before the worst one that are considered."""

NOTHING_LOST: Final = "no miss to extract: no request that the replay explains lost any tokens"


@dataclass(frozen=True, slots=True)
class Origin:
    """The server of a scenario, and the description of its requests' origin."""

    source: str  # "log", "recording"
    profile: str
    spec: ModelSpec
    options: Mapping[str, Any]
    preset: str
    window: int | None

    @classmethod
    def of_log(cls, replay: Replay) -> "Origin":
        settings = replay.settings
        window = None if not settings.window.value else int(settings.window.value)
        preset = str(settings.preset.value)
        return cls("log", settings.profile, settings.spec, settings.values, preset, window)


def worst_scenario(replays: Sequence[Replay]) -> Scenario:
    """The request with the most reprocessed matching tokens, and the requests that it needs."""
    replay, worst = _worst(replays)
    origin, steps = Origin.of_log(replay), _before(replay, worst)
    steps = shrunk(origin, steps, _signature(_last(origin, steps)))
    return scenario_of(origin, steps, worst.observed.number, _last(origin, steps))


def worst_of_recording(requests: Sequence[Recorded], wanted: UserSettings) -> Scenario:
    """The worst request of recorded requests to a llama.cpp server."""
    live = Live(wanted)
    live.add_all(requests)
    if live.profile is None or live.rerun is None:
        msg = "--scenario: the requests name no server; add its release, as in --profile b9538"
        raise InputError(msg)
    if Profile.parse(live.profile).engine != FAMILY.name:
        msg = f"--scenario: only for requests to llama.cpp, and these went to {live.profile}"
        raise InputError(msg)
    window, model = wanted.window or None, live.rerun.model
    spec = spec_for(live.profile, model, window=window)
    origin = Origin("recording", live.profile, spec, live.options, model, window)
    played = [prompt for prompt in live.prompts if prompt.recorded.was_read and len(prompt.rope)]
    worst, lost = -1, 1
    for index, prompt in enumerate(played):
        answer = live.rerun.played.get(prompt.recorded.number, FAILED)
        agrees = answer.cached is not None and prompt.recorded.cached in {answer.cached, None}
        if agrees and not prompt.recorded.cancelled and answer.equal - (answer.cached or 0) > lost:
            worst, lost = index, answer.equal - (answer.cached or 0)
    if worst < 0:
        raise InputError(NOTHING_LOST)
    number = played[worst].recorded.number
    steps = [_finished(request_of(prompt)) for prompt in played[: worst + 1]][-MOST_EARLIER:]
    alone, together = _last(origin, steps), live.rerun.played[number]
    if _signature(alone) != _signature(together):
        raise InputError(
            f"--scenario: request {number} lost most, and requests at work beside it or actions on "
            "slots decided that; a scenario runs one request after the other"
        )
    steps = shrunk(origin, steps, _signature(alone))
    return scenario_of(origin, steps, number, _last(origin, steps))


def whole_scenario(replay: Replay) -> Scenario:
    """All requests of a log in order, without expectations."""
    steps = [
        _finished(request.submitted) for request in replay.requests if request.submitted is not None
    ]
    last = replay.requests[-1].observed.number
    whole = scenario_of(Origin.of_log(replay), [*replay.invented, *steps], last, None)
    return replace(
        whole,
        about=f"Rebuilt from a server's log: {len(steps)} requests.",
        source=Source(note="Spans have no text."),
    )


def _worst(replays: Sequence[Replay]) -> tuple[Replay, Rebuilt]:
    best: tuple[int, Replay, Rebuilt] | None = None
    for replay in replays:
        for request in replay.requests:
            cached = request.replayed.cached
            if (
                not request.agrees
                or request.submitted is None
                or cached is None
                or request.observed.cancelled
            ):
                continue
            lost = request.replayed.equal - cached
            if lost > 1 and (best is None or lost > best[0]):
                best = (lost, replay, request)
    if best is None:
        raise InputError(NOTHING_LOST)
    return best[1], best[2]


def _before(replay: Replay, worst: Rebuilt) -> list[ReplayRequest]:
    steps = list(replay.invented)
    for request in replay.requests:
        if request.submitted is not None:
            steps.append(_finished(request.submitted))
        if request is worst:
            break
    return steps[-MOST_EARLIER:]


def _finished(request: ReplayRequest) -> ReplayRequest:
    """A cancelled request as a finished one with the same tokens in the slot."""
    if request.cancel_at is None:
        return request
    length = max(1, request.cancel_at - len(request.prompt) + 1)
    return replace(request, reply=request.reply[:length], cancel_at=None)


def _last(origin: Origin, steps: Sequence[ReplayRequest]) -> Replayed | None:
    player = Player(origin.profile, origin.spec, origin.options)
    answer = None
    for request in steps:
        player.launch(request)
        answer = player.run_until(request.number)
        if player.dead:
            return None
    return answer


def _signature(answer: Replayed | None) -> tuple[object, ...]:
    if answer is None:
        return ()
    return answer.cached, answer.equal, tuple(loss.rule for loss in answer.losses)


def shrunk(
    origin: Origin, steps: list[ReplayRequest], wanted: tuple[object, ...]
) -> list[ReplayRequest]:
    """Remove requests that are not needed: halves first, then smaller parts, then single ones."""
    earlier, last = steps[:-1], steps[-1]
    size = max(1, len(earlier) // 2)
    while earlier:
        at, shorter = 0, False
        while at < len(earlier):
            fewer = earlier[:at] + earlier[at + size :]
            if _signature(_last(origin, [*fewer, last])) == wanted:
                earlier, shorter = fewer, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return [*earlier, last]


def scenario_of(
    origin: Origin, steps: Sequence[ReplayRequest], worst: int, answer: Replayed | None
) -> Scenario:
    """The file: spans of texts, a step for each request, and the reuse of the last one."""
    spans, names = _spans(steps)
    release = origin.profile.partition("@")[2]
    lost = 0 if answer is None else answer.equal - (answer.cached or 0)
    equal = 0 if answer is None else answer.equal
    return Scenario(
        format=FORMAT,
        name=f"from-a-{origin.source}",
        about=(
            f"Rebuilt from {ORIGINS[origin.source]}: {lost} tokens of the last request matched "
            f"what the server held ({equal} in all) and were reprocessed."
        ),
        kind="lost-reuse",
        source=Source(note=f"Request {worst} of the {origin.source}. Spans have no text."),
        model=Model(preset=origin.preset, window=origin.window),
        engine=Server(
            name=FAMILY.name, profiles=(release,), options=options_for(release, origin.options)
        ),
        spans=spans,
        step=tuple(_step(request, names, spans=accepts_spans(origin.profile)) for request in steps),
        expect=() if answer is None else (_expected(release, steps, answer),),
    )


def _expected(release: str, steps: Sequence[ReplayRequest], answer: Replayed) -> Expect:
    counts: tuple[Any, ...] = (*("any" for _ in steps[:-1]), answer.cached)
    return Expect(profile=release, cached=counts, answer="any")


def _spans(steps: Iterable[ReplayRequest]) -> tuple[dict[str, int], dict[int, str]]:
    lengths: dict[int, int] = {}
    for request in steps:
        for rope in (request.prompt, request.reply):
            for text, _, last in rope.runs:
                lengths[text] = max(lengths.get(text, 0), last)
    names = {text: f"t{index}" for index, text in enumerate(lengths, 1)}
    return {names[text]: length for text, length in lengths.items()}, names


def _step(request: ReplayRequest, names: dict[int, str], *, spans: bool) -> Step:
    """A request as a step; releases without `message_spans` refuse the field."""
    fields: dict[str, Any] = {}
    if request.user_starts and spans:
        starts = tuple({"role": "user", "start": at} for at in request.user_starts)
        fields["options"] = {"message_spans": starts}
    return Step(
        name=f"r{request.number}" if request.number >= 0 else f"before{-request.number}",
        prompt=_pieces(request.prompt, names),
        reply=_pieces(request.reply, names),
        predict=len(request.reply),
        slot=request.slot,
        cache_prompt=request.cache_prompt,
        **fields,
    )


def _pieces(rope: Rope, names: dict[int, str]) -> str:
    """A rope in the notation of a scenario: `t1[:50] t4`."""
    words = []
    for text, first, last in rope.runs:
        start = "" if first == 0 else str(first)
        words.append(f"{names[text]}[{start}:{last}]")
    return " ".join(words)
