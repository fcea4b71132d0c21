"""The same requests with another release, patch or flag: requested, usual and best ones."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.scenario.labels import label_of_release
from cachesim.why.advise import tuning
from cachesim.why.explain.answer import answer_of
from cachesim.why.explain.remedies import remedy_of
from cachesim.why.explain.whole import other_candidates
from cachesim.why.infer.evidence import Interval
from cachesim.why.infer.settings import RELEASES, Settings
from cachesim.why.infer.sizes import context_bytes
from cachesim.why.rebuild.from_recording import wrong_answers
from cachesim.why.replay.other import (
    ServerResult,
    Workload,
    counted,
    default_step,
    left_out,
    options_for,
    play_workload,
    workload_of,
)
from cachesim.why.replay.player import Replayed, ReplayRequest
from cachesim.why.replay.replayed import FRESH, Replay, text_of

PATCHES: Final = ("24035", "24143", "25592", "erase-equal")
"""Proposed patches to try, on releases that can take them."""

MOST_JUDGED: Final = 400_000
"""Most prompt tokens of all servers whose answers are verified: about a second."""


@dataclass(frozen=True, slots=True)
class Question:
    """A server for the requests: its profile and changed flags."""

    name: str
    profile: str = ""  # the log's own, if none is named
    options: Mapping[str, Any] = field(default_factory=dict)
    is_requested: bool = False  # named by the user

    @property
    def is_own(self) -> bool:
        return not self.profile and not self.options


def usual(settings: Settings) -> list[Question]:
    """The log's own server, other releases, and relevant patches."""
    own = settings.profile.removeprefix("llama.cpp@")
    release = str(settings.release.value)
    names = [each for each in RELEASES if each != own]
    names += [f"{release}+{patch}" for patch in PATCHES if f"{release}+{patch}" != own]
    return [Question(own), *(Question(name, f"llama.cpp@{name}") for name in names)]


def requested(settings: Settings, texts: Sequence[str]) -> list[Question]:
    """The log's own server, and those given by the user."""
    found = [Question(settings.profile.removeprefix("llama.cpp@"))]
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            found.append(Question(text, options={name: value_of(value)}, is_requested=True))
        else:
            profile = f"llama.cpp@{text.removeprefix('llama.cpp@')}"
            found.append(Question(text, profile, is_requested=True))
    return found


def of_flags(
    found: Sequence[tuning.TrialResult], cause: str, settings: Settings
) -> list[dict[str, Any]]:
    """Tried settings, the user's first, that a cause's remedy names."""
    own, *others = found
    named = remedy_of(cause, settings.engine).flags
    return [
        {
            "flag": " ".join(other.flags),
            "processed": other.processed,
            "fewer": own.processed - other.processed,
            "failed": other.failed - own.failed,
        }
        for other in others
        if next(iter(other.changes)) in named and other.is_alone
    ]


def flags_in_words(found: Sequence[Mapping[str, Any]]) -> str:
    """The flags that help, best first, with their best values; and those without any effect.

    A setting with which requests fail that were answered does not help.
    """
    helpful = [each for each in found if each["fewer"] > 0 and each["failed"] <= 0]
    best: dict[str, Mapping[str, Any]] = {}
    for each in sorted(helpful, key=lambda one: -one["fewer"]):
        best.setdefault(_name(each["flag"]), each)
    words = [f"{_quoted(each['flag'])} saves {each['fewer']:,} tokens" for each in best.values()]
    useless = dict.fromkeys(f"`{_name(e['flag'])}`" for e in found if _name(e["flag"]) not in best)
    if useless:
        others = "other values of " if best else "no value tried of "
        saves = "save none" if best else "saves tokens"
        words.append(f"{others}{', '.join(useless)} {saves}")
    return f"On these requests {'; '.join(words)}." if words else ""


