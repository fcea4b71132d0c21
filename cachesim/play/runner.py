"""A scenario run on one profile and judged: a `Run`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Final, Protocol

import numpy as np

from cachesim.engines.family import Profile
from cachesim.engines.held import Held
from cachesim.engines.tokens import get_common_prefix
from cachesim.engines.words import counted, table_of
from cachesim.errors import ContractError, OutOfTimeError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import arithmetic_of
from cachesim.model.recall import show_word
from cachesim.model.trace import Fault, Traced
from cachesim.play.findings import is_of_port, play
from cachesim.play.result import (
    CLAIMS,
    Account,
    Culprit,
    Finding,
    LogitRow,
    PromptPart,
    Run,
    RunDetail,
    Saved,
    SlotCount,
    Step,
    StepDetail,
    TopLogit,
    as_json,
)
from cachesim.play.session import ABORTED, ENDLESS, NOT_RUN, TIMEOUT, Record, Session, groups_of
from cachesim.play.statements import with_statements
from cachesim.play.states import Provenance, states_of
from cachesim.scenario.checks import full_profile, scenario_of
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Expect, Kind, Scenario
from cachesim.scenario.labels import label_of, label_of_right
from cachesim.scenario.shipped import sources
from cachesim.units import Array, Count, Token, Tokens
from cachesim.verify.explain import Explanation, IdealCache, explain
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import Answer, Leak, Reuse, Verdict, judge, leak_of, worst

# The large part of a run, written on request: the server's state after every event.
#
# A session is watched while it runs. Once it is over every token in memory is traced back to the
# step that computed it (`provenance`), and equal states are stored once, referred to by number.
#
#     "detail" of a run     about, issue, kind, model, options, the scenario's text, "states"
#     "detail" of a step    its prompt and the parts it is made of, the states "before" it and
#                           after each event ("at"), the logits of each token, cached and cold

MOST_SEEN: Final = 4_000_000
"""Most tokens and cell runs of all recorded states; later states are not recorded."""

UNSEEN: Final = -1
"""The number of a state that was not recorded."""

ROWS: Final = 8
"""Generated tokens with reported logits, from the first."""

TOP: Final = 4
"""Reported tokens of each row: the largest logits of the cached and of the uncached run."""


class Watcher:
    """Recorder of a traced session's server state after each event."""

    def __init__(self, session: Session) -> None:
        if session.trace is None:
            raise ContractError("only a traced session can be watched")
        self.session = session
        self.trace: Traced = session.trace
        self.left = MOST_SEEN
        self.moments: dict[Held, int] = {}
        self.untils: list[int] = []  # how many tokens had been born when each was first seen
        self.at: list[int] = []  # the moment after each event
        self.first = self._moment()
        self.records: dict[int, Record] = {}
        self.start = self._seen()
        self.ends: dict[int, tuple[int, int]] = {}  # births and moments when each was done
        session.engine.after_each_event(self._record_event)

    def _moment(self) -> int:
        if self.left <= 0:
            return UNSEEN
        held = self.session.engine.held()
        if held not in self.moments:
            self.left -= size_of(held)
            self.moments[held] = len(self.moments)
            self.untils.append(self.trace.births)
        return self.moments[held]

    def _seen(self) -> tuple[int, int]:
        return self.trace.births, len(self.moments)

    def _record_event(self) -> None:
        self.at.append(self._moment())

    def record_end(self, record: Record) -> None:
        """Record a step's end; the step may have timed out.

        Then server and trace were interrupted anywhere: states recorded since the last step do
        not count.
        """
        self.records[record.index] = record
        if record.error == TIMEOUT:
            for trace in self.session.traces.values():
                trace.histories.settle()
        self.ends[record.index] = self._whole() if record.error == TIMEOUT else self._seen()

    def _whole(self) -> tuple[int, int]:
        done = [i for i, record in self.records.items() if record.error != TIMEOUT]
        return self.ends[done[-1]] if done else self.start

    def run_detail(self) -> RunDetail:
        """The detail of the whole run; the session must have ended."""
        scenario = self.session.scenario
        origins = Provenance(self.trace, tuple(self.records.values()))
        for group in groups_of(scenario):
            origins.learn([self.records[index] for index in group], self.ends[group[-1]][0])
        seen = zip(self.moments, self.untils, strict=False)
        return RunDetail(
            about=" ".join(scenario.about.split()),
            issue=scenario.source.issue,
            kind=scenario.kind,
            model=scenario.model_names,
            options=dict(scenario.engine.options),
            toml=to_toml(scenario),
            words=self.session.recalls,
            states=states_of(islice(seen, self._whole()[1]), origins),
        )

    def step_details(self, oracle: Oracle | None) -> list[StepDetail]:
        """The detail of every step, in order."""
        numbers = {id(event): i for i, event in enumerate(self.session.engine.events)}
        details, before = [], self.first
        for record in self.records.values():
            at = [self.at[numbers[id(event)]] for event in record.events]
            network = self.session.networks[record.step.model]
            if oracle is not None and oracle.network is not network:
                oracle = Oracle(network)
            details.append(
                StepDetail(
                    prompt=tuple(int(token) for token in record.prompt),
                    parts=tuple(
                        PromptPart(name=part.name, start=int(part.start), end=int(part.end))
                        for part in record.parts
                    ),
                    before=before,
                    at=tuple(at),
                    logits=() if oracle is None else _logits_of(record, oracle),
                )
            )
            before = at[-1] if at else before
        return details


