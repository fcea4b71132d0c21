"""A server's log in a lesson: its lines, the report of `cachesim why`, the replay.

The log is that of a real llama-server with a small hybrid model, as `docs/examples` has it.
"""

import io
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import cachesim
from cachesim.engines.family import Profile
from cachesim.engines.tokens import Rope
from cachesim.errors import ContractError, InputError
from cachesim.learn.drawing import Control, Drawn
from cachesim.learn.kit import link, print_line
from cachesim.play.result import Run, Step
from cachesim.play.runner import run
from cachesim.report.picture import Kind, story
from cachesim.why.advise.what_if import answers, requested
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.explain.whole import why as why_of
from cachesim.why.extract import whole_scenario
from cachesim.why.replay.replayed import FRESH, Replay, text_of

EXAMPLE: Final = "hybrid.log"
"""The log's name in the documentation and in an installed package."""

KINDS: Final[tuple[Kind, ...]] = ("request", "recurrent", "checkpoint")
"""Drawn parts of a hybrid model; its attention layers never limit reuse."""

WIDE: Final = 74

_ENDS: Final = "release: id"
_HEAD: Final = re.compile(r"^[\d.]+ [IWE] \w+ +")
_TASK: Final = re.compile(r"(?P<function>\w+): id +\d+ \| task -?\d+ \| ")


@dataclass(frozen=True, slots=True)
class Log:
    """A server's log, read and replayed."""

    lines: tuple[str, ...]
    replay: Replay
    report: dict[str, Any]  # the report of `cachesim why --format json`
    played: dict[Hashable, Run] = field(default_factory=dict, compare=False)  # runs made before

    def request(self, number: int) -> dict[str, Any]:
        """Report of `why` on a request."""
        found: dict[str, Any] = self.report["requests"][number]
        return found

    def lines_of(self, number: int) -> list[str]:
        """A request's lines, from the choice of its slot to its release (one slot)."""
        at = int(self.request(number)["line"]) - 1
        before = [i for i in range(at) if _ENDS in self.lines[i]]
        after = [i for i in range(at, len(self.lines)) if _ENDS in self.lines[i]]
        start = before[-1] + 1 if before else at
        # A line without clock, level and ids of slot and task.
        return [
            _TASK.sub(r"\g<function>: ", _HEAD.sub("", line))
            for line in self.lines[start : after[0] + 1]
        ]

    def show(self, number: int, *words: str) -> None:
        """Print a request's lines, or those with one of some words."""
        for line in self.lines_of(number):
            if not words or any(word in line for word in words):
                print_line("\n    ".join(wrap(line, WIDE)))

    def what_if(self, *flags: str) -> list[dict[str, Any]]:
        """The requests with flags changed one at a time; the first row is the log."""
        return list(answers([self.replay], requested(self.replay.settings, flags)))

    def run(self, *, upto: int | None = None, parts_at: int | None = None, **options: int) -> Run:
        """The traced replay of the requests, with a network.

        `parts_at` moves the place at which the last of them leaves the slot's history.
        """
        key = (upto, parts_at, tuple(sorted(options.items())))
        if key not in self.played:
            replay = self.replay
            requests = replay.requests if upto is None else replay.requests[: upto + 1]
            if parts_at is not None:
                before, last = requests[-2].submitted, requests[-1].submitted
                if before is None or last is None:
                    raise ContractError("a request that was not replayed leaves no history")
                history = before.prompt.copy()
                history += before.reply
                prompt = history[:parts_at]
                prompt += Rope([(text_of(last.number, FRESH), 0, len(last.prompt) - parts_at)])
                requests = [
                    *requests[:-1],
                    replace(requests[-1], submitted=replace(last, prompt=prompt)),
                ]
            scenario = whole_scenario(replace(replay, requests=requests))
            server = replace(scenario.engine, options={**scenario.engine.options, **options})
            profile = Profile.parse(replay.settings.profile)
            self.played[key] = run(
                replace(scenario, engine=server), profile, arithmetic="ring", detail=True
            )
        return self.played[key]


@cache
def example(name: str = EXAMPLE) -> Log:
    """A log of the documentation."""
    data = _file(name).read_bytes()
    read = read_files([(name, io.BytesIO(data))])
    replays = replays_of(read, UserSettings())
    return Log(tuple(data.decode().splitlines()), replays[0], why_of(read, replays))


def _file(name: str) -> Path:
    package = Path(cachesim.__file__).parent
    places = (package / "learn" / name, package.parent / "docs" / "examples" / name)
    for place in places:
        if place.is_file():
            return place
    raise InputError(f"{name} is missing from this installation")


def drawn(run: Run) -> Drawn:
    """Picture of the server's memory after each request of a log."""
    toml = "" if run.detail is None else run.detail.toml
    return Drawn(picture=story(run, kinds=KINDS), link=link(run.profile, toml, run.arithmetic))


def last_of(run: Run) -> Step:
    """The last request of a run."""
    return run.steps[-1]


def swept(label: str, runs: Iterable[tuple[int, Run]], *, about: int) -> Control:
    """A run for each value: the result of a request, and of all together."""
    return Control(label=label, shown=tuple(_swept(runs, about)))


def _swept(runs: Iterable[tuple[int, Run]], about: int) -> Iterator[tuple[str, str, Drawn]]:
    for value, played in runs:
        step = played.steps[about]
        processed = sum(step.processed or 0 for step in played.steps)
        text = (
            f"request {step.name}: {step.cached} of {step.prompt_tokens} cached; "
            f"{len(played.steps)} requests together: {processed} processed"
        )
        yield str(value), text, drawn(played)
