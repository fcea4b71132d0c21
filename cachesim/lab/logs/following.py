"""A growing log: each request is reported at its end, and replayed once.

    new bytes -> whole lines -> reader -> moments -> the same server goes on -> what ended

What a later request shows of an earlier one comes too late here: a request is played once. Where a
later line shows that the server was taken for another one (a flag, a level that prints more), the
log is played again from its start, once. So it is where recurrent states reproduce more requests
than full attention, of a model that the log does not name.
"""

from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Final

from cachesim.lab.logs.lines import Tally, lines_of
from cachesim.lab.logs.observed import ServerLog
from cachesim.lab.logs.reading import Reader
from cachesim.lab.logs.rebuild import Rebuilder
from cachesim.lab.logs.replay import Hints, Rebuilt, Replay
from cachesim.lab.logs.report import States, request_entry
from cachesim.lab.logs.settings import UNKNOWN_MODEL, Settings, settings_of
from cachesim.lab.logs.whole import UserSettings, as_printed, is_likelier, with_states

LONGEST_REST: Final = 1 << 20
"""Most bytes of an unfinished line."""


@dataclass(slots=True)
class _ServerRun:
    """A server's run, as far as it was replayed."""

    log: ServerLog
    number: int
    first: int  # requests of the servers before it
    settings: Settings | None = None
    rebuilder: Rebuilder | None = None
    states: States = field(default_factory=States)
    reported: set[int] = field(default_factory=set)
    inferred: Settings | None = None
    is_stated: bool = False  # the reason was reported
    unlike: int = 0  # requests not reproduced when recurrent states were tried last

    def news(self, user: UserSettings) -> list[dict[str, Any]]:
        if user.chats:
            self.log.holds_chats()
        settings = settings_of(
            self.log,
            profile=user.profile,
            model=user.model,
            window=user.window,
            given=user.options,
        )
        if not settings.is_played:
            ended = [as_printed(each) for each in self.log.requests if each.ended]
            return [
                self._entry(each) for each in ended if each.observed.number not in self.reported
            ]
        if self.inferred is not None and settings.preset == UNKNOWN_MODEL:
            settings = replace(
                settings, preset=self.inferred.preset, sizes=self.inferred.sizes,
                inferred=self.inferred.inferred,
            )  # fmt: skip
        if self.rebuilder is None or _is_another(self.settings, settings):
            self.settings, self.states = settings, States()
            self.rebuilder = Rebuilder(self.log, settings, Hints())
        numbers = self.rebuilder.advance()
        likely = self._with_states(self.rebuilder.replay)
        if likely is not None:
            self.rebuilder, numbers = likely
        found: list[dict[str, Any]] = []
        for each in (self.rebuilder.replay.requests[number] for number in numbers):
            stale = self.states.stale(each)
            if each.observed.number not in self.reported:
                found.append(self._entry(each, stale))
        if found and self.inferred is not None and not self.is_stated:
            found[0]["inferred"] = self.inferred.inferred
            self.is_stated = True
        return found

    def _with_states(self, replay: Replay) -> tuple[Rebuilder, list[int]] | None:
        """The log replayed with recurrent states, and its ended requests, if they reproduce more.

        Tried again when twice as many requests are not reproduced: the whole log is replayed.
        """
        unlike = len(replay.comparable) - replay.as_sent
        if unlike < 2 * self.unlike:
            return None
        self.unlike = unlike
        likely = with_states(replay)
        if likely is None:
            return None
        other = Rebuilder(self.log, likely, Hints())
        ended = other.advance()
        if not is_likelier(other.replay, replay):
            return None
        self.settings = self.inferred = likely
        self.states = States()
        return other, ended

    def _entry(self, each: Rebuilt, stale: str | None = None) -> dict[str, Any]:
        number = each.observed.number
        self.reported.add(number)
        entry = request_entry(each, server=self.number, number=self.first + number)
        return entry | {"stale": each.observed.stale or stale}


def _is_another(played: Settings | None, shown: Settings) -> bool:
    return played is None or any(
        one != other
        for one, other in (
            (played.profile, shown.profile),
            (played.values, shown.values),
            (played.preset.value, shown.preset.value),
            (played.window.value, shown.window.value),
        )
    )


class Following:
    """Incremental reader of a log."""

    def __init__(self, user: UserSettings) -> None:
        self._user = user
        self._reader, self._tally = Reader(), Tally()
        self._runs: list[_ServerRun] = []
        self._rest = b""

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """Read a piece; return the report of each request that has ended.

        The first one after states are inferred has the reason, as `inferred`.
        """
        whole, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[-LONGEST_REST:]
        if end:
            file = BytesIO(whole + end)
            self._reader.take(lines_of(file, self._tally, after=self._tally.lines))
        found: list[dict[str, Any]] = []
        first = 0
        servers = [each for each in self._reader.servers if not each.is_empty]
        for number, server in enumerate(servers):
            if number == len(self._runs):
                self._runs.append(_ServerRun(server, number, first))
            run = self._runs[number]
            if any(each.ended for each in server.requests[len(run.reported) :]):
                found += run.news(self._user)
            first += len(server.requests)
        return found
