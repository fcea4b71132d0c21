"""A server under other settings: prefilled tokens against memory.

own settings -> each alone, larger and smaller -> the best ones together -> the Pareto front
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import InputError
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.play.session import Session
from cachesim.scenario.checks import full_profile, spec_of
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind
from cachesim.why.explain.live import Live
from cachesim.why.explain.whole import UserSettings
from cachesim.why.infer.settings import flag_of, matters, setting
from cachesim.why.infer.sizes import ASSUMED, GIVEN, context_bytes, how_known
from cachesim.why.read.dump import Recorded
from cachesim.why.rebuild.from_recording import Rerun, known, options_in, spec_for, started
from cachesim.why.rebuild.prompts import Prompt
from cachesim.why.replay.other import Outcome, Replayable, left_out, workload_of
from cachesim.why.replay.replayed import Replay

CELLS: Final = 256
"""Granularity of a context's size in tokens."""


@dataclass(frozen=True, slots=True)
class ServerRun:
    """Requests of a server from start to end, and its settings."""

    subject: Replayable
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Input of a sweep: server runs, source of byte sizes, assumptions."""

    runs: tuple[ServerRun, ...]  # the one with the most requests first
    sizes: str
    assumed: tuple[str, ...] = ()
    left_out: str = ""  # a sentence on requests whose tokens are not summed

    @property
    def requests(self) -> int:
        """Total number of requests."""
        return sum(run.subject.requests for run in self.runs)


@dataclass(frozen=True, slots=True)
class ScenarioReplay(Replayable):
    """A scenario with all its steps."""

    scenario: Scenario

    @property
    def requests(self) -> int:
        return sum(step.do == "complete" for step in self.scenario.step)

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Replay in exact arithmetic, so that replies repeated in later prompts are constant."""
        engine = replace(self.scenario.engine, options=dict(options))
        changed = replace(self.scenario, engine=engine)
        profile = Profile.parse(self.profile)
        session = Session(changed, profile, arithmetic="ring", reads_state=False)
        server = of_kind(LlamaCpp, session.engine)  # the profile says so
        processed = failed = peak = 0
        for record in session.run():
            peak = max(peak, server.held_bytes())
            if record.step.do == "complete":
                answer = record.reply
                done = None if answer is None else answer.processed
                processed += 0 if done is None else int(done)
                failed += done is None
        return Outcome(processed, peak, failed)


@dataclass(frozen=True, slots=True)
class RequestReplay(Replayable):
    """Recorded requests with the slot actions between them."""

    prompts: tuple[Prompt, ...]

    @property
    def requests(self) -> int:
        return len(self.prompts)

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Replay in the order of arrivals and ends."""
        rerun = Rerun("", started(self.profile, self.spec, options), weighs=True)
        rerun.add_all(self.prompts)
        answers = [replayed for replayed in rerun.played.values() if replayed.cached is not None]
        return Outcome(
            processed=sum(answer.processed or 0 for answer in answers),
            peak_bytes=rerun.peak_bytes,
            failed=len(self.prompts) - len(answers),
        )


def of_log(replays: Sequence[Replay], sizes: Sizes | None) -> Tuned:
    """A log's rebuilt workloads, one for each start of the server."""
    longest_first = sorted(replays, key=lambda replay: -len(replay.requests))
    longest = longest_first[0]
    known_by = how_known(longest.log, longest.settings.spec)
    if sizes is not None:
        known_by = GIVEN
        for replay in replays:
            replay.settings.sizes = sizes
    runs = (ServerRun(workload_of(replay), replay.settings.values) for replay in longest_first)
    return Tuned(tuple(runs), known_by, tuple(uncompared(replays)), left_out(replays))


def most_agree(replays: Sequence[Replay]) -> bool:
    """True if the replays agree with the log in at least half of the requests that it counts."""
    comparable = sum(len(replay.comparable) for replay in replays)
    return 0 < comparable <= 2 * sum(replay.agreeing for replay in replays)


def uncompared(replays: Sequence[Replay]) -> Iterator[str]:
    """The assumptions: that a log's requests are as replayed, and the common prefixes that a server
    without a prompt cache does not log.
    """
    if not most_agree(replays):
        yield "requests as they were replayed, whose reuse is mostly not the log's"
    for replay in replays:
        options = replay.settings.values
        if options.get("cache_ram") == 0 and len(replay.requests) > options.get("parallel", 1):
            yield (
                "no prefix shared with a conversation that left its slot: without a prompt cache "
                "the log does not compare them, so --parallel and --cache-ram may save more"
            )
            return


