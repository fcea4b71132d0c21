"""What another release, patch or flag would have made of the same requests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import InputError
from cachesim.logs.answers import wrong_answers
from cachesim.logs.cures import cure_of
from cachesim.logs.doubt import workloads_of
from cachesim.logs.other import (
    Otherwise,
    Workload,
    default_step,
    options_for,
    play_workload,
)
from cachesim.logs.replay import Replay
from cachesim.logs.settings import RELEASES, Settings, flag_of, matters

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


def tried(replays: Sequence[Replay], cause: str) -> list[dict[str, Any]]:
    """The flags that a cause's advice names, each played on the same requests."""
    settings = replays[0].settings
    release, spec = str(settings.release.value), settings.spec
    asked: dict[str, str] = {}
    for name, factor in cure_of(cause, settings.engine).tries:
        if matters(FAMILY, release, spec, name):
            own: Any = settings.values.get(name, FAMILY.default(FAMILY.option(name), release))
            value = factor if factor is True else type(own)(own * factor)
            if value and value != own:
                asked[f"{name}={str(value).lower()}"] = flag_of(FAMILY, name, value)
    try:
        now, *rows = answers(replays, list(asked))
    except InputError:  # a server that does not start so
        return []
    return [
        {
            "flag": asked[row["name"]],
            "processed": row["processed"],
            "fewer": now["processed"] - row["processed"],
            "failed": row["failed"] - now["failed"],
        }
        for row in rows
    ]


def tried_in_words(found: Sequence[Mapping[str, Any]]) -> str:
    """What came of the flags, those that help first."""
    by_effect: dict[int, list[str]] = {}
    for each in sorted(found, key=lambda one: -one["fewer"]):
        by_effect.setdefault(each["fewer"], []).append(f"`{each['flag']}`")
    words = [f"{_effect(fewer)} with {' or '.join(flags)}" for fewer, flags in by_effect.items()]
    return f"Played on these requests: {'; '.join(words)}." if words else ""


def _effect(fewer: int) -> str:
    if fewer == 0:
        return "no fewer tokens are processed"
    return f"{abs(fewer):,} {'fewer' if fewer > 0 else 'more'} tokens are processed"


def value_of(text: str) -> object:
    """The value of `name=value`: a number, true or false, or a word."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+", text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)


def answers(replays: Sequence[Replay], asked: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One entry for each question, over all servers of the log."""
    allowed = [workloads_of(replay) for replay in replays]
    for index, name in enumerate(each.name for each in questions(replays[0].settings, asked)):
        try:
            played = [
                list(_play(replay, workloads, questions(replay.settings, asked)[index]))
                for replay, workloads in zip(replays, allowed, strict=True)
            ]
        except InputError as error:
            if asked:
                raise
            del error
            continue
        counts = [
            wrong_answers(workloads[0], others[0].profile, dict(others[0].options))
            for workloads, others in zip(allowed, played, strict=True)
        ]
        yield entry(name, replays, played) | {"wrong_answers": summed(counts)}


def summed(counts: Sequence[int | None]) -> int | None:
    """All of them, where all are known."""
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def _play(replay: Replay, workloads: Sequence[Workload], question: Question) -> Iterator[Otherwise]:
    """The likeliest workload, then the others that the log allows."""
    settings = replay.settings
    release = question.profile.partition("@")[2]
    values = dict(settings.values)
    if release.partition("+")[0] != settings.release.value:
        values = {n: v for n, v in values.items() if n not in default_step(settings)}
    options = options_for(release, values) | dict(question.options)
    if question.profile == settings.profile and not question.options:
        workloads = workloads[:1]  # the log itself
    for workload in workloads:
        yield play_workload(workload, question.profile, options)


def entry(
    name: str, replays: Sequence[Replay], played: Sequence[Sequence[Otherwise]]
) -> dict[str, Any]:
    """One row: tokens that are read, requests that reuse something, bytes at most."""
    hits = failed = 0
    for replay, others in zip(replays, played, strict=True):
        answers = [others[0].replayed[n] for n in _numbers(replay)]
        failed += sum(each.cached is None for each in answers)
        hits += sum(bool(each.cached) for each in answers)
    read = [
        [_read(replay, other) for other in others]
        for replay, others in zip(replays, played, strict=True)
    ]
    return {
        "name": name,
        "processed": sum(each[0] for each in read),
        "processed_bounds": [sum(map(min, read)), sum(map(max, read))],
        "hits": hits,
        "failed": failed,
        "peak_bytes": max(others[0].peak_bytes for others in played),
        "options": dict(played[0][0].options),
    }


def _numbers(replay: Replay) -> list[int]:
    return [each.observed.number for each in replay.requests if each.asked is not None]


def _read(replay: Replay, other: Otherwise) -> int:
    """Tokens that are processed in all."""
    return sum(other.replayed[number].processed or 0 for number in _numbers(replay))