def _quoted(flag: str) -> str:
    left_out = flag.removeprefix("without ")
    return f"`{flag}`" if left_out == flag else f"leaving out `{left_out}`"


def _name(flag: str) -> str:
    """A flag without its value; a switched-off flag by the name of its opposite."""
    return flag.removeprefix("without ").partition(" ")[0].replace("--no-", "--", 1)


def value_of(text: str) -> object:
    """The value of `name=value`: a number, true or false, or a word."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+", text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)


def answers(replays: Sequence[Replay], questions: Sequence[Question]) -> Iterator[dict[str, Any]]:
    """An entry for each question, over all lives of the log's server.

    A usual one that the server of a log cannot be asked is left out.
    """
    allowed = [workloads_of(replay) for replay in replays]
    judged = MOST_JUDGED // max(1, len(questions))
    for question in questions:
        try:
            played = [
                list(_play(replay, workloads, question))
                for replay, workloads in zip(replays, allowed, strict=True)
            ]
        except InputError:
            if question.is_requested:
                raise
            continue
        counts = [
            wrong_answers(workloads[0], others[0].profile, dict(others[0].options), most=judged)
            for workloads, others in zip(allowed, played, strict=True)
        ]
        wrong = summed(counts)
        label = label_of_release(Profile.parse(played[0][0].profile)) if wrong else None
        yield entry(question, replays, played) | {"wrong_answers": wrong, "evidence": label}


def summed(counts: Sequence[int | None]) -> int | None:
    """The sum, if every number is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _play(
    replay: Replay, workloads: Sequence[Workload], question: Question
) -> Iterator[ServerResult]:
    settings = replay.settings
    profile = question.profile or settings.profile
    release = profile.partition("@")[2]
    values = dict(settings.values)
    if release.partition("+")[0] != settings.release.value:
        values = {n: v for n, v in values.items() if n not in default_step(settings)}
    options = options_for(release, values) | dict(question.options)
    if question.is_own:
        workloads = workloads[:1]  # the log itself
    for workload in workloads:
        yield play_workload(workload, profile, options)


def entry(
    question: Question, replays: Sequence[Replay], played: Sequence[Sequence[ServerResult]]
) -> dict[str, Any]:
    """A row: prefilled tokens, requests with reuse, peak bytes."""
    hits = failed = 0
    read = []
    for replay, others in zip(replays, played, strict=True):
        first, numbers = others[0].replayed, counted(replay)
        failed += sum(first[n].cached is None for n in _numbers(replay))
        hits += sum(bool(first[n].cached) for n in numbers)
        read.append([sum(other.replayed[n].processed or 0 for n in numbers) for other in others])
    return {
        "name": question.name,
        "asked": question.is_requested,
        "processed": sum(each[0] for each in read),
        "processed_bounds": [sum(map(min, read)), sum(map(max, read))],
        "hits": hits,
        "failed": failed,
        "peak_bytes": max(others[0].peak_bytes for others in played),
        "context_bytes": max(
            context_bytes(replay.settings.spec, others[0].options)
            for replay, others in zip(replays, played, strict=True)
        ),
        "options": dict(played[0][0].options),
    }


def _numbers(replay: Replay) -> list[int]:
    return [request.observed.number for request in replay.requests if request.submitted is not None]


# -- other workloads that fit the log --------------------------------------------------------------

# open                  where messages begin that no line shows; which conversation was loaded;
#                       whether prompts that meet in nothing begin with the same few tokens
# one answer from all   the log settles it
# several answers       reported as bounds

SHORT: Final = 8
"""Most new tokens without room for a message and its marks."""


PLACES: Final = (0.0, 0.5, 1.0)
"""Places of a tried message in a request's new part: start, middle, end."""

ROUNDS: Final = 6
"""Most rounds in which messages are removed until the log's numbers agree."""