def of_dump(requests: Sequence[Recorded], user: UserSettings, sizes: Sizes | None) -> Tuned:
    """Recorded requests in the order of arrivals and ends."""
    live = Live(user)
    live.add_all(requests)
    if live.profile is None:
        msg = "the requests do not name their server; name its release, as in --profile b9538"
        raise InputError(msg)
    named = Profile.parse(live.profile)
    family = FAMILIES[named.engine]
    if not family.swept:
        swept = " and ".join(each.name for each in FAMILIES.values() if each.swept)
        raise InputError(
            f"these requests went to {named.engine}, and tune has settings to try for {swept}; "
            "cachesim why --what-if shows what other servers would have reused"
        )
    prompts = [prompt for prompt in live.prompts if prompt.recorded.was_read and len(prompt.rope)]
    if not prompts or live.rerun is None:
        raise InputError("no request was answered: there is nothing to replay")
    options = known(live.profile, options_in(requests[0])) | dict(user.options)
    assumed = [] if live.profile_how != "assumed" else [f"release {named.release}"]
    if any(
        prompt.recorded.prompt_tokens is None and not prompt.recorded.runs for prompt in prompts
    ):
        assumed.append("lengths of prompts, from their characters")
    if 2 * live.rerun.agreeing < sum(prompt.recorded.cached is not None for prompt in prompts):
        assumed.append("requests as they were replayed, whose reuse is mostly not the server's")
    assumed += [] if user.model else [f"a model like the preset {live.rerun.model}"]
    if "ctx_size" not in options and any(option.name == "ctx_size" for option in family.declared):
        longest = max(len(prompt.rope) + len(prompt.reply) for prompt in prompts)
        options["ctx_size"] = -(-(longest + 1) // CELLS) * CELLS * int(options.get("parallel", 1))
        assumed.append(f"ctx_size {options['ctx_size']}")
    spec = spec_for(live.profile, live.rerun.model, window=user.window or None, sizes=sizes)
    subject = RequestReplay(live.profile, spec, tuple(prompts))
    return Tuned((ServerRun(subject, options),), _given(spec), tuple(assumed))


def of_scenario(scenario: Scenario, user: UserSettings, sizes: Sizes | None) -> Tuned:
    """A scenario on the given profile, or on its first."""
    if scenario.engine.name != FAMILY.name:
        msg = f"{scenario.name}: tune sweeps the settings of llama.cpp, not {scenario.engine.name}"
        raise InputError(msg)
    if sizes is not None:
        model = replace(scenario.model, sizes={n: getattr(sizes, n) for n in sizes.__slots__})
        scenario = replace(scenario, model=model)
    played = full_profile(FAMILY.name, user.profile or scenario.engine.profiles[0])
    FAMILY.rules(played)  # raises where there is none
    options = {**scenario.engine.options, **user.options}
    options.setdefault("ctx_size", FAMILY.default(FAMILY.option("ctx_size"), played.release))
    subject = ScenarioReplay(str(played), spec_of(scenario.model), scenario)
    return Tuned((ServerRun(subject, options),), _given(subject.spec))


def _given(spec: ModelSpec) -> str:
    return ASSUMED if spec.sizes is None else GIVEN


NEARLY: Final = 1.01
"""Relative difference in tokens within which the setting with less memory is preferred."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A tried server: changed settings and results."""

    changes: Mapping[str, Any]
    flags: tuple[str, ...]  # the changes, as the release's command line has them
    processed: int
    peak_bytes: int
    context_bytes: int
    failed: int
    is_alone: bool = True  # one setting, with what has to change with it

    @property
    def held(self) -> int:
        """Total bytes: prompt-cache entries, checkpoints and the context."""
        return self.peak_bytes + self.context_bytes

    def as_dict(self) -> dict[str, Any]:
        """The trial as JSON."""
        found = asdict(self)
        del found["is_alone"]
        return found


@dataclass(frozen=True, slots=True)
class Trial:
    """The task of a process: every run of a server under changed settings."""

    runs: tuple[ServerRun, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_alone: bool = True


def run_trial(trial: Trial) -> TrialResult | None:
    """Replay under some settings; None if the server refuses them."""
    outcomes, context, subject = [], 0, trial.runs[0].subject
    for run in trial.runs:
        options = {**run.options, **trial.changes}
        try:
            outcomes.append(run.subject.outcome(options))
        except InputError:
            return None
        context = max(context, context_bytes(run.subject.spec, options))
    return TrialResult(
        changes=trial.changes,
        flags=tuple(
            setting(FAMILIES[subject.engine], name, value, subject.release)
            for name, value in trial.changes.items()
        ),
        processed=sum(outcome.processed for outcome in outcomes),
        peak_bytes=max(outcome.peak_bytes for outcome in outcomes),
        context_bytes=context,
        failed=sum(outcome.failed for outcome in outcomes),
        is_alone=trial.is_alone,
    )


def alone(runs: Sequence[ServerRun]) -> list[Trial]:
    """The user's own settings, and each other value by itself."""
    subject, options = runs[0].subject, runs[0].options
    trials = [Trial(tuple(runs))]
    family = FAMILIES[subject.engine]
    for name, values in family.swept.items():
        if not matters(family, subject.release, subject.spec, name):
            continue
        own = options.get(name, family.default(family.option(name), subject.release))
        trials += [
            Trial(tuple(runs), _change(options, name, value)) for value in values if value != own
        ]
    multiplied = {name: options.get(name, 0) * n for name, n in family.swept_factors.items()}
    trials += [Trial(tuple(runs), {name: value}) for name, value in multiplied.items() if value]
    return trials


def _change(options: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """A changed setting; slots with separate cells keep their context size."""
    changes = {name: value}
    context, slots = options.get("ctx_size", 0), options.get("parallel", 1)
    if name == "parallel" and isinstance(value, int) and not options.get("kv_unified") and context:
        changes["ctx_size"] = context // max(1, slots) * value
    return changes


def together(first: Sequence[TrialResult], runs: Sequence[ServerRun]) -> list[Trial]:
    """Combinations of the settings that helped: pairs, and all together."""
    own = first[0]
    best: dict[str, TrialResult] = {}
    for result in first[1:]:
        name = next(iter(result.changes))
        better = result.processed < own.processed and result.failed <= own.failed
        if better and (name not in best or result.processed < best[name].processed):
            best[name] = result
    changes = [dict(result.changes) for result in best.values()]
    pairs = [one | other for i, one in enumerate(changes) for other in changes[i + 1 :]]
    whole: dict[str, Any] = {}
    for change in changes:
        whole |= change
    if len(changes) > 2:
        pairs.append(whole)
    return [Trial(tuple(runs), pair, is_alone=False) for pair in pairs]


def front(found: Iterable[TrialResult]) -> list[TrialResult]:
    """The Pareto front, fewest tokens first."""
    kept: list[TrialResult] = []
    for result in sorted(found, key=lambda one: (one.failed, one.processed, one.held)):
        if not kept or result.held < kept[-1].held:
            kept.append(result)
    return kept


def recommended(found: Sequence[TrialResult]) -> TrialResult:
    """The setting with the least memory among those with nearly the fewest tokens."""
    best = min(found, key=lambda result: (result.failed, result.processed))
    good = [
        result
        for result in found
        if result.failed == best.failed and result.processed <= best.processed * NEARLY
    ]
    return min(good, key=lambda result: (result.held, len(result.changes)))


def command_line(subject: Replayable, options: Mapping[str, Any]) -> str:
    """Command line of a server with these settings."""
    family = FAMILIES[subject.engine]
    flags = (flag_of(family, name, value, subject.release) for name, value in options.items())
    return " ".join([family.program, *filter(None, flags)])


def summary(found: Sequence[TrialResult], run: ServerRun) -> dict[str, Any]:
    """A sweep as JSON, with the command line of the best settings."""
    best = recommended(found)
    return {
        "own": found[0].as_dict(),
        "recommended": best.as_dict(),
        "command": command_line(run.subject, {**run.options, **best.changes}),
        "front": [result.as_dict() for result in front(found)],
        "tried": [result.as_dict() for result in found],
    }