def size_of(held: Held) -> int:
    """The number of tokens and cell runs in a state."""
    tokens = sum(len(slot.tokens) for slot in held.slots)
    tokens += sum(len(entry.tokens) for entry in held.entries)
    tokens += sum(len(tokens) for entry in held.entries for _, tokens in entry.held)
    runs = sum(len(cell.runs) for cell in (*held.cells, *held.companion_cells))
    runs += sum(len(checkpoint.runs) for slot in held.slots for checkpoint in slot.checkpoints)
    return 1 + tokens + runs


def _logits_of(record: Record, oracle: Oracle) -> tuple[LogitRow, ...]:
    """Logits of each generated token, from the server's row and from the uncached run."""
    reply = record.reply
    if reply is None or reply.error is not None or not reply.generated:
        return ()
    cold = oracle.logits(reply.prompt, reply.generated, reply.strengths)
    network = oracle.network
    rows = list(zip(reply.logits, cold, strict=True))[:ROWS]
    return tuple(
        LogitRow(
            index=index,
            token=int(reply.generated[index]),
            cached=int(network.sample(one)),
            cold=int(network.sample(other)),
            difference=float(network.difference(one, other)),
            top=_top_of(one, other),
        )
        for index, (one, other) in enumerate(rows)
    )


def _top_of(cached: Array, cold: Array) -> tuple[TopLogit, ...]:
    """The largest logits of both rows, sorted by the cold one; ring words have no order."""
    if not np.issubdtype(cold.dtype, np.floating):
        return ()
    chosen = {int(token) for row in (cached, cold) for token in np.argsort(-row)[:TOP]}
    return tuple(
        TopLogit(token=token, cached=float(cached[token]), cold=float(cold[token]))
        for token in sorted(chosen, key=lambda token: -cold[token])
    )


def with_details(run: Run, watcher: Watcher, oracle: Oracle | None) -> Run:
    """A run with all recorded states."""
    steps = zip(run.steps, watcher.step_details(oracle), strict=True)
    detailed = tuple(replace(step, detail=detail) for step, detail in steps)
    return replace(run, steps=detailed, detail=watcher.run_detail())


KEYS_UNVERIFIED = ("cached", "processed", "error")
RIGHT = frozenset({"same", "rounding", "by-design", None})
"""Answers that need no expectation."""


def mismatches(
    scenario: Scenario, profile: Profile, steps: Sequence[Step], *, verified: bool
) -> list[str]:
    """Every expectation that was not met, and every unexpected failure.

    Of steps for which no time was left nothing is known but that; they are the last ones.
    """
    mine = [expect for expect in scenario.expect if _is_for(scenario, expect, profile)]
    keys = ("cached", "processed", "error", "answer") if verified else KEYS_UNVERIFIED
    lines = [line for expect in mine for line in _unmet(expect, steps, keys)]
    lines += _unshown(scenario, profile, steps, verified=verified)
    if late := [step.name for step in steps if step.error == TIMEOUT]:
        more = f" and {counted(len(late) - 1, 'step')} after it" if len(late) > 1 else ""
        lines.append(f"{late[0]}{more}: not run, the time given was over")
    if not any(expect.answer is not None for expect in mine):
        lines += [
            f"{step.name}: the answer is wrong, and no expectation says so"
            for step in steps
            if step.answer not in RIGHT
        ]
    if not any(expect.error is not None for expect in mine):
        lines += [
            f"{step.name}: {step.error}, and no expectation says so"
            for step in steps
            if _went_wrong(step)
        ]
    return lines


