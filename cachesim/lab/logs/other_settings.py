"""Other settings for the requests of a log: requested, usual and best ones."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cachesim.errors import InputError
from cachesim.lab.logs.remedies import remedy_of
from cachesim.lab.logs.replay import Replay
from cachesim.lab.logs.tuning import (
    ServerRun,
    Trial,
    TrialResult,
    alone,
    of_log,
    run_trial,
    summary,
    together,
)
from cachesim.lab.logs.what_if import answers, flags_in_words, of_flags, requested, usual

FEW: Final = 300
"""Most requests that are replayed on other servers by default."""
TOKENS_OF_ONE: Final = 25_000
"""Prompt tokens that take as long to replay as one request."""
LONG_LOG: Final = (
    "A log of this length is replayed with other settings on request: name a release or flag with "
    "`--what-if`, or run `cachesim why --tune` on it."
)


Plays: TypeAlias = Callable[[Sequence[Trial]], list[TrialResult]]
"""A function that plays trials: in this process, or on all cores with progress."""


def in_turn(trials: Sequence[Trial]) -> list[TrialResult]:
    """Trials played in this process; refused ones are left out."""
    return [each for each in map(run_trial, trials) if each is not None]


def swept(runs: Sequence[ServerRun], play: Plays = in_turn) -> list[TrialResult]:
    """All trials, the user's own settings first."""
    first = play(alone(runs))
    if not first:
        msg = "the server refuses its own settings; name its release with --profile"
        raise InputError(msg)
    return first + play(together(first, runs))


def add_other_settings(
    found: dict[str, Any],
    replays: Sequence[Replay],
    what_if: Sequence[str] = (),
    play: Plays = in_turn,
) -> None:
    """Add replays on other servers: the requested ones, and the usual ones if that is fast."""
    played = [each for each in replays if each.settings.is_played]
    totals = found["totals"]
    work = totals["requests"] + (totals["prompt_tokens"] or 0) // TOKENS_OF_ONE
    few = bool(played) and work <= FEW
    if what_if and not played:
        msg = f"--what-if: {found['servers'][0]['missing'][0]}"
        raise InputError(msg)
    if what_if:
        found["what_if"] = list(answers(played, requested(played[0].settings, what_if)))
    elif few:
        found["what_if"] = list(answers(played, usual(played[0].settings)))
    if few:
        wanted = of_log(played, None)
        every = swept(wanted.runs, play)
        found["tuned"] = summary(every, wanted.runs[0]) | {"assumed": list(wanted.assumed)}
        for cause in found["causes"]:
            flags = of_flags(every, cause["cause"], played[0].settings)
            cause |= {"tried": flags, "tried_says": flags_in_words(flags)}
            if flags:  # what was played is known better than the advice about flags
                cause["cure"] = remedy_of(cause["cause"], played[0].settings.engine).client
    elif played and not what_if:
        found["log"]["long"] = LONG_LOG