def workloads_of(replay: Replay) -> list[Workload]:
    """The likeliest workload, then the alternatives."""
    likeliest = workload_of(replay)
    found = [likeliest]
    found += _with_other_starts(replay, likeliest)
    other = other_candidates(replay)
    if other is not None:
        found.append(workload_of(other))
    return found


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
        counts = [each[number].cached for each in played if number in each]
        known = [count for count in counts if count is not None]
        if known:
            found[number] = Interval(min(known), max(known))
    return found


FEW: Final = 300
"""Most requests that are replayed on other servers by default."""
TOKENS_OF_ONE: Final = 25_000
"""Prompt tokens that take as long to replay as one request."""
LONG_LOG: Final = (
    "A log of this length is replayed with other settings on request: name a release or flag with "
    "`--what-if`, or run `cachesim why --tune` on it."
)
UNLIKE: Final = (
    "Other settings are not tried: the replay does not reproduce the log's reuse of most requests. "
    "Name the release (`--profile`), the model (`--model`) or flags (`--set`) if they are known; "
    "`--what-if` replays one setting all the same."
)
UNKNOWN_REUSE: Final = (
    "Other settings are not tried: the log has the reused tokens of no request that was replayed."
)


Plays: TypeAlias = Callable[[Sequence[tuning.Trial]], list[tuning.TrialResult]]
"""A function that runs trials: in this process, or on all cores with progress."""


def in_turn(trials: Sequence[tuning.Trial]) -> list[tuning.TrialResult]:
    """Trials run in this process; refused ones are left out."""
    return [result for result in map(tuning.run_trial, trials) if result is not None]


def swept(runs: Sequence[tuning.ServerRun], play: Plays = in_turn) -> list[tuning.TrialResult]:
    """All trials, the user's own settings first."""
    first = play(tuning.alone(runs))
    if not first:
        raise InputError("the server refuses its own settings; name its release with --profile")
    return first + play(tuning.together(first, runs))


Entries: TypeAlias = Iterator[dict[str, Any]]
Shown: TypeAlias = Callable[[Entries, int], Entries]
"""Entries as they are replayed, with progress, and their maximum number."""


def as_they_come(entries: Entries, _: int) -> Entries:
    """The entries, without progress."""
    return entries


def add_other_settings(
    found: dict[str, Any],
    replays: Sequence[Replay],
    what_if: Sequence[str] = (),
    play: Plays = in_turn,
    shown: Shown = as_they_come,
) -> None:
    """Add replays on other servers: the requested ones, and the usual ones if that is fast."""
    played = [replay for replay in replays if replay.settings.is_played]
    totals = found["totals"]
    work = totals["requests"] + (totals["prompt_tokens"] or 0) // TOKENS_OF_ONE
    few = bool(played) and work <= FEW
    alike = tuning.most_agree(played)
    if what_if and not played:
        raise InputError(f"--what-if: {found['servers'][0]['missing'][0]}")
    found["left_out_says"] = left_out(played)
    if what_if:
        asked = requested(played[0].settings, what_if)
        found["what_if"] = list(shown(answers(played, asked), len(asked)))
    elif few and alike:
        asked = usual(played[0].settings)
        found["what_if"] = list(shown(answers(played, asked), len(asked)))
    if few and alike:
        wanted = tuning.of_log(played, None)
        every = swept(wanted.runs, play)
        found["tuned"] = tuning.summary(every, wanted.runs[0]) | {"assumed": list(wanted.assumed)}
        for cause in found["causes"]:
            flags = of_flags(every, cause["cause"], played[0].settings)
            cause |= {"tried": flags, "tried_says": flags_in_words(flags)}
            if flags:  # what was run is known better than the advice about flags
                cause["cure"] = remedy_of(cause["cause"], played[0].settings.engine).client
    elif played and not what_if:
        unlike = UNLIKE if found["agreement"]["comparable"] else UNKNOWN_REUSE
        found["log"]["long"] = LONG_LOG if alike else unlike
    found["answer"] = answer_of(found)