def excluded(scenario: Scenario, profile: Profile) -> list[Kind]:
    """The kinds of findings that a scenario's expectations exclude."""
    mine = (expect.finding for expect in scenario.expect if _is_for(scenario, expect, profile))
    return list(dict.fromkeys(kind for kind in mine if kind is not None))


def _findings(
    scenario: Scenario,
    profile: Profile,
    steps: Sequence[Step],
    arithmetic: ArithmeticName,
    pace: "Pace | None",
) -> Iterator[str]:
    """What `check` finds in a workload, of the kinds that are excluded.

    Some laws are of exact numbers alone, so ring arithmetic is tried beside the run's own.
    """
    tried: Sequence[ArithmeticName] = ("ring",) if arithmetic == "counts" else (arithmetic, "ring")
    for kind, numbers in product(excluded(scenario, profile), dict.fromkeys(tried)):
        try:
            with pace.limit() if pace else nullcontext():
                finding = play(scenario, profile, arithmetic=numbers, only=kind).finding
        except OutOfTimeError:
            return  # `mismatches` tells it
        if finding is not None:
            at = steps[min(finding.step, len(steps) - 1)].name
            yield f"{at}: {kind}: {finding.detail}"
            return


def expects_wrong(scenario: Scenario, profile: Profile) -> bool:
    """True if a scenario expects a diverged answer of a profile."""
    mine = (expect.answer for expect in scenario.expect if _is_for(scenario, expect, profile))
    return any("diverged" in answer for answer in mine if answer is not None)


def _unshown(
    scenario: Scenario, profile: Profile, steps: Sequence[Step], *, verified: bool
) -> Iterator[str]:
    for seen in (scenario.shows.before, scenario.shows.after):
        if not seen.profile or full_profile(scenario.engine.name, seen.profile) != profile:
            continue
        step = steps[scenario.step_names.index(seen.step)]
        if step.error == TIMEOUT:
            continue
        values = {
            "cached": step.cached,
            "processed": step.processed,
            "of": step.prompt_tokens,
            "answer": step.answer if verified else seen.answer,
            "error": step.error,
            "checkpoints": len(step.checkpoints),
            "checkpoint_mib": _mib(checkpoint.bytes for checkpoint in step.checkpoints),
            "parked": len(step.prompt_cache),
            "parked_mib": _mib(entry.get("bytes") for entry in step.prompt_cache),
            "drafted": step.drafted,
            "accepted": step.accepted,
            "companion": step.companion,
        }
        for key, value in values.items():
            wanted = getattr(seen, key)
            if wanted is not None and str(wanted) != _word(value):
                yield f"{step.name}: {key} is {_word(value)}, and [shows] says {wanted}"


def _mib(sizes: Iterable[int | None]) -> int:
    return sum(size or 0 for size in sizes) // 2**20


def _went_wrong(step: Step) -> bool:
    """True if the server ended or hung, the step was skipped, or a slot action failed.

    A refused request is an answer, whether or not the scenario expects it.
    """
    if step.do in {"slot-save", "slot-restore", "slot-erase", "set-lora"}:
        return step.error not in {None, TIMEOUT}
    return step.error in {ABORTED, ENDLESS, NOT_RUN}


def _is_for(scenario: Scenario, expect: Expect, profile: Profile) -> bool:
    if expect.profile is None:
        return True
    return full_profile(scenario.engine.name, expect.profile) == profile


