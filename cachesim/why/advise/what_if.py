"""The same requests with another release, patch or flag: requested, usual and best ones."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.scenario.labels import label_of_release
from cachesim.typed import of_kind
from cachesim.why.advise import tuning
from cachesim.why.explain.answer import answer_of
from cachesim.why.explain.remedies import remedy_of
from cachesim.why.explain.wrong import wrong_too
from cachesim.why.infer.settings import RELEASES, Settings
from cachesim.why.infer.sizes import context_bytes
from cachesim.why.replay.judged import judged, lost_in_a_dry_run, wrong_answers
from cachesim.why.replay.other import (
    ServerResult,
    Workload,
    default_step,
    options_for,
    play_workload,
)
from cachesim.why.replay.proof import left_out
from cachesim.why.replay.replayed import Replay

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
    names = [release for release in RELEASES if release != own]
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
    """The flags of which a value helps, best first, and those without any effect; no number, as
    the saving is promised once, with the setting that is recommended.

    A setting with which requests fail that were answered does not help.
    """
    helpful = [row for row in found if row["fewer"] > 0 and row["failed"] <= 0]
    best = list(
        dict.fromkeys(_name(row["flag"]) for row in sorted(helpful, key=lambda one: -one["fewer"]))
    )
    useless = dict.fromkeys(_name(row["flag"]) for row in found if _name(row["flag"]) not in best)
    words = []
    if best:
        named = ", ".join(f"`{name}`" for name in best)
        words.append(f"another value of {named} prefills fewer tokens")
    if useless:
        named = ", ".join(f"`{name}`" for name in useless)
        words.append(f"no value tried of {named} saves tokens")
    return f"On these requests {'; '.join(words)}." if words else ""


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


def answers(
    replays: Sequence[Replay],
    questions: Sequence[Question],
    runs: Sequence[tuning.ServerRun] = (),
) -> Iterator[dict[str, Any]]:
    """An entry for each question, over all lives of the log's server (`runs`: what is proven).

    A usual one that the server of a log cannot be asked is left out.
    """
    runs = runs or tuning.runs_of(replays)
    if not any(run.proof.logged for run in runs):  # then the sums are the replay's own
        runs = [tuning.server_run(run.subject, run.options, None, run.others) for run in runs]
    judged = MOST_JUDGED // max(1, len(questions))
    for question in questions:
        try:
            played = [
                list(_play(replay, run, question))
                for replay, run in zip(replays, runs, strict=True)
            ]
        except InputError:
            if question.is_requested:
                raise
            continue
        counts = [
            wrong_answers(
                of_kind(Workload, run.subject),
                others[0].profile,
                dict(others[0].options),
                most=judged,
            )
            for run, others in zip(runs, played, strict=True)
        ]
        wrong = None if None in counts else sum(len(numbers or ()) for numbers in counts)
        label = label_of_release(Profile.parse(played[0][0].profile)) if wrong else None
        yield entry(question, replays, runs, played) | {"wrong_answers": wrong, "evidence": label}


def _play(replay: Replay, run: tuning.ServerRun, question: Question) -> Iterator[ServerResult]:
    settings = replay.settings
    profile = question.profile or settings.profile
    release = profile.partition("@")[2]
    values = dict(settings.values)
    if release.partition("+")[0] != settings.release.value:
        values = {n: v for n, v in values.items() if n not in default_step(settings)}
    options = options_for(release, values) | dict(question.options)
    for workload in (run.subject, *(() if question.is_own else run.others)):
        yield play_workload(of_kind(Workload, workload), profile, options)


def entry(
    question: Question,
    replays: Sequence[Replay],
    runs: Sequence[tuning.ServerRun],
    played: Sequence[Sequence[ServerResult]],
) -> dict[str, Any]:
    """A row: prefilled tokens, requests with reuse, peak bytes."""
    hits = failed = 0
    read = []
    for replay, run, others in zip(replays, runs, played, strict=True):
        first, proof = others[0].replayed, run.proof
        failed += sum(first[n].cached is None for n in _numbers(replay))
        hits += sum(bool(first[n].cached) for n in proof.logged)
        read.append([proof.prefilled(other.replayed) for other in others])
    return {
        "name": question.name,
        "asked": question.is_requested,
        "processed": sum(counts[0] for counts in read),
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


ROUNDS: Final = 3
"""Rounds in which values between the best one and its neighbours are tried."""


def swept(tuned: tuning.Tuned, play: Plays = in_turn) -> list[tuning.TrialResult]:
    """All trials, the user's own settings first; no other where nothing could be recommended."""
    runs = [replace(run, others=(), replay=None) for run in tuned.runs]  # what trials need
    found: list[tuning.TrialResult] = []

    def tried(trials: Sequence[tuning.Trial]) -> bool:
        allowed = [trial for trial in trials if tuning.may_be_tried(trial, tuned.untried)]
        found.extend(play(allowed) if allowed else ())
        return bool(allowed)

    tried(tuning.alone(runs)[: 1 if tuned.unproven else None])
    if not found:
        raise InputError("the server refuses its own settings; name its release with --profile")
    tried(tuning.together(found, runs))
    for _ in range(ROUNDS):
        if not tried(tuning.between(found, runs)):
            break
    return found


Entries: TypeAlias = Iterator[dict[str, Any]]
Shown: TypeAlias = Callable[[Entries, int], Entries]
"""Entries as they are replayed, with progress, and their maximum number."""


def as_they_come(entries: Entries, _: int) -> Entries:
    """The entries, without progress."""
    return entries


def add_wrong(
    found: dict[str, Any], replays: Sequence[Replay], runs: Sequence[tuning.ServerRun]
) -> None:
    """Add what the replay knows of wrong answers of the log's own server."""
    first, of_played = 0, iter(runs)
    for replay in replays:
        if not replay.settings.is_played:
            first += len(replay.requests)
            continue
        run = next(of_played)
        known = {number for answer in found["wrong"] for number in answer["requests"]}
        workload = of_kind(Workload, run.subject)
        server = judged(workload, run.subject.profile, run.options, most=MOST_JUDGED)
        if server is not None and server.wrong:
            lost = lost_in_a_dry_run(server, workload, run.options)
            found["wrong"] += wrong_too(replay, first, server.wrong, known, lost)
        first += len(replay.requests)


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
    runs = tuning.runs_of(played) if played and (what_if or (few and alike)) else []
    found["left_out_says"] = left_out([run.proof for run in runs])
    if what_if:
        asked = requested(played[0].settings, what_if)
        found["what_if"] = list(shown(answers(played, asked, runs), len(asked)))
    elif runs:
        asked = usual(played[0].settings)
        found["what_if"] = list(shown(answers(played, asked, runs), len(asked)))
    if runs and few and alike:
        add_wrong(found, replays, runs)
        wanted = tuning.of_log(played, None, runs)
        every = swept(wanted, play)
        found["tuned"] = tuning.summary(every, wanted)
        for cause in found["causes"] if not found["tuned"]["withheld"] else ():
            flags = of_flags(every, cause["cause"], played[0].settings)
            cause |= {"tried": flags, "tried_says": flags_in_words(flags)}
            if flags:  # what was run is known better than the advice about flags
                cause["cure"] = remedy_of(cause["cause"], played[0].settings.engine).client
    elif played and not what_if:
        unlike = UNLIKE if found["agreement"]["comparable"] else UNKNOWN_REUSE
        found["log"]["long"] = LONG_LOG if alike else unlike
    found["answer"] = answer_of(found)
