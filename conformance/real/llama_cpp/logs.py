"""Logs made by the real servers, read, rebuilt and replayed: how often the replay is right.

real server of one release   ->   its log, its answers
log -> workload -> replay    ->   the same `cached`?
real server of another       ->   its answers to the same requests
workload on its profile      ->   the same `cached`, predicted?
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any, Final, TypeAlias

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.prove.llama_cpp.fitting import Abilities, Release
from cachesim.prove.llama_cpp.flags import draw_preset
from cachesim.prove.llama_cpp.server import RealServer
from cachesim.prove.llama_cpp.workload import Outcome, release_of
from cachesim.scenario.format import Scenario
from cachesim.why.advise.workloads import cached_over, workloads_of
from cachesim.why.explain.whole import rebuild
from cachesim.why.infer.settings import settings_of
from cachesim.why.read.lines import BY_NAME, lines_of, prints_checkpoints
from cachesim.why.read.reading import Reader
from cachesim.why.replay.other import default_step, options_for, play_workload
from cachesim.why.replay.replayed import Replay
from conformance.real.llama_cpp.compare import SideBySide
from conformance.real.llama_cpp.workloads import Setting, grow

DEFAULT, MORE = 3, 4
"""`-lv`: the default verbosity, and October's with lines of caches."""

Column: TypeAlias = tuple[Release, int, Release]
"""Release of a log, its verbosity, and the release that is predicted from it."""

COLUMNS: Final[Sequence[Column]] = (
    ("b9093", DEFAULT, "b9538"),
    ("b9538", DEFAULT, "b11549"),
    ("b11549", MORE, "b9538"),
    ("b11549", DEFAULT, "b9538"),
)

HEADS: Final = (
    "log", "requests", "proven", "reused as logged", "other release", "predicted",
    "predicted of all", "settled", "settled and right", "within bounds",
)  # fmt: skip

SHARES: Final = (
    ("sure", "requests"),
    ("right", "comparable"),
    ("predicted", "predictable"),
    ("right of all", "answered"),
    ("settled", "predictable"),
    ("rightly settled", "settled"),
    ("within", "predictable"),
)
"""Counts shown as shares of others, in the order of the columns."""

SECONDS_TO_WRITE: Final = 0.05


@dataclass(slots=True)
class Agreement:
    """Counts of replays of logs of one kind that were right."""

    release: Release
    verbosity: int
    other: Release
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        """The table's row: percentages of the comparable requests."""
        level = "default" if self.verbosity == DEFAULT else f"-lv {self.verbosity}"
        parts = [
            f"{100 * self.counts[part] / max(1, self.counts[whole]):.1f} %"
            for part, whole in SHARES
        ]
        head = f"{self.release}, {level}", f"{self.counts['requests']:,}"
        return (*head, *parts[:2], self.other, *parts[2:])


