"""The report of log files in one call; and of a growing log, request by request."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from cachesim.errors import InputError, OptionError, UpstreamAbort
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.scenario.shipped import shipped_under
from cachesim.why.explain.likely_flags import MOST_PLAYED, with_likeliest_flags
from cachesim.why.explain.report import States, report_of, request_entry
from cachesim.why.infer.evidence import common_with_holder, lengths_of
from cachesim.why.infer.settings import (
    LIMITED,
    UNKNOWN_MODEL,
    Setting,
    Settings,
    alike,
    settings_of,
)
from cachesim.why.infer.sizes import sizes_of
from cachesim.why.read.lines import Line, Tally, lines_of
from cachesim.why.read.observed import UNKNOWN, Observed, ServerLog, computed
from cachesim.why.read.reading import Reader
from cachesim.why.rebuild.from_log import TURN, Rebuilder
from cachesim.why.replay.replayed import FRESH, Hints, Rebuilt, Replay, owner_of, place_of

MOST_REQUESTS: Final = 100_000
"""Most requests of a log that are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """Server settings given by the user."""

    profile: str | None = None
    model: str | None = None
    window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    chats: bool = False  # every request is a chat, whether the log says so or not


@dataclass(slots=True)
class Read:
    """Content of the files: lines, servers, foreign logs."""

    servers: list[ServerLog]
    sources: list[str]
    tally: Tally
    known_lines: int
    foreign: set[str]


RECORD: Final = (
    "Such logs do not carry what a replay needs. Record the requests as JSON Lines (with `usage` "
    "and `timings` as they come back); `cachesim why` reads those too."
)
"""Advice for logs without the lines that a replay needs."""

MORE_LINES: Final = {
    "SGLang": "Or start SGLang with `--log-requests --log-requests-level 0`: its lines then have "
    "each request's cached tokens.",
    "vLLM": "Or start vLLM with `--enable-log-requests --enable-log-outputs` and "
    "`VLLM_LOGGING_LEVEL=DEBUG`: `cachesim compare` then replays the log's prompts.",
}
"""Flags with which a server that logs only sums logs its requests."""


def read_files(files: Sequence[tuple[str, BinaryIO]]) -> Read:
    """Read several logs as one."""
    reader, tally = Reader(), Tally()
    for name, file in files:
        reader.source = name
        reader.take(_of_one_server(lines_of(file, tally), name))
        if sum(len(server.requests) for server in reader.servers) > MOST_REQUESTS:
            msg = f"the log has more than {MOST_REQUESTS} requests: cut it, as with tail -n 500000"
            raise InputError(msg)
    servers = [server for server in reader.servers if not server.is_empty]
    if len(reader.named) == 1 and len(servers) == 1:
        servers[0].facts["named"] = min(reader.named)
    return Read(
        servers=servers,
        sources=[name for name, _ in files],
        tally=tally,
        known_lines=sum(server.known_lines for server in reader.servers),
        foreign=set().union(*(server.foreign for server in reader.servers)),
    )


def _of_one_server(lines: Iterable[Line], name: str) -> Iterator[Line]:
    """The lines, unless several servers' are mixed, whose slot numbers collide.

    A server that is started again under another process number is another server.
    """
    origins: list[str] = []
    for line in lines:
        if line.origin and line.origin not in origins[-1:]:
            if line.origin in origins:
                raise InputError(
                    f"{name}: lines of several servers are mixed: {', '.join(origins)}. Explain "
                    f"one at a time: keep its lines, as with grep -F '{origins[-1]}'"
                )
            origins.append(line.origin)
        yield line


def replays_of(
    read: Read, user: UserSettings, progress: Callable[[int], None] | None = None
) -> list[Replay]:
    """Replay parsed logs; `progress` takes lines, and is called for several passes over them."""
    if not read.servers:
        raise InputError(_nothing_in(read))
    replays, left = [], MOST_PLAYED
    for server in read.servers:
        if user.chats:
            server.holds_chats()
        settings = _settings(server, user, user.profile)
        if settings.is_played:
            try:
                replay = rebuild(server, settings, progress=progress)
                replay = with_likeliest_model(replay, progress)
                replay = _with_likeliest_release(replay, user, progress)
                again = partial(rebuild, server, progress=progress)
                # Trap: a log may hold the lines of many servers, and all share what may be tried.
                likeliest, played = with_likeliest_flags(replay, hints_after(replay), again, left)
                left -= played
                replays.append(likeliest)
            except (OptionError, UpstreamAbort) as error:
                given = " and ".join(
                    f"--set {name}={value}" for name, value in user.options.items()
                )
                flags = "the log's flags" + (given and f" and {given}")
                msg = f"{', '.join(read.sources)}: no server starts with {flags}: {error}"
                raise InputError(msg) from None
        else:
            replays.append(
                Replay(
                    server, settings, requests=[as_printed(request) for request in server.requests]
                )
            )
    return replays


