"""Answers of a log's server that are known to be wrong: of which requests, why, and the evidence.

the log's lines   a request that names a busy slot loads a conversation over the one that runs
the replay        a checkpoint outlived its tokens, and a later request resumed from it
its answers       differ from those of an uncached run: the settings say by which rule
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import CachesimError
from cachesim.model.spec import ModelSpec
from cachesim.scenario.files import load
from cachesim.scenario.labels import SOURCE, label_of
from cachesim.scenario.shipped import shipped_file
from cachesim.why.read.observed import ENDLESS, OVERWRITTEN
from cachesim.why.replay.replayed import Replay

Json: TypeAlias = dict[str, Any]

BUSY: Final = "llama.cpp-pinned-busy-slot"
LOOPS: Final = "llama.cpp-pinned-loops-forever"
STATE: Final = "llama.cpp-three-requests"
WINDOW_STATE: Final = "llama.cpp-three-requests-window"
WINDOW_FROM_RAM: Final = "llama.cpp-swa-full-from-ram"
WINDOW_BEYOND: Final = "llama.cpp-24411-checkpoint-beyond-divergence"
WINDOW_LOST: Final = "llama.cpp-window-lost-in-a-dry-run"
WINDOW_ONE: Final = "llama.cpp-window-checkpoint-one-token-beyond"
CHUNKS: Final = "llama.cpp-26557-chunk-reuse-hybrid"
SHIFTED: Final = "llama.cpp-shift-old-checkpoints"
FROM_FILE: Final = "llama.cpp-restore-old-checkpoints"

SAYS: Final[Mapping[str, str]] = {
    BUSY: "ran when another request named its slot (`id_slot`): the server loaded a conversation "
    "of the prompt cache over it. Leave `id_slot` out, or wait for the answer",
    LOOPS: "was read without end, and no client was answered meanwhile: another request named its "
    "slot (`id_slot`), and the server loaded a longer conversation over it. Leave `id_slot` out, "
    "or wait for the answer",
    STATE: "resumed from a state that holds tokens of another prompt",
    WINDOW_STATE: "resumed from a window that holds keys of another prompt",
    WINDOW_FROM_RAM: "came back from the prompt cache without keys that the window should see. "
    "Leave `--swa-full` out, or set `--cache-ram 0`",
    CHUNKS: "moved a recurrent state together with chunks of its prompt. Leave `--cache-reuse` out",
    SHIFTED: "resumed from a checkpoint of before a context shift",
    FROM_FILE: "resumed from a checkpoint of before its slot was restored from a file",
    WINDOW_BEYOND: "resumed from a window's checkpoint beyond the divergence",
    WINDOW_LOST: "shared a batch with other prompts, for which the server emptied part of the "
    "window that it should see. Set `--no-kv-unified`, or `--parallel 1`",
    WINDOW_ONE: "resumed from a window that lacks a key which its next token should see",
    "": "got another answer in the replay than in an uncached run",
}
"""Scenario -> what happened to a request, and what avoids it."""


def wrong_in(replays: Sequence[Replay], requests: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Findings of the log's lines, and of checkpoints that outlived their tokens in the replay."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for request in (request for request in requests if request["stale"]):
        settings = replays[request["server"]].settings
        scenario = STATE if not settings.spec.window else WINDOW_STATE
        scenario = {OVERWRITTEN: BUSY, ENDLESS: LOOPS}.get(request["stale"], scenario)
        says = SAYS[scenario] if settings.is_played else request["stale"]
        key = (scenario if settings.is_played else "", says, settings.profile)
        groups.setdefault(key, []).append(request["number"])
    return [_finding(numbers, *key) for key, numbers in groups.items()]


def wrong_too(
    replay: Replay,
    first: int,
    wrong: Sequence[int],
    known: Collection[int],
    lost: Collection[int] = (),
) -> list[Json]:
    """Findings of the replay's answers (`first`: the number of its first request in the report;
    `lost`: those that are right where a dry run of a batch changes nothing).

    Of requests that the replay does not reproduce, and of those that are known, it says nothing.
    """
    groups: dict[str, list[int]] = {}
    for number in wrong:
        if number >= 0 and first + number not in known and _is_reproduced(replay, number):
            name = WINDOW_LOST if number in lost else _scenario_of(replay, number)
            groups.setdefault(name, []).append(first + number)
    profile = replay.settings.profile
    return [_finding(numbers, name, SAYS[name], profile) for name, numbers in groups.items()]


def _is_reproduced(replay: Replay, number: int) -> bool:
    rebuilt = replay.requests[number]
    return rebuilt.is_comparable and rebuilt.agrees


def _finding(numbers: Sequence[int], scenario: str, says: str, profile: str) -> Json:
    evidence = evidence_of(scenario, profile) if scenario else SOURCE
    kind = "loop" if scenario == LOOPS else "wrong answer"
    return {
        "requests": [*numbers], "scenario": scenario, "says": says, "evidence": evidence,
        "kind": kind,
    }  # fmt: skip


def _scenario_of(replay: Replay, number: int) -> str:
    """The scenario whose rule makes an answer of the replay wrong; empty if none is known."""
    settings, request = replay.settings, replay.requests[number]
    values, spec = settings.values, settings.spec
    before = [earlier for earlier in replay.requests[:number] if earlier.observed.shifts]
    windows = bool(spec.window_layers)
    likely = {
        wrong_with(settings.profile, spec, values): windows,
        CHUNKS: bool(values.get("cache_reuse")) and not windows,
        SHIFTED: bool(before) and not windows,
        FROM_FILE: request.submitted is not None and request.submitted.file is not None,
        WINDOW_BEYOND: windows,
        WINDOW_ONE: windows,
    }
    release = str(settings.release.value)
    return next((name for name, may in likely.items() if name and may and _on(name, release)), "")


def _on(scenario: str, release: str) -> bool:
    """True if a scenario has a wrong answer on the last release until this one that it names."""
    names = FAMILY.names()
    expected = {
        expect.profile: "diverged" in (expect.answer or ())
        for expect in load(shipped_file(scenario)).expect
        if expect.profile in names
    }
    until = [name for name in names[: names.index(release) + 1] if name in expected]
    return bool(until) and expected[until[-1]]


def wrong_with(profile: str, spec: ModelSpec, options: Mapping[str, Any]) -> str:
    """The scenario that shows how a server with these settings answers wrongly; empty if none."""
    named = Profile.parse(profile)
    if named.engine != FAMILY.name or not options.get("swa_full") or not spec.window_layers:
        return ""
    rules = FAMILY.rules(named)
    ram = options.get("cache_ram", FAMILY.default(FAMILY.option("cache_ram"), named.release))
    is_short = rules.reuse.swa_full_hides_window and rules.memory.saves_unmasked_window
    return WINDOW_FROM_RAM if is_short and ram else ""


def avoided_by(wrong: Sequence[Mapping[str, Any]]) -> str:
    """What avoids the worst of the findings, as the end of a sentence; empty if nothing is wrong.

    A release that answers rightly is named; a patch is none.
    """
    worst = min(wrong, key=lambda finding: finding["kind"] != "loop", default=None)
    if worst is None:
        return ""
    what = "the endless loop" if worst["kind"] == "loop" else "wrong answers"
    does = worst["says"].partition(". ")[2]
    do = [does[0].lower() + does[1:]] if does else []
    release = _right_release(worst["scenario"])
    do += [f"use {release}, which does not do it"] if release else []
    return f"{what} can be avoided: {'; or '.join(do)}" if do else f"{what} are possible"


def _right_release(scenario: str) -> str:
    """The release without a scenario's fault, if it names one."""
    try:
        right = load(shipped_file(scenario)).shows.after.profile if scenario else None
    except (CachesimError, ValueError):  # a package without the scenarios
        return ""
    return right if right and "+" not in right else ""


def evidence_of(scenario: str, profile: str) -> str:
    """The label of a scenario's wrong answer on a release."""
    try:
        found = load(shipped_file(scenario))
        return label_of(found, Profile.parse(profile), found.shows.before.step) or SOURCE
    except (CachesimError, ValueError):  # a package without the scenarios
        return SOURCE
