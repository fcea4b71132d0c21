"""What recorded requests tell: where each parts from what it continues, and what that cost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.logs.dump import Recorded
from cachesim.logs.live import Live
from cachesim.logs.rerun import elsewhere as played_elsewhere
from cachesim.logs.rerun import full_name, others
from cachesim.logs.telling import FORMAT
from cachesim.logs.whole import Wanted

FEW: Final = 2_000
"""So many requests are played on other engines too without being asked."""


def told_of_dump(
    requests: Sequence[Recorded],
    *,
    source: str,
    about: Wanted | None = None,
    what_if: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything, as one mapping: what `--format json` prints."""
    about = about or Wanted()
    live = Live(about)
    entries = live.add_all(requests)
    if live.rerun is not None and live.model_how == "computed":
        live = Live(replace(about, model=live.rerun.model), model_how="computed")
        entries = live.add_all(requests)
    if not any(live.totals.reported.values()) and all(
        each["continues"] is None and not each["equal_characters"] for each in entries
    ):
        msg = (
            f"{source}: no answer's `usage` or `timings`, and no two requests that begin alike: "
            "there is nothing to explain; `cachesim record` records the answers too"
        )
        raise InputError(msg)
    found = told_of_live(live, source=source)
    found["totals"]["after_partings"] = sum(each["tokens_after"] or 0 for each in entries)
    found["requests"] = entries
    if len(requests) <= FEW or what_if:
        found["what_if"] = list(elsewhere(live, what_if))
    return found


def told_of_live(live: Live, *, source: str) -> dict[str, Any]:
    """What is known after some requests, without the requests themselves."""
    totals = live.totals
    return {
        "format": FORMAT,
        "dump": {"sources": [source], "requests": totals.requests},
        "server": server_of(live),
        "totals": totals.as_dict(),
        "agreement": {
            "requests": totals.requests,
            "comparable": totals.comparable,
            "agreeing": totals.agreeing,
        },
        "causes": causes_of(live),
        "requests": [],
        "what_if": [],
    }


def server_of(live: Live) -> dict[str, Any] | None:
    """The server that is played, and how it is known."""
    if live.rerun is None:
        return None
    return {
        "profile": live.profile,
        "profile_known": live.profile_how,
        "model": live.rerun.model,
        "model_known": live.model_how,
        "problem": live.rerun.problem,
    }


def causes_of(live: Live) -> list[dict[str, Any]]:
    """Causes of one kind in one part of the prompt, those that cost most first."""
    groups = live.groups.values()
    return sorted(groups, key=lambda g: (-(g["tokens"] or 0), -len(g["requests"]), g["kind"]))


def elsewhere(live: Live, asked: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same requests on other engines, releases: tokens prefilled, and requests that reuse."""
    if live.rerun is None or live.profile is None:
        return
    for profile in map(full_name, asked) if asked else others(live.profile):
        yield played_elsewhere(
            profile, live.rerun.model, live.about.window, live.about.options, live.prompts
        )
