"""A server under other settings: prefilled tokens against memory.

own settings -> each alone, larger and smaller -> the best ones together -> between the best values
             -> the Pareto front, and one that is recommended: if its saving is proven
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.play.session import Session
from cachesim.scenario.checks import full_profile, spec_of
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind
from cachesim.why.advise.orders import Order, other_orders
from cachesim.why.advise.workloads import (
    compares,
    like_lost,
    meets_more,
    more_of,
    uncompared,
    workloads_of,
)
from cachesim.why.explain.live import Live
from cachesim.why.explain.whole import UserSettings
from cachesim.why.explain.wrong import wrong_with
from cachesim.why.infer.settings import flag_of, matters, setting
from cachesim.why.infer.sizes import ASSUMED, GIVEN, context_bytes, how_known
from cachesim.why.read.dump import Recorded
from cachesim.why.rebuild.from_recording import (
    Rerun,
    order_of,
    spec_for,
    started,
)
from cachesim.why.rebuild.prompts import Prompt
from cachesim.why.replay.judged import wrong_answers
from cachesim.why.replay.other import Outcome, Replayable, Workload
from cachesim.why.replay.player import FAILED, replayed
from cachesim.why.replay.proof import (
    MATTERS,
    Counts,
    Proof,
    counts_of,
    left_out,
    proof_of,
)
from cachesim.why.replay.replayed import Replay

CELLS: Final = 256
"""Granularity of a context's size in tokens."""


@dataclass(frozen=True, slots=True)
class ServerRun:
    """Requests of a server from start to end, its settings, and what is proven of its replay.

    `others` are other requests for which the server answers as it did; a promise has to stand more
    of what the log (`replay`) leaves open.
    """

    subject: Replayable
    options: Mapping[str, Any]
    proof: Proof
    others: tuple[Replayable, ...] = ()
    replay: Replay | None = None

    @property
    def uncompared(self) -> list[Counts]:
        """Requests that overlapped others, without a line that says which begin alike."""
        if self.replay is None:
            return []
        numbers = uncompared(self.replay)
        return [each for each in (*self.proof.proven, *self.proof.out) if each.number in numbers]

    def all_that_fits(self) -> list[Replayable]:
        """The likeliest requests, and all others that fit the log."""
        found = [self.subject, *self.others]
        if isinstance(self.subject, RequestReplay):
            found += self.subject.in_other_orders(int(self.options.get("parallel", 1)))
        elif self.replay is not None:
            found += more_of(self.replay, of_kind(Workload, self.subject), self.proof)
        return found


def server_run(
    subject: Replayable,
    options: Mapping[str, Any],
    counts: Sequence[Counts] | None,
    others: Sequence[Replayable] = (),
    replay: Replay | None = None,
) -> ServerRun:
    """A run with its proof: the counts that its replay meets; all of a scenario's own (None)."""
    played = subject.outcome(options).played
    if counts is None:
        counts = [Counts(n, record.cached, record.processed, None) for n, record in played.items()]
    return ServerRun(subject, options, proof_of(counts, played), tuple(others), replay)


@dataclass(frozen=True, slots=True)
class Tuned:
    """Input of a sweep: server runs, source of byte sizes, assumptions."""

    runs: tuple[ServerRun, ...]
    sizes: str
    assumed: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()  # settings whose effect the log does not show

    @property
    def requests(self) -> int:
        """Total number of requests."""
        return sum(run.subject.requests for run in self.runs)

    @property
    def unproven(self) -> str:
        """Why no saving could be proven, whatever is tried; empty where one could."""
        if not self.proven:
            return NOTHING_PROVEN
        hidden = [counts for run in self.runs for counts in run.uncompared]
        tokens = sum(each.most if each.prefilled is None else each.prefilled for each in hidden)
        logged = sum(sum(run.proof.logged.values()) for run in self.runs)
        if tokens <= MATTERS * logged:
            return ""
        return UNCOMPARED_REQUESTS.format(counted(len(hidden), "request"))

    @property
    def left_out(self) -> str:
        """A sentence on requests whose tokens are not summed."""
        return left_out([run.proof for run in self.runs])

    @property
    def proven(self) -> int:
        """Number of requests whose replay is the log."""
        return sum(len(run.proof.logged) for run in self.runs)


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
        played, peak = {}, 0
        for number, record in enumerate(session.run()):
            peak = max(peak, server.held_bytes())
            if record.step.do == "complete":
                played[number] = FAILED if record.reply is None else replayed(record.reply, ())
        failed = sum(answer.processed is None for answer in played.values())
        return Outcome(played, peak, failed)


