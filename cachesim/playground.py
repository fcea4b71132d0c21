"""A log in a browser: the report of `cachesim why`, and the server that was read out of the log."""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from cachesim.errors import CachesimError
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.report.html_document import page
from cachesim.report.why import why_report
from cachesim.scenario.files import to_toml
from cachesim.why.advise.what_if import add_other_settings
from cachesim.why.explain.report import worst
from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.extract import whole_scenario
from cachesim.why.replay.replayed import Replay

MOST_REQUESTS: Final = 400
"""Most requests of a log that are handed out as a scenario."""


def explained(name: str, data: bytes, given: str = "{}") -> str:
    """The report on a log: JSON as the command prints it, the page and the server, or the problems.

    `given` holds settings that replace the log's: `profile`, `model`, `window`, `options`.
    """
    try:
        data = bytes(data)
        read = read_files([(name, unpacked(name, BytesIO(data), data[:HEAD_BYTES]))])
        replays = replays_of(read, UserSettings(**json.loads(given)))
        found = why(read, replays)
        add_other_settings(found, replays)
    except CachesimError as error:
        return json.dumps({"problems": [str(error)]})
    parts = why_report(found, worst=worst(found["requests"], 3))
    return json.dumps(
        {
            "json": json.dumps(found, indent=1) + "\n",
            "html": page("cachesim why", *parts),
            "server": server_of(replays),
        }
    )


def server_of(replays: Sequence[Replay]) -> Mapping[str, Any]:
    """The first server of a log as the fields of the form, and how each is known."""
    first = replays[0]
    settings = first.settings
    known = {"release": settings.release, "model": settings.preset, **settings.options}
    if settings.window.value:
        known["window"] = settings.window
    ways = dict.fromkeys(setting.how for setting in known.values())
    playable = settings.is_played and len(first.requests) <= MOST_REQUESTS
    scenario = whole_scenario(first) if playable else None
    return {
        "servers": len(replays),
        "requests": len(first.requests),
        "played": settings.is_played,
        "engine": settings.engine,
        "release": str(settings.release.value),
        "patches": list(settings.patches),
        "model": str(settings.preset.value),
        "window": settings.window.value or None,
        "options": settings.values,
        "how": {
            way: [name for name, setting in known.items() if setting.how == way] for way in ways
        },
        "toml": to_toml(scenario) if scenario is not None and scenario.step else None,
    }
