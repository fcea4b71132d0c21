"""What another release, patch or flag would have made of the same requests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.logs.answers import wrong_answers
from cachesim.logs.other import Otherwise, default_step, options_for, play_otherwise, workload_of
from cachesim.logs.replay import Replay
from cachesim.logs.settings import RELEASES, Settings

PATCHES: Final = ("24035", "24143", "25592", "erase-equal")
"""Proposals whose effect users ask for, where a release can take them."""


@dataclass(frozen=True, slots=True)
class Question:
    """Another server: its profile, and flags that differ."""

    name: str
    profile: str
    options: Mapping[str, Any]


def questions(settings: Settings, asked: Sequence[str]) -> list[Question]:
    """What the user asks, or by default the other releases and the patches that matter."""
    own = settings.profile.removeprefix("llama.cpp@")
    if not asked:
        release = str(settings.release.value)
        names = [own, *(each for each in RELEASES if each != own)]
        names += [f"{release}+{patch}" for patch in PATCHES if f"{release}+{patch}" != own]
        return [Question(name, f"llama.cpp@{name}", {}) for name in names]
    found = [Question(own, settings.profile, {})]
    for text in asked:
        name, equals, value = text.partition("=")
        if equals:
            found.append(Question(text, settings.profile, {name: value_of(value)}))
        else:
            found.append(Question(text, f"llama.cpp@{text.removeprefix('llama.cpp@')}", {}))
    return found


def value_of(text: str) -> object:
    """The value of `name=value`: a number, true or false, or a word."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+", text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)


def answers(replays: Sequence[Replay], asked: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One entry for each question, over all servers of the log."""
    names = [each.name for each in questions(replays[0].settings, asked)]
    for index, name in enumerate(names):
        try:
            played = [_play(replay, questions(replay.settings, asked)[index]) for replay in replays]
        except InputError as error:
            if asked:
                raise
            del error
            continue
        counts = [
            wrong_answers(workload_of(replay), other.profile, dict(other.options))
            for replay, other in zip(replays, played, strict=True)
        ]
        yield entry(name, replays, played) | {"wrong_answers": summed(counts)}


def summed(counts: Sequence[int | None]) -> int | None:
    """All of them, where all are known."""
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def _play(replay: Replay, question: Question) -> Otherwise:
    settings = replay.settings
    release = question.profile.partition("@")[2]
    values = dict(settings.values)
    if release.partition("+")[0] != settings.release.value:
        values = {n: v for n, v in values.items() if n not in default_step(settings)}
    options = options_for(release, values) | dict(question.options)
    return play_otherwise(replay, question.profile, options)


def entry(name: str, replays: Sequence[Replay], played: Sequence[Otherwise]) -> dict[str, Any]:
    """One row: tokens that are read, requests that reuse something, bytes at most."""
    hits = read = failed = 0
    for replay, other in zip(replays, played, strict=True):
        for each in replay.requests:
            if each.asked is None:
                continue
            answer = other.replayed[each.observed.number]
            failed += answer.cached is None
            hits += bool(answer.cached)
            read += answer.processed or 0
    return {
        "name": name,
        "processed": read,
        "hits": hits,
        "failed": failed,
        "peak_bytes": max(each.peak_bytes for each in played),
        "options": dict(played[0].options),
    }
