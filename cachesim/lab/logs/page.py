"""A log in a browser: the report of `cachesim why` as JSON and as a page."""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

from cachesim.errors import CachesimError, InputError
from cachesim.lab.logs.replay import Replay
from cachesim.lab.logs.telling import worst
from cachesim.lab.logs.tuning import Trial, Tried, alone, of_log, summary, together, tried
from cachesim.lab.logs.what_if import answers, flags_in_words, of_flags, usual
from cachesim.lab.logs.whole import Wanted, read_files, replays_of, why
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.report.html_document import page
from cachesim.report.why import why_report

FEW: Final = 300
"""Requests of a log that is played on other servers too."""
TOKENS_OF_ONE: Final = 25_000
"""Tokens of prompts that take as long to play as one request."""
LONG_LOG: Final = (
    "A log of this length is played with other settings on request: name a release or a flag with "
    "`--what-if`, or run `cachesim tune`."
)


def explained(name: str, data: bytes) -> str:
    """The report on a log: JSON as the command prints it, and the page, or the problems."""
    try:
        data = bytes(data)
        read = read_files([(name, unpacked(name, BytesIO(data), data[:HEAD_BYTES]))])
        replays = replays_of(read, Wanted())
        found = why(read, replays)
        _add_other_settings(found, replays)
    except CachesimError as error:
        return json.dumps({"problems": [str(error)]})
    parts = why_report(found, worst=worst(found["requests"], 3))
    return json.dumps(
        {"json": json.dumps(found, indent=1) + "\n", "html": page("cachesim why", *parts)}
    )


def _add_other_settings(found: dict[str, Any], replays: list[Replay]) -> None:
    """What the usual other settings do, and the best that were tried, where that is quick."""
    played = [each for each in replays if each.settings.is_played]
    totals = found["totals"]
    if not played:
        return
    if totals["requests"] + totals["prompt_tokens"] // TOKENS_OF_ONE > FEW:
        found["log"]["long"] = LONG_LOG
        return
    settings = played[0].settings
    found["what_if"] = list(answers(played, usual(settings)))
    lives = of_log(played, None).lives
    first = _played(alone(lives))
    if not first:
        msg = "the server refuses its own settings; name its release with --profile"
        raise InputError(msg)
    every = first + _played(together(first, lives))
    found["tuned"] = summary(every, lives[0])
    for cause in found["causes"]:
        flags = of_flags(every, cause["cause"], settings)
        cause |= {"tried": flags, "tried_says": flags_in_words(flags)}


def _played(trials: Sequence[Trial]) -> list[Tried]:
    return [each for each in map(tried, trials) if each is not None]