def why(read: Read, replays: Sequence[Replay]) -> dict[str, Any]:
    """JSON of `cachesim why` for replayed logs."""
    tally, known = read.tally, read.known_lines
    found = report_of(replays, sources=read.sources, lines=tally.lines, known_lines=known)
    if tally.swaps:
        found["log"]["swaps"] = True
    if width := tally.wrapped_at:
        found["log"]["broken"] = (
            f"No line is longer than {width} characters, and many are as long: a "
            "terminal seems to have broken them. A number of which a part is on the next line is "
            "read wrongly. Save the log to a file instead."
        )
    return found


def _nothing_in(read: Read) -> str:
    names = ", ".join(read.sources)
    if read.foreign:
        known = sorted(read.foreign)
        return " ".join(
            (
                f"{names}: is a log of {', '.join(known)}. {RECORD}",
                *(MORE_LINES[part] for part in known),
            )
        )
    if read.known_lines:
        return (
            f"{names}: {read.known_lines} of {read.tally.lines} lines are a llama-server's, and "
            "none tells of a request. Requests are printed at the default verbosity (`-lv 3`) and "
            "above."
        )
    if not read.tally.lines:
        return f"{names}: is empty"
    if scenarios := [source for source in read.sources if source.endswith(".toml")]:
        run = f"cachesim run {' '.join(scenarios)}"
        return f"{names}: no log of a known server; a scenario is explained by `{run}`"
    return (
        f"{names}: no log of a known server: no line of {read.tally.lines} was recognised. "
        "`cachesim why` reads the logs of llama-server (its standard error), ik_llama.cpp, "
        "llama-cpp-python, mlx_lm.server, SGLang, Ollama, LM Studio, KoboldCpp, oMLX and "
        "mlx-openai-server, or recorded requests as JSON Lines."
    )


def open_log(name: str) -> tuple[str, BinaryIO]:
    """Open one file, compressed or not."""
    path = Path(name)
    try:
        if path.is_dir():
            raise InputError(f"{name}: is a folder; name a log file")
        file = path.open("rb")
        return name, unpacked(name, file, file.peek(HEAD_BYTES))
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror or error}"
        if shipped_under(name) is not None:
            msg = f"{name}: is a scenario, not a log; cachesim run {name} explains its misses"
        raise InputError(msg) from None


# -- passes over a log -----------------------------------------------------------------------------

# request 3 (cancelled)   [ prompt, length unknown ... reply )
# request 4               restores the state of 2 tokens     so 3's prompt had 6: one is 4 before
# request 9               restores the state of 75 tokens    so a message of the user begins there

PASSES: Final = 4
"""Most passes over a log."""

LONG, PASSES_OF_LONG, FIRST = 1_000, 1, 300
"""Requests of a long log, the passes over it, and the requests of it with which another model
or release is tried before it is replayed whole.
"""

BEFORE_END: Final = 4
"""Tokens between the last checkpoint of a prompt and its end."""