def draw_setting(rng: Random, name: str, *, release: Release, other: Release) -> Setting:
    """A server as people start it: 1 to 4 slots, now and then a small prompt cache."""
    preset, window = draw_preset(
        rng, abilities=Abilities(release), presets=Abilities(other).presets
    )
    slots = rng.choices((1, 2, 3, 4), (60, 17, 13, 10))[0]
    options: dict[str, Any] = {
        "parallel": slots,
        "ctx_size": rng.choice((1024, 2048, 4096, 8192)) * slots,
    }
    if slots > 1 and rng.random() < 0.4:
        options |= {"kv_unified": True, "ctx_size": options["ctx_size"] // slots * 2}
    if rng.random() < 0.3:
        options["cache_ram"] = rng.choice((0, 1, 1, 2))
    if preset == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
    return Setting(
        name=name,
        release=release,
        preset=preset,
        window=window,
        options=options,
        rng=rng,
        logged=True,
    )


class LogMaker(AbstractContextManager["LogMaker"]):
    """The real servers of two releases that run workloads, and the log of one."""

    def __init__(self, release: Release, verbosity: int, other: Release) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="cachesim-logs-")))
        self._file = folder / "server.log"
        self.agreement = Agreement(release, verbosity, other)
        self._models = self._stack.enter_context(SideBySide(release))
        self._real = self._stack.enter_context(
            RealServer(release, log=self._file, verbosity=verbosity)
        )
        self._other = self._stack.enter_context(RealServer(other))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, seed: int, number: int) -> tuple[bytes, Scenario, tuple[Outcome, ...]]:
        """Run a server's life: its log, its requests, its answers."""
        agreement = self.agreement
        name = f"{agreement.release}-{agreement.verbosity}-{seed}-{number}"
        rng = Random(f"log {name}")
        setting = draw_setting(rng, name, release=agreement.release, other=agreement.other)
        before = self._file.stat().st_size if self._file.exists() else 0
        model = self._models.model(setting.preset, setting.window)
        with self._real.started(setting.options, model) as server:
            workload, outcomes = grow(setting, server)
            sleep(SECONDS_TO_WRITE)
        with self._file.open("rb") as file:
            file.seek(before)
            return file.read(), workload, outcomes

    def count(self, seed: int, number: int) -> None:
        """Run one workload, replay its log, predict the other release; count what agrees."""
        log, workload, outcomes = self.play(seed, number)
        replay = replay_of(log, workload, has_user_flags=self.agreement.verbosity == DEFAULT)
        counts = self.agreement.counts
        counts["requests"] += len(replay.requests)
        for request in replay.requests:
            counts["comparable"] += request.is_comparable
            counts["right"] += request.is_comparable and request.agrees
            sure = request.common.is_sure and request.lengths.prompt.is_sure
            counts["sure"] += sure
            if request.is_comparable and not request.agrees:
                self.agreement.wrong.append(f"{workload.name} request {request.observed.number}")
        self._predict(replay, workload, outcomes)

    def _predict(self, replay: Replay, workload: Scenario, outcomes: Sequence[Outcome]) -> None:
        if any(step.leaves for step in workload.step):
            return
        other = self.agreement.other
        model = self._models.model(str(workload.model.preset), workload.model.window or 0)
        real = self._other.play(workload, model)
        values = {
            name: value
            for name, value in replay.settings.values.items()
            if name not in default_step(replay.settings)
        }
        options = options_for(other, values)
        predicted = [
            play_workload(each, f"llama.cpp@{other}", options).replayed
            for each in workloads_of(replay)
        ]
        bounds, counts = cached_over(predicted), self.agreement.counts
        otherwise = False  # from the first prompt on that the other release renders otherwise
        for number, answer in enumerate(real):
            if number >= len(outcomes) or answer.cached is None:
                continue
            said, settled = predicted[0].get(number), bounds.get(number)
            right = said is not None and said.cached == answer.cached
            counts["answered"] += 1
            counts["right of all"] += right
            is_chat = bool(workload.step[number].messages)
            otherwise |= is_chat and tokens_of(answer) != tokens_of(outcomes[number])
            if otherwise:
                continue
            counts["predictable"] += 1
            counts["predicted"] += right
            if settled is not None:
                is_sure = settled.low == settled.high
                counts["settled"] += is_sure
                counts["rightly settled"] += is_sure and right
                counts["within"] += settled.low <= answer.cached <= settled.high


def replay_of(log: bytes, workload: Scenario, *, has_user_flags: bool) -> Replay:
    """Read a log and replay it.

    With `has_user_flags`, for levels that print no flags, it gets a user's settings: the command
    line, the model, and chats as the client's requests.
    """
    servers = Reader().take(lines_of(BytesIO(log))).servers
    server = max(servers, key=lambda each: len(each.requests))
    if has_user_flags and any(step.messages for step in workload.step):
        server.holds_chats()
    given: Mapping[str, Any] = {}
    model: str | None = None
    window: int | None = None
    if has_user_flags and not prints_checkpoints(server.styles):
        given = {k: v for k, v in workload.engine.options.items() if k != "spec_type"}
    if has_user_flags:
        model, window = workload.model.preset, workload.model.window
    release = release_of(workload)
    styled = release in BY_NAME  # the wheels print no build; other releases look like one
    profile = None if styled else f"{FAMILY.name}@{release}"
    settings = settings_of(server, profile=profile, model=model, window=window, given=given)
    return rebuild(server, settings)


def tokens_of(outcome: Outcome) -> int | None:
    """The length of the prompt that a release made of a request."""
    if outcome.cached is None or outcome.processed is None:
        return None
    return outcome.cached + outcome.processed


def columns_of(release: Release) -> tuple[Column, ...]:
    """A release's logs at both verbosities, and the release predicted from them."""
    newest = FAMILY.real()[-1]
    other = newest if release != newest else "b9538"
    return (release, DEFAULT, other), (release, MORE, other)


def agreements(columns: Sequence[Column], *, seed: int, requests: int) -> Iterator[Agreement]:
    """The table's rows, each as soon as it is done."""
    for release, verbosity, other in columns:
        with LogMaker(release, verbosity, other) as maker:
            number = 0
            while maker.agreement.counts["requests"] < requests:
                maker.count(seed, number)
                number += 1
            yield maker.agreement