def _unmet(expect: Expect, steps: Sequence[Step], keys: Sequence[str]) -> Iterator[str]:
    for key in keys:
        wanted = getattr(expect, key)
        if wanted is None:
            continue
        for step, item in zip(steps, _per_step(wanted, steps, key), strict=True):
            value = getattr(step, key)
            known = step.error != TIMEOUT and item != "any"
            if known and value != (None if item in {"none", ""} else item):
                yield f"{step.name}: {key} is {_word(value)}, expected {_word(item)}"
    for step, least in zip(steps, expect.least or (), strict=False):
        if step.error != TIMEOUT and isinstance(least, int) and (step.cached or 0) < least:
            yield f"{step.name}: cached is {_word(step.cached)}, expected {least} or more"
    for step, item in zip(steps, expect.checkpoints or (), strict=False):
        held = tuple(checkpoint.n_tokens for checkpoint in step.checkpoints)
        wanted = () if item == "none" else item
        if step.error != TIMEOUT and wanted not in ("any", held):
            yield f"{step.name}: checkpoints are {list(held)}, expected {list(wanted)}"


def _per_step(wanted: str | Sequence[Any], steps: Sequence[Step], key: str) -> Sequence[Any]:
    if not isinstance(wanted, str):
        return wanted
    if key == "answer":
        return [wanted if step.answer is not None else "any" for step in steps]
    return [wanted] * len(steps)


def _word(value: object) -> str:
    return "none" if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The verdict and account of a step; empty without verification."""

    answer: Answer | None = None
    max_difference: float | None = None
    reuse: Reuse | None = None
    account: Account | None = None
    fault: Fault | None = None
    leak: Leak | None = None


class Verifier:
    """Comparison of a session's replies with the cold recompute."""

    def __init__(self, session: Session, oracle: Oracle | None = None) -> None:
        """`oracle` may be shared between sessions on the same network."""
        self.oracles = {
            name: oracle if oracle is not None and oracle.network is network else Oracle(network)
            for name, network in session.networks.items()
        }
        self.traces = session.traces
        self.judges = arithmetic_of(session.network) != "counts"
        self.padding = session.engine.padding
        self.recalls = session.recalls
        self.show = show_word if session.recalls else str
        self.ideals = {name: IdealCache() for name in session.networks}
        self.records: list[Record] = []

    def judge(self, record: Record) -> Evidence:
        """The evidence on a step; None without an answer."""
        reply = record.reply
        if reply is None or record.step.do != "complete":
            return Evidence()
        name = record.step.model
        oracle, ideal, trace = self.oracles[name], self.ideals[name], self.traces.get(name)
        account = explain(
            reply,
            ideal,
            parts=record.parts,
            matched=record.matched,
            show=self.show,
            memory="memory" if len(self.oracles) == 1 else f"the memory of {table_of(name)}",
        )
        due = account.ideal if account else Count(0)
        replies = (reply, *record.children)
        verdict = None
        if self.judges:
            verdict = worst([judge(reply, oracle, due=due, trace=trace) for reply in replies])
        leak = None
        if self.recalls and verdict is not None and verdict.wrong is not None:
            leak = leak_of(reply, oracle, [(known.name, known.tokens) for known in self.records])
        ideal.remember(reply)
        reported = None if account is None else self._account(account, verdict)
        self.records.append(record)
        if verdict is None:
            below = not self.judges and reply.error is None and (reply.cached or 0) < due
            return Evidence(account=reported, reuse="lost" if below else None)
        return Evidence(
            answer=verdict.answer,
            max_difference=float(verdict.max_difference),
            reuse=verdict.reuse,
            account=reported,
            fault=verdict.fault,
            leak=leak,
        )

    def _account(self, account: Explanation, verdict: Verdict | None) -> Account:
        fault = None if verdict is None else verdict.fault
        return Account(
            equal=account.equal,
            equal_with=account.equal_with,
            parting=account.parting,
            ideal=account.ideal,
            lost=account.lost,
            sentences=account.sentences,
            wrong=None if verdict is None else verdict.wrong,
            fault=None if fault is None else culprit(fault, self.records, self.padding),
        )


def culprit(fault: Fault, records: Sequence[Record], padding: Token | None) -> Culprit:
    """The first difference between the token histories of a wrong memory and the correct one.

        holds      [ right ........ | other ..... )
                   0             matches
        expected   [ right ........ | ........ )

    Of a cell only its own token is compared: it is at `position`, and the correct one is the last
    expected one. Of surplus or missing cells behind correct ones it is the first one.
    """
    matches = get_common_prefix(fault.holds, fault.expected)
    position = matches if fault.place == "recurrent" else int(fault.position)
    last = fault.extra and fault.position >= fault.token
    behind = fault.short or (last and matches == len(fault.expected))
    if fault.place == "recurrent" or behind:
        holds, expected = _token_at(fault.holds, matches), _token_at(fault.expected, matches)
        history = fault.holds[: matches + 1]
    else:
        holds, history = _token_at(fault.holds, -1), fault.holds
        expected = None if fault.extra else _token_at(fault.expected, -1)
    return Culprit(
        layer=fault.layer,
        place=fault.place,
        read_by=int(fault.token),
        position=position,
        holds=holds,
        expected=expected,
        holds_tokens=len(fault.holds),
        expected_tokens=len(fault.expected),
        matches=matches,
        padding=_leading(fault.holds[matches:], padding),
        comes_from=origin(history, records) if holds is not None else None,
    )