@dataclass(frozen=True, slots=True)
class RequestReplay(Replayable):
    """Recorded requests with the slot actions between them."""

    prompts: tuple[Prompt, ...]
    order: Order | None = None  # as recorded

    @property
    def requests(self) -> int:
        return len(self.prompts)

    def in_other_orders(self, slots: int) -> list["RequestReplay"]:
        """The same requests in other orders, where some overlapped."""
        orders = other_orders(tuple(order_of(self.prompts)), slots)
        return [replace(self, order=order) for order in orders]

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Replay in the order of arrivals and ends."""
        rerun = Rerun("", started(self.profile, self.spec, options), weighs=True)
        rerun.add_all(self.prompts, self.order)
        answers = [answer for answer in rerun.played.values() if answer.cached is not None]
        return Outcome(rerun.played, rerun.peak_bytes, failed=len(self.prompts) - len(answers))


def of_log(replays: Sequence[Replay], sizes: Sizes | None, runs: Sequence[ServerRun] = ()) -> Tuned:
    """A log's rebuilt workloads, one for each start of the server (`runs`, if they are known)."""
    longest = max(replays, key=lambda replay: len(replay.requests))
    known_by = how_known(longest.log, longest.settings.spec)
    if sizes is not None:
        known_by = GIVEN
        for replay in replays:
            replay.settings.sizes = sizes
    hidden = compares_nothing(replays)
    return Tuned(
        tuple(runs or runs_of(replays)),
        known_by,
        (UNCOMPARED,) if hidden else (),
        untried=HOLDERS if hidden else (),
    )


def runs_of(replays: Sequence[Replay]) -> list[ServerRun]:
    """The run of each start of a log's server, with requests that fit the log."""
    runs = []
    for replay in replays:
        likeliest, *others = workloads_of(replay)
        counts = counts_of(replay)
        runs.append(server_run(likeliest, replay.settings.values, counts, others, replay))
    return runs


def most_agree(replays: Sequence[Replay]) -> bool:
    """True if the replays agree with the log in at least half of the requests that it counts."""
    comparable = sum(len(replay.comparable) for replay in replays)
    return 0 < comparable <= 2 * sum(replay.agreeing for replay in replays)


HOLDERS: Final = ("parallel", "cache_ram", "cache_idle_slots", "slot_prompt_similarity")
"""Settings that decide which conversations are held, and so what a prompt may begin like."""

UNCOMPARED: Final = (
    "no prefix shared with a conversation that left its slot: without a prompt cache the log does "
    "not compare them, so --parallel and --cache-ram are not tried, and may save tokens"
)


