"""The replay once more with a network, each answer beside an uncached run.

Requests share turns as in the replay without a network: which of a window's cells are overwritten
depends on them.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from cachesim.engines.base import Reply
from cachesim.engines.llamacpp.memory.hybrid import WindowPair, parts_of
from cachesim.engines.tokens import Rope, Run
from cachesim.errors import UpstreamAbort
from cachesim.model.spec import ModelSpec
from cachesim.play.loop import EndlessError
from cachesim.scenario.prompts import mixed
from cachesim.units import Token, Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge
from cachesim.why.replay.other import Workload
from cachesim.why.replay.player import Player

VOCABULARY: Final = 65_536
FIRST: Final = 300

DRY_RUN_RESTORES: Final = "dry-run-restores"
"""The patch with which a dry run of a batch changes nothing."""


class Judging(Player):
    """A server with a network, and the requests that it answered wrongly."""

    arithmetic = "ring"

    def __init__(self, profile: str, spec: ModelSpec, options: Mapping[str, Any]) -> None:
        super().__init__(profile, replace(spec, vocabulary=VOCABULARY), options)
        self._oracle = Oracle(self.engine.network)
        self.wrong: list[int] = []

    def tokens(self, rope: Rope) -> Tokens:
        return numbered(rope)

    @property
    def lost_window(self) -> bool:
        """True if a dry run of a batch has emptied cells that a window should see."""
        attention, _ = parts_of(self.engine.server.contexts.target.memory)
        return isinstance(attention, WindowPair) and attention.swa.streams.lost

    def ends(self, number: int, reply: Reply | None) -> None:
        super().ends(number, reply)
        verdict = None if reply is None else judge(reply, self._oracle)
        if verdict is not None and verdict.answer == "diverged":
            self.wrong.append(number)


def wrong_answers(
    workload: Workload, profile: str, options: Mapping[str, Any], *, most: int
) -> list[int] | None:
    """Requests with wrong answers on a server; None above a number of prompt tokens."""
    player = judged(workload, profile, options, most=most)
    return None if player is None else player.wrong


def judged(
    workload: Workload, profile: str, options: Mapping[str, Any], *, most: int
) -> Judging | None:
    """The server after all requests; None above a number of prompt tokens."""
    if sum(len(request.prompt) for request in workload.submitted.values()) > most:
        return None
    player = Judging(profile, workload.spec, options)
    files = (request.file for request in workload.submitted.values())
    player.saved_after = frozenset(file[0] for file in files if file is not None)
    try:
        for what, number in workload.moves or workload.order:
            if what == "launch":
                player.launch(workload.submitted[number])
            elif what == "finish":
                player.run_until(number)
            elif what == "turn":
                player.advance(turns=1, at_once=number)
            else:
                player.erase(number)
    except (UpstreamAbort, EndlessError):
        pass  # as far as it came
    return player


def lost_in_a_dry_run(server: Judging, workload: Workload, options: Mapping[str, Any]) -> set[int]:
    """The wrong answers of a server that are right where its dry runs put back what they empty."""
    if not server.lost_window:
        return set()
    patched = f"{workload.profile}+{DRY_RUN_RESTORES}"
    return set(server.wrong) - set(
        wrong_answers(workload, patched, options, most=sys.maxsize) or ()
    )


def numbered(rope: Rope) -> Tokens:
    """The tokens of a rope as vocabulary ids, equal for equal places of a text."""
    return tuple(chain.from_iterable(_numbered_run(run) for run in rope.runs))


@lru_cache(maxsize=256)  # the requests of a log are run with many settings
def _numbered_run(run: Run) -> Tokens:
    return tuple(Token(FIRST + mixed(token) % (VOCABULARY - FIRST)) for token in Rope([run]))