def _leading(tokens: Tokens, padding: Token | None) -> int:
    return next((i for i, token in enumerate(tokens) if token != padding), len(tokens))


def _token_at(tokens: Tokens, index: int) -> int | None:
    return int(tokens[index]) if -len(tokens) <= index < len(tokens) else None


def origin(tokens: Tokens, records: Sequence[Record]) -> str | None:
    """The origin of a history's last token, as `step A, a` or `step A, its reply`."""
    at = len(tokens) - 1
    for record in records:
        if at < 0 or record.reply is None:
            continue
        if record.reply.written[: at + 1] == tokens:
            name = next((p.name for p in record.parts if p.start <= at < p.end), "its reply")
            return f"step {record.name}, {name}"
    return None


class Pace(Protocol):
    """A caller's pace: progress of a run, and its time limit."""

    def limit(self) -> AbstractContextManager[None]:
        """Context of the run; raises OutOfTimeError within a step."""
        ...

    def step_done(self) -> None:
        """Report a finished step."""
        ...


UNSAID: Final = Finding(fate="right", title="", step=0, event=-1)
"""A finding without a title, before the statements are composed."""


def run(
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    oracle: Oracle | None = None,
    detail: bool = False,
    pace: "Pace | None" = None,
) -> Run:
    """Run a scenario on one profile.

    >>> from cachesim import Profile, load, run
    >>> scenario = load("scenarios/llama.cpp/llama.cpp-two-codes.toml")
    >>> played = run(scenario, Profile.parse("llama.cpp@b11549"))
    >>> played.steps[-1].answer
    'diverged'

    Several runs of one scenario may share an oracle: uncached answers are computed once. A run with
    a wrong answer, or one that differs by design, is repeated with provenance traced in every
    memory, to find the state that differs. A scenario that expects a diverged answer is traced at
    once; so is a run with `detail`, which also reports the server's state after each event.
    """
    traced = detail or (verify and expects_wrong(scenario, profile))
    session = Session(scenario, profile, arithmetic=arithmetic, traced=traced)
    oracle = oracle or Oracle(session.network)
    watcher = Watcher(session) if detail else None
    steps = run_steps(session, oracle, verify=verify, watcher=watcher, pace=pace)
    differs = any(step.answer in {"diverged", "by-design"} for step in steps)
    if session.trace is None and differs:
        session = Session(scenario, profile, arithmetic=arithmetic, traced=True)
        again = run_steps(session, oracle, pace=pace)
        steps = steps if again[-1].error == TIMEOUT else again
    judged = verify and arithmetic != "counts"
    unmet = (
        *mismatches(scenario, profile, steps, verified=judged),
        *_findings(scenario, profile, steps, arithmetic, pace),
    )
    done = Run(
        scenario=scenario.name,
        profile=str(profile),
        as_expected=not unmet,
        steps=steps,
        arithmetic=arithmetic,
        mismatches=unmet,
        device=session.family.device_of(profile, scenario.engine.options),
    )
    if watcher is None:
        return done
    return with_details(done, watcher, oracle if verify else None)


