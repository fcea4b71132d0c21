"""Flags that a log does not print, told by the requests that only they explain.

unasked, October's servers print neither ubatch, checkpoints, window nor the prompt cache's limit

the defaults                    10 of 12 requests are reproduced
each other value alone          12 of 12 with --ubatch-size 64
the best one, and once more     until all are, or nothing helps
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.why.infer.settings import (
    LIMITED,
    WINDOWED,
    Setting,
    Settings,
    alike,
    is_usual_ubatch,
    kind_of,
    matters,
    setting,
)
from cachesim.why.infer.sizes import sizes_of
from cachesim.why.rebuild.from_log import Rebuilder
from cachesim.why.replay.replayed import Hints, Rebuilt, Replay

SILENT: Final[Mapping[str, Sequence[Any]]] = {
    "ubatch_size": (),
    "ctx_checkpoints": (0, 1, 2, 3, 4, 8, 16),
    "cache_idle_slots": (False,),
    "cache_ram": (0, 1, 2),
    "checkpoint_min_step": (0, 16, 64, 256),
    "cache_reuse": (4, 16),
    "kv_unified": (False, True),
}
"""Flags that no line names at the default level, and the values that are tried."""

LIMIT: Final = "ctx_checkpoints"

OPEN: Final = frozenset({"assumed", "bounded"})
"""Settings that no line proves."""

WINDOWS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

BEFORE_END: Final = 4
"""Tokens between the last checkpoint of a prompt and its end."""

ROUNDS: Final = 3

MOST_PLAYED: Final = 600_000
"""Tokens of requests that are replayed for it, of all servers of a log: some seconds."""

TURN: Final = 200
"""Tokens of a prompt that are replayed in the time of one turn of the loop."""

FIRST: Final = 60
"""Requests of a log with which other flags are tried."""

ENOUGH: Final = 5
"""Requests of a log that may tell: of fewer, some flag explains any."""

LEAST_MORE: Final = 2
"""Requests that other flags must reproduce in addition, unless they reproduce all."""


def with_likeliest_flags(
    replay: Replay, hints: Hints, rebuild: Callable[[Settings], Replay], most: int = MOST_PLAYED
) -> tuple[Replay, int]:
    """The replay, or that of a server with other flags, which reproduces more of the log; and the
    number of tokens that were replayed for it, not many more than `most`.

    `hints`: what the replay found out about requests; `rebuild` replays the log in several passes.
    """
    if len(replay.comparable) < ENOUGH or most <= 0:
        return replay, 0
    first = FIRST if len(replay.requests) > FIRST else None
    best = replace(replay, requests=replay.requests[:first])
    played = 0
    for _ in range(ROUNDS):
        own = best
        for settings in _others(own):
            if best.as_sent == len(best.comparable) or played > most:
                break
            other = _played(replay, hints, settings, best.as_sent + 1, first)
            played += sum(map(work_of, other.requests))
            best = max(best, other, key=lambda replay: replay.as_sent)
        if best is own:
            break
    if best.settings is replay.settings:
        return replay, played
    found = rebuild(best.settings)
    more = 1 if found.as_sent == len(found.comparable) else LEAST_MORE
    if found.as_sent < replay.as_sent + more:
        return replay, played
    found.settings.inferred = _why(found, replay)
    return found, played


def work_of(request: Rebuilt) -> int:
    """The request's tokens, as its replay takes time: a client that leaves is waited for."""
    sent, held = request.submitted, request.observed.held_after
    if sent is None:
        return 0
    turns = max(0, (held or 0) - len(sent.prompt)) if request.observed.cancelled else 0
    return len(sent.prompt) + len(sent.reply) + TURN * turns


def _played(
    replay: Replay, hints: Hints, settings: Settings, goal: int, first: int | None
) -> Replay:
    """A pass over the log under other settings; an empty one if no server starts with them."""
    try:
        return Rebuilder(replay.log, settings, hints).play(goal=goal, first=first)
    except (OptionError, UpstreamAbort):
        return replace(replay, settings=settings, requests=[])


def _others(replay: Replay) -> Iterator[Settings]:
    """The settings with one value changed that the log leaves open; likely ones come first."""
    own = replay.settings
    release = str(own.release.value)
    for name, values in SILENT.items():
        known = own.options.get(name)
        if known is not None and known.how not in OPEN:
            continue
        if not matters(FAMILY, release, own.spec, name):
            continue
        now = known.value if known else FAMILY.default(FAMILY.option(name), release)
        for value in values or _ubatches(replay):
            if value != now:
                yield replace(own, options=own.options | {name: Setting(value, "bounded")})
    kinds = [own.preset]
    if kind_of(own.model_file.removesuffix(".gguf")) is None and own.preset.how in OPEN:
        kinds += [Setting(kind, "bounded") for kind in LIMITED if kind != own.preset.value]
    for kind in kinds:
        windows = [own.window]
        if kind.value in WINDOWED and own.window.how in OPEN:
            windows += [Setting(window, "bounded") for window in WINDOWS]
        for window in windows:
            other = replace(own, preset=kind, window=window)
            other.sizes = sizes_of(replay.log, other.spec)
            yield other
    if own.release.how == "bounded":  # releases differ in which checkpoint they drop
        drops = any(request.observed.dropped for request in replay.requests)
        for name in alike(release):
            other = replace(own, release=Setting(name, "bounded"))
            yield other
            for value in SILENT[LIMIT] if drops and LIMIT not in own.options else ():
                yield replace(other, options=own.options | {LIMIT: Setting(value, "bounded")})


def _ubatches(replay: Replay) -> list[int]:
    """Sizes of which a request's reuse tells.

    A state is saved at a prompt's end less 4 and a ubatch; of a window it gives one token less.
    """
    found: dict[int, None] = {}
    for number, request in enumerate(replay.requests):
        cached = request.lengths.cached.value
        if request.agrees or not cached:
            continue
        for earlier in replay.requests[:number]:
            for place in (cached, cached + 1):
                size = (earlier.lengths.prompt.value or 0) - BEFORE_END - place
                if is_usual_ubatch(size):
                    found[size] = None
    return [*found][:6]


def _why(found: Replay, replay: Replay) -> str:
    """The sentence on what was inferred."""
    now, before = found.settings, replay.settings
    release = str(now.release.value)
    flags = [
        setting(FAMILY, name, option.value, release)
        for name, option in now.options.items()
        if before.options.get(name) != option
    ]
    if now.release != before.release:
        flags.insert(0, str(now.release.value))
    if now.window != before.window:
        flags.append(f"a window of {now.window.value}")
    if now.preset != before.preset:
        flags.append(f"the memory of a model as {now.preset.value}")
    return (
        f"{before.inferred} The log does not print all flags. With those assumed the replay "
        f"reproduces {replay.as_sent} of {len(replay.comparable)} requests, with "
        f"{' and '.join(flags)} {found.as_sent}. Name them with `--set`, `--window`, `--model` or "
        f"`--profile`."
    ).lstrip()