def rebuild(
    log: ServerLog,
    settings: Settings,
    *,
    passes: int = PASSES,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Replay a log; repeat where a request determines an earlier one."""
    best = Rebuilder(log, settings, Hints(), progress).play()
    if len(log.requests) > LONG:
        passes = min(passes, PASSES_OF_LONG)
    for _ in range(passes - 1):
        hints = hints_after(best)
        if hints == best.hints:  # nothing else explains what a slot held
            hints = replace(hints, files=best.hints.files | best.found.files)
        if hints == best.hints:
            break
        again = Rebuilder(log, settings, hints, progress).play(goal=best.agreeing)
        if again.agreeing < best.agreeing:
            break
        best = again
    return _with_printed_prefixes(best, passes, progress)


def _with_printed_prefixes(
    replay: Replay, passes: int, progress: Callable[[int], None] | None
) -> Replay:
    """The replay with the common prefixes that lines print, where no other hint goes with them.

    A pass may agree less because of the starts of messages that it also takes from the one before.
    """
    for _ in range(passes):
        prefixes = replay.hints.prefixes | replay.found.prefixes
        if prefixes == replay.hints.prefixes:
            break
        hints = replace(replay.hints, prefixes=prefixes)
        again = Rebuilder(replay.log, replay.settings, hints, progress).play(goal=replay.agreeing)
        if again.agreeing < replay.agreeing:
            break
        replay = again
    return replay


def hints_after(replay: Replay) -> Hints:
    """What a pass over a log found, for the next one."""
    no_turn = replay.hints.no_turn | replay.found.no_turn
    one = {
        text: places - {TURN} if text in no_turn else places
        for text, places in replay.found.marks.items()
    }
    other = _marks_wanted(replay)
    return Hints(
        no_turn=no_turn,
        openings=replay.found.openings,
        marks={text: one.get(text, set()) | other.get(text, set()) for text in {*one, *other}},
        prefixes=replay.hints.prefixes | replay.found.prefixes,
        lengths=replay.hints.lengths | _lengths_wanted(replay),
        files=replay.hints.files,
    )


LEAST_MORE: Final = 2
"""Requests that another model must reproduce in addition; one may come from an unusual client."""


def with_likeliest_model(replay: Replay, progress: Callable[[int], None] | None = None) -> Replay:
    """The replay, or one of a model with states, where a log without its layers is of one.

    slot      [ matched ............ )[ other text ........ )
    prompt    [ matched ............ )[ new ... )
    full attention reuses `matched`; a state at the slot's end cannot be cut, and nothing is reused

    At the default verbosity no line says so. A replay with full attention then needs clients that
    decline the cache (`cache_prompt: false`), or differs from the log.
    """
    likely = with_states(replay)
    if likely is None:
        return replay
    first = tried_with(replay)
    if first is not None:
        other = Rebuilder(replay.log, likely, Hints(), progress).play(first=first)
        if other.as_sent <= replace(replay, requests=replay.requests[:first]).as_sent:
            return replay
    other = rebuild(replay.log, likely, progress=progress)
    return other if is_likelier(other, replay) else replay


def tried_with(replay: Replay) -> int | None:
    """The number of requests with which another model or release is tried; None for all."""
    return FIRST if len(replay.log.requests) > LONG else None


def _with_likeliest_release(
    replay: Replay, user: UserSettings, progress: Callable[[int], None] | None
) -> Replay:
    """The replay, or that of another release with such lines, which reproduces more of the log.

    Of releases that reproduce as much, the newest.
    """
    own = replay.settings
    if own.release.how != "bounded" or replay.agreeing == len(replay.comparable):
        return replay
    first = tried_with(replay)
    best = replace(replay, requests=replay.requests[:first])
    for name in alike(str(own.release.value)):
        settings = _settings(replay.log, user, name)
        settings.release, settings.preset = Setting(name, "bounded"), own.preset
        settings.sizes = own.sizes
        other = Rebuilder(replay.log, settings, Hints(), progress)
        best = max(
            best,
            other.play(goal=best.agreeing + 1, first=first),
            key=lambda played: played.agreeing,
        )
    if best.settings is own:
        return replay
    best = rebuild(replay.log, best.settings, progress=progress)
    more = 1 if best.agreeing == len(best.comparable) else LEAST_MORE
    if best.agreeing < replay.agreeing + more:
        return replay
    best.settings.inferred = (
        f"{own.inferred} The log does not name its build. As {own.release.value} the replay "
        f"reproduces {replay.agreeing} of {len(replay.comparable)} requests, as "
        f"{best.settings.release.value} {best.agreeing}. Name the release with `--profile`."
    ).lstrip()
    return best


def _settings(server: ServerLog, user: UserSettings, profile: str | None) -> Settings:
    return settings_of(
        server, profile=profile, model=user.model, window=user.window, given=user.options
    )


def with_states(replay: Replay) -> Settings | None:
    """Settings of a model with recurrent states, unless the model is known or full attention
    reproduces the log.
    """
    settings = replay.settings
    if settings.preset != UNKNOWN_MODEL or replay.as_sent + LEAST_MORE > len(replay.comparable):
        return None
    likely = replace(settings, preset=Setting(LIMITED[0], "bounded"))
    likely.sizes = sizes_of(replay.log, likely.spec)
    return likely


def is_likelier(other: Replay, replay: Replay) -> bool:
    """True if the replay with recurrent states reproduces more; its settings state the reason."""
    if other.as_sent < replay.as_sent + LEAST_MORE:
        return False
    other.settings.inferred = (
        f"The log does not name the model's layers. With full attention the replay reproduces "
        f"{replay.as_sent} of {len(replay.comparable)} requests, with recurrent states "
        f"{other.as_sent}, where no client sends `cache_prompt: false`. Name the model with "
        f"`--model`."
    )
    return True


def as_printed(request: Observed) -> Rebuilt:
    """A request with the numbers of its own lines only."""
    lengths = lengths_of(request)
    common, whole = request.shared, lengths.prompt.value
    if common is None:
        common = common_with_holder(request, whole, 0, verbose=True)
    if whole is not None and (common.value or 0) > whole:
        common = UNKNOWN  # lines are missing, and the counts are of two requests
    if request.leaves_last and lengths.processed.value is not None:
        lengths = replace(lengths, processed=computed(lengths.processed.value))
    holder = f"slot {request.slot}" if request.slot >= 0 else "the instance"
    holder = "the cache" if request.takes_snapshots or request.restores_blocks else holder
    holder = holder if common.value else "nothing"
    return Rebuilt(request, lengths, common=common, holder=holder, is_played=False)


def _states_wanted(replay: Replay) -> Iterator[tuple[Rebuilt, int, int]]:
    """States from which requests resumed and which the replay lacks, by text and place."""
    for request in replay.requests:
        cached, common = request.lengths.cached.value, request.common
        if request.agrees or request.submitted is None or not cached or common.value is None:
            continue
        if request.observed.is_named and not request.is_verbose:
            continue  # its slot may have been loaded with another conversation meanwhile
        # A window's state gives one token less than it holds.
        held = cached + bool(replay.settings.spec.window_layers)
        if held < len(request.submitted.prompt) and cached < common.value:
            yield (request, *place_of(request.submitted.prompt, held))
        elif cached == common.value:  # the slot's tokens continued; the prompt did not
            text, last = place_of(request.submitted.prompt, cached - 1)
            yield request, text, last + 1


def _marks_wanted(replay: Replay) -> dict[int, set[int]]:
    """Starts of user messages, where a state was restored that nothing else explains."""
    wanted: dict[int, set[int]] = {}
    for _, text, place in _states_wanted(replay):
        wanted.setdefault(text, set()).add(place)
    return wanted


def _lengths_wanted(replay: Replay) -> dict[int, int]:
    """Prompt lengths of cancelled requests, from their last checkpoint, as no line has them."""
    wanted: dict[int, int] = {}
    for rebuilt, text, _ in _states_wanted(replay):
        number, use = owner_of(text)
        if use != FRESH or not 0 <= number < rebuilt.observed.number:
            continue
        owner, cached = replay.requests[number], rebuilt.lengths.cached.value or 0
        held = owner.observed.held_after
        if owner.observed.cancelled and held is not None and cached + BEFORE_END <= held:
            wanted[number] = cached + BEFORE_END
    return wanted


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
        settings = _settings(self.log, user, user.profile)
        if not settings.is_played:
            ended = [as_printed(request) for request in self.log.requests if request.ended]
            return [
                self._entry(rebuilt)
                for rebuilt in ended
                if rebuilt.observed.number not in self.reported
            ]
        if self.inferred is not None and settings.preset == UNKNOWN_MODEL:
            settings = replace(
                settings,
                preset=self.inferred.preset,
                sizes=self.inferred.sizes,
                inferred=self.inferred.inferred,
            )
        if self.rebuilder is None or _is_another(self.settings, settings):
            self.settings, self.states = settings, States()
            self.rebuilder = Rebuilder(self.log, settings, Hints())
        numbers = self.rebuilder.advance()
        likely = self._with_states(self.rebuilder.replay)
        if likely is not None:
            self.rebuilder, numbers = likely
        found: list[dict[str, Any]] = []
        for rebuilt in (self.rebuilder.replay.requests[number] for number in numbers):
            stale = self.states.stale(rebuilt)
            if rebuilt.observed.number not in self.reported:
                found.append(self._entry(rebuilt, stale))
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
        return entry | {"stale": each.observed.stale or each.stale or stale}


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
    """Incremental reader of a log: each request is reported at its end, and replayed once.

        new bytes -> whole lines -> reader -> moments -> the same server -> finished requests

    A later request's evidence on an earlier one is too late here: a request is run once. Where a
    later line shows that the server was taken for another one (a flag, a level that prints more),
    the log is run again from its start, once. So it is where recurrent states reproduce more
    requests than full attention, of a model that the log does not name.
    """

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
        servers = [log for log in self._reader.servers if not log.is_empty]
        for number, server in enumerate(servers):
            if number == len(self._runs):
                self._runs.append(_ServerRun(server, number, first))
            run = self._runs[number]
            if any(request.ended for request in server.requests[len(run.reported) :]):
                found += run.news(self._user)
            first += len(server.requests)
        return found