def run_steps(
    session: Session,
    oracle: Oracle | None = None,
    *,
    verify: bool = True,
    watcher: Watcher | None = None,
    pace: "Pace | None" = None,
) -> tuple[Step, ...]:
    """The steps of a session in order; those that timed out are marked."""
    verifier = Verifier(session, oracle) if verify else None
    scenario, profile = session.scenario, session.profile
    left = TIMEOUT, "the time given was over"
    # One list: an interruption comes between any two lines.
    done: list[tuple[Step, Record, Leak | None]] = []

    def add(record: Record, evidence: Evidence) -> None:
        step = step_of(record, evidence)
        if watcher is not None:
            watcher.record_end(record)
        done.append((step, record, evidence.leak))

    try:
        with pace.limit() if pace else nullcontext():
            for record in session.run():
                add(record, verifier.judge(record) if verifier else Evidence())
                if pace:
                    pace.step_done()
    except OutOfTimeError:
        pass
    except Exception as error:
        if not excluded(scenario, profile) or not is_of_port(error, session.family.package):
            raise
        left = NOT_RUN, f"{type(error).__name__}: {error}"
    for record in session.undone(len(done), *left):
        add(record, Evidence())
    leaks = [leak for _, _, leak in done] if session.recalls else None
    steps = with_statements([step for step, *_ in done], [record for _, record, _ in done], leaks)
    return tuple(
        replace(
            step,
            evidence=(label_of if step.finding.fate in CLAIMS else label_of_right)(
                scenario, profile, step.name
            ),
        )
        for step in steps
    )


def step_of(record: Record, evidence: Evidence) -> Step:
    """A step as the server left it; statements are added later."""
    reply = record.reply
    return Step(
        name=record.name,
        do=record.step.do,
        prompt_tokens=None if record.error in {NOT_RUN, TIMEOUT} else len(record.prompt),
        cached=None if reply is None else as_json(reply.cached),
        processed=None if reply is None else as_json(reply.processed),
        generated=() if reply is None else tuple(int(token) for token in reply.generated),
        answer=evidence.answer,
        max_difference=evidence.max_difference,
        reuse=evidence.reuse,
        why=() if reply is None else reply.losses,
        slot=as_json(record.slot),
        truncated=reply is not None and bool(reply.truncated),
        checkpoints=tuple(
            Saved(
                pos_min=int(checkpoint["pos_min"]),
                pos_max=int(checkpoint["pos_max"]),
                n_tokens=int(checkpoint["n_tokens"]),
                bytes=checkpoint.get("bytes"),
            )
            for checkpoint in _slot_of(record).get("checkpoints", ())
        ),
        prompt_cache=tuple(as_json(entry) for entry in record.snapshot.get("prompt_cache", ())),
        events=record.events,
        error=record.error,
        message=record.message,
        explanation=evidence.account,
        slots=tuple(
            SlotCount(id=as_json(slot["id"]), n_tokens=len(slot.get("tokens", ())))
            for slot in record.snapshot.get("slots", ())
        ),
        forced=record.step.reply is not None,
        finding=UNSAID,
        facts=(),
        drafted=None if reply is None else as_json(reply.drafted),
        accepted=None if reply is None else as_json(reply.accepted),
        companion=_slot_of(record).get("companion"),
    )


def _slot_of(record: Record) -> Mapping[str, Any]:
    slots: Sequence[Mapping[str, Any]] = record.snapshot.get("slots", ())
    return next((slot for slot in slots if slot.get("id") == record.slot), {})


def run_scenario(
    mapping: Mapping[str, Any] | str,
    *,
    profile: str | None = None,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    detail: bool = False,
) -> Run:
    """Run a scenario: a mapping, or the name of a shipped scenario or of a file.

    `profile` replaces the first one that the scenario lists.

    >>> from cachesim import run_scenario
    >>> run_scenario("llama.cpp-two-codes").profile
    'llama.cpp@b11549'
    >>> fixed = run_scenario("llama.cpp-two-codes", profile="b11549+24035")
    >>> [step.answer for step in fixed.steps]
    ['same', 'same', 'same', 'same']
    """
    scenario = _named(mapping) if isinstance(mapping, str) else scenario_of(mapping)
    wanted = chosen(scenario, profile)
    return run(scenario, wanted, arithmetic=arithmetic, verify=verify, detail=detail)


def _named(name: str) -> Scenario:
    scenarios = [source.load() for source in sources(name)]
    if len(scenarios) != 1:
        raise ScenarioError(f"{name}: a folder of {len(scenarios)} scenarios; name one of them")
    return scenarios[0]


def chosen(scenario: Scenario, profile: str | None) -> Profile:
    """The requested profile, or the first one that the scenario lists."""
    listed = scenario.engine.profiles
    if profile is None and not listed:
        raise ScenarioError("engine.profiles: say which profile to run; the scenario lists none")
    return full_profile(scenario.engine.name, listed[0] if profile is None else profile)