def compares_nothing(replays: Sequence[Replay]) -> bool:
    """True if conversations left their slots on a server without a prompt cache."""
    return any(
        replay.settings.values.get("cache_ram") == 0
        and len(replay.requests) > replay.settings.values.get("parallel", 1)
        for replay in replays
    )


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
        swept = " and ".join(family.name for family in FAMILIES.values() if family.swept)
        raise InputError(
            f"these requests went to {named.engine}, and tune has settings to try for {swept}; "
            "cachesim why --what-if shows what other servers would have reused"
        )
    prompts = [prompt for prompt in live.prompts if prompt.recorded.was_read and len(prompt.rope)]
    if not prompts or live.rerun is None:
        raise InputError("no request was answered: there is nothing to replay")
    options = live.options
    assumed = [] if live.profile_how != "assumed" else [f"release {named.release}"]
    if any(
        prompt.recorded.prompt_tokens is None and not prompt.recorded.runs for prompt in prompts
    ):
        assumed.append("lengths of prompts, from their characters")
    assumed += [] if user.model else [f"a model like the preset {live.rerun.model}"]
    if "ctx_size" not in options and any(option.name == "ctx_size" for option in family.declared):
        longest = max(len(prompt.rope) + len(prompt.reply) for prompt in prompts)
        options["ctx_size"] = -(-(longest + 1) // CELLS) * CELLS * int(options.get("parallel", 1))
        assumed.append(f"ctx_size {options['ctx_size']}")
    spec = spec_for(live.profile, live.rerun.model, window=user.window or None, sizes=sizes)
    subject = RequestReplay(live.profile, spec, tuple(prompts))
    run = server_run(subject, options, [_counts(prompt.recorded) for prompt in prompts])
    return Tuned((run,), _given(spec), tuple(assumed))


def _counts(recorded: Recorded) -> Counts:
    """A request's counts as its client was answered them."""
    whole, cached, prefilled = recorded.prompt_tokens, recorded.cached, recorded.processed
    if prefilled is None and whole is not None and cached is not None and not recorded.cancelled:
        prefilled = whole - cached
    return Counts(recorded.number, cached, prefilled, whole, recorded.slot)


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
    run = server_run(subject, options, None)
    return Tuned((run,), _given(subject.spec))


def _given(spec: ModelSpec) -> str:
    return ASSUMED if spec.sizes is None else GIVEN


NEARLY: Final = 1.01
"""Relative difference in tokens within which the simpler setting is preferred."""

CLEARLY: Final = 0.03
"""Part of the prefilled tokens that a recommended setting saves: more than a proof leaves open."""

STEP: Final = 32
"""Multiples in which numbers as large are tried."""

MOST_CHECKED: Final = 6
"""Most settings that are checked, best first, before none is recommended."""

MOST_JUDGED: Final = 100_000
"""Most prompt tokens whose answers are verified."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A tried server: changed settings and results."""

    changes: Mapping[str, Any]
    flags: tuple[str, ...]  # the changes, as the release's command line has them
    processed: int
    peak_bytes: int
    context_bytes: int
    failed: int
    open: int  # tokens by which requests left out may change
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


def may_be_tried(trial: Trial, untried: Sequence[str]) -> bool:
    """False for settings that make a release answer wrongly, or whose effect the log hides."""
    run = trial.runs[0]
    profile, spec, changed = run.subject.profile, run.subject.spec, {**run.options, **trial.changes}
    if wrong_with(profile, spec, changed) and not wrong_with(profile, spec, run.options):
        return False
    return not any(name in trial.changes for name in untried)


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
    sums = [*zip(trial.runs, outcomes, strict=True)]
    return TrialResult(
        changes=trial.changes,
        flags=tuple(
            setting(FAMILIES[subject.engine], name, value, subject.release)
            for name, value in trial.changes.items()
        ),
        processed=sum(run.proof.prefilled(outcome.played) for run, outcome in sums),
        peak_bytes=max(outcome.peak_bytes for outcome in outcomes),
        context_bytes=context,
        failed=sum(outcome.failed for outcome in outcomes),
        open=sum(run.proof.open(outcome.played) for run, outcome in sums),
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


def between(found: Sequence[TrialResult], runs: Sequence[ServerRun]) -> list[Trial]:
    """Numbers halfway between the best ones and their neighbours that were tried.

    ubatch_size   256 ... 512 (own) . 768 . 1024 . 1536    the last one tried has no neighbour above
    """
    own, best = found[0], min(found, key=lambda result: (result.failed, result.processed))
    trials: dict[str, Trial] = {}
    for name, value in best.changes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or name == "ctx_size":
            continue
        tried = {result.changes.get(name) for result in found}
        tried.add(runs[0].options.get(name, value))
        known = sorted(value for value in tried if isinstance(value, int))
        below = max((other for other in known if other < value), default=0)
        above = min((other for other in known if other > value), default=2 * value)
        step = STEP if value >= STEP else 1
        for middle in ((below + value) // 2 // step * step, (value + above) // 2 // step * step):
            if middle not in known and middle > 0 and best.processed < own.processed:
                changes = {**best.changes, **_change(runs[0].options, name, middle)}
                trials.setdefault(str(changes), Trial(tuple(runs), changes, len(changes) == 1))
    return list(trials.values())


def recommended(found: Sequence[TrialResult]) -> TrialResult:
    """The fewest changes with nearly the fewest tokens, and of those the least memory; the user's
    own settings if the tokens are not clearly fewer.
    """
    own, best = found[0], min(found, key=lambda result: (result.failed, result.processed))
    if best.failed >= own.failed and best.processed > (1 - CLEARLY) * own.processed:
        return own
    good = [
        result
        for result in found
        if result.failed == best.failed and result.processed <= best.processed * NEARLY
    ]
    return min(good, key=lambda result: (len(result.changes), result.held))


NOTHING_PROVEN: Final = (
    "No setting is recommended: the replay reproduces no request with both its counts."
)
UNCOMPARED_REQUESTS: Final = (
    "No setting is recommended: {} overlapped others, and no line says which of their prompts "
    "begin alike. Recent releases print it with `-lv 4`; `cachesim record` sees it on any."
)
WRONG: Final = "more answers of the replay are wrong"


def confirmed(found: Sequence[TrialResult], tuned: Tuned) -> tuple[TrialResult, str]:
    """The best setting whose saving and answers are proven; else the user's own, and why."""
    left, own, reason, runs = list(found), found[0], tuned.unproven, tuned.runs
    fitting: list[list[Replayable]] = []
    if reason:
        return own, reason
    for _ in range(MOST_CHECKED):
        best = recommended(left)
        if best is own:
            return own, reason
        doubt = _left_out(own, best)
        if not doubt:
            fitting = fitting or [run.all_that_fits() for run in runs]
            doubt = _doubt(own, best, runs, fitting)
        if not doubt:
            return best, ""
        left.remove(best)
        words = f"with {' '.join(best.flags)}".replace("with without", "without")
        reason = reason or f"No setting is recommended: {words} {doubt}."
    return own, reason


def _meets_more(run: ServerRun, changes: Mapping[str, Any]) -> bool:
    if run.replay is None or not isinstance(run.subject, Workload):
        return False  # the texts of prompts are known
    return meets_more(run.subject, run.options, {**run.options, **changes})


def _left_out(own: TrialResult, best: TrialResult) -> str:
    if best.open <= MATTERS * own.processed:
        return ""
    return (
        f"the requests left out may change by {best.open:,} tokens, beside {own.processed:,} "
        "prefilled for those that the replay reproduces"
    )


def _doubt(
    own: TrialResult,
    best: TrialResult,
    runs: Sequence[ServerRun],
    fitting: Sequence[Sequence[Replayable]],
) -> str:
    """What speaks against a setting that saves tokens in the likeliest replay."""
    subjects = []
    for run, fit in zip(runs, fitting, strict=True):
        lost: list[Workload] = []
        if run.replay is not None and _meets_more(run, best.changes):
            if not compares(run.replay):
                return "prompts meet conversations with which no line of the log compares them"
            lost = [*like_lost(run.replay, run.proof)]
        subjects.append([*fit, *lost])
    least, most = _fewer(best.changes, runs, subjects)
    if most - least > MATTERS * own.processed:
        return (
            "the saving depends on what the log leaves open (where prompts part, the order of "
            f"those that overlap): {_tokens(least)} for some that fit, {_tokens(most)} for others"
        )
    return "" if _is_sound(best.changes, runs) else WRONG


def _tokens(saved: int) -> str:
    return f"{abs(saved):,} tokens {'fewer' if saved >= 0 else 'more'}"


def _fewer(
    changes: Mapping[str, Any],
    runs: Sequence[ServerRun],
    fitting: Sequence[Sequence[Replayable]],
) -> tuple[int, int]:
    """The least and the most tokens that a setting saves, over all that fits the log."""
    least = most = 0
    for run, subjects in zip(runs, fitting, strict=True):
        options, logged = {**run.options, **changes}, sum(run.proof.logged.values())
        fewer = [logged - run.proof.prefilled(one.outcome(options).played) for one in subjects]
        least, most = least + min(fewer), most + max(fewer)
    return least, most


def _is_sound(changes: Mapping[str, Any], runs: Sequence[ServerRun]) -> bool:
    """True if no more answers of the replay are wrong than with the user's own settings."""
    for run in runs:
        if isinstance(run.subject, Workload):
            counts = [
                wrong_answers(run.subject, run.subject.profile, dict(options), most=MOST_JUDGED)
                for options in (run.options, {**run.options, **changes})
            ]
            if None not in counts and len(counts[0] or ()) < len(counts[1] or ()):
                return False
    return True


def command_line(subject: Replayable, options: Mapping[str, Any]) -> str:
    """Command line of a server with these settings."""
    family = FAMILIES[subject.engine]
    flags = (flag_of(family, name, value, subject.release) for name, value in options.items())
    return " ".join([family.program, *filter(None, flags)])


def summary(found: Sequence[TrialResult], tuned: Tuned) -> dict[str, Any]:
    """A sweep as JSON, with the command line of the best settings."""
    run, (best, withheld) = tuned.runs[0], confirmed(found, tuned)
    return {
        "own": found[0].as_dict(),
        "recommended": best.as_dict(),
        "command": command_line(run.subject, {**run.options, **best.changes}),
        "front": [result.as_dict() for result in front(found)],
        "tried": [result.as_dict() for result in found],
        "withheld": withheld,
        "left_out_says": tuned.left_out,
        "assumed": list(tuned.assumed),
    }
