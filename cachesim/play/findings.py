"""What `check` finds in a workload: wrong answers, crashes, laws that are broken."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.engines.family import Family, Profile, search_of
from cachesim.engines.seen import Laws, Seen
from cachesim.errors import CachesimError, ContractError, raised_by
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.loop import LONGEST_TURN, PER_TOKEN, EndlessError, bounded, handled
from cachesim.play.session import ABORTED, CANCELLED, ENDLESS, WORKER_GONE, Record, Session
from cachesim.scenario.format import Kind, Scenario
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import Oracle, Oracles
from cachesim.verify.verdict import judge, leak_of, worst

EXERCISED: Final = (
    "restore",
    "checkpoint",
    "eviction",
    "load",
    "save",
    "shift",
    "rollback",
    "worker death",
    "full reprocessing",
    "cancel",
)
"""Exercised features that a search counts; each engine maps its events to them."""


NO_REPLY: Final = "the request never gets a reply"
"""The detail of a request that a server left, and is idle."""

ANSWERED: Final = "the request is answered, though its client has left"
"""The detail of a request that a server does not end when its client leaves."""

SERVER_ERROR: Final = "server_error"
"""The error of a request that the server failed to process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A wrong answer, broken invariant, crash or refusal, with its step."""

    kind: Kind
    step: int
    detail: str
    due: int = 0  # tokens that should have been cached, of lost reuse

    def same_kind(self, other: "Finding | None") -> bool:
        """True if the other finding is of the same kind, as a smaller workload must be."""
        return other is not None and other.kind == self.kind


@dataclass(slots=True, kw_only=True)
class Trial:
    """The outcome of one workload."""

    findings: list[Finding] = field(default_factory=list)
    requests: int = 0
    cached: list[int | None] = field(default_factory=list)
    wrong: int = 0
    exercised: Counter[str] = field(default_factory=Counter)
    texts: list[tuple[str, Tokens]] | None = None  # of requests, where the model recalls facts
    unit: int = 0  # of reuse, where a prompt sent again at once must be found; see `Search`
    continues: bool = False  # a prompt that continues the one before must be found too
    longest: int | None = None  # tokens of a prompt with its reply, where that ends a reply
    aborts: bool = False  # a request whose client has left gets no further token
    extended_by: str = ""  # the request field by which the server extends a prompt
    last: Record | None = None  # the step before
    laws: Laws | None = None  # further ones of the engine

    @classmethod
    def of(cls, session: Session) -> "Trial":
        """The trial of a session, with the laws of its server."""
        family, options = session.family, session.scenario.engine.options
        search = search_of(family)
        session.judged = True
        trial = cls(
            texts=[] if session.recalls else None,
            continues=not family.has_slots,
            longest=session.engine.longest(),
            aborts=search.aborts_at_once,
            extended_by=family.prompt_field,
            laws=None if search.laws is None else search.laws(session.engine),
        )
        if not _is_foreign(family, session.profile) and all(
            options.get(flag, True) for flag in search.reuse_flags
        ):
            trial.unit = search.finds_again(session.engine.flags)
        return trial

    @property
    def finding(self) -> Finding | None:
        """The first failure."""
        return self.findings[0] if self.findings else None


@lru_cache(maxsize=256)
def _is_foreign(family: Family[Any, Any], profile: Profile) -> bool:
    """True for a patch that makes the profile another server, with a reuse of its own."""
    return any(patch.server and patch.name in profile.patches for patch in family.patches)


def finding_of(
    record: Record, oracle: Oracle, trial: Trial, options: Mapping[str, Any]
) -> Finding | None:
    """The failure of a step, which is counted in the trial."""
    step, before, trial.last = record.index, trial.last, record
    if record.error in {ABORTED, ENDLESS}:
        return Finding(kind="crash", step=step, detail=record.message)
    if (record.error or "").startswith(WORKER_GONE):
        if any(finding.kind == "crash" for finding in trial.findings):
            return None  # of a server without its worker, as before
        return Finding(kind="crash", step=step, detail=f"{record.error}; {record.message}")
    if record.step.do != "complete":
        if trial.laws is not None and record.step.do != "cancel":
            trial.laws.begin_anew()
        return None
    trial.requests += 1
    reply = record.reply
    breach = _breach(record, oracle, trial.laws)
    if reply is None and record.error is None:  # the server is idle, and nobody cancelled it
        return Finding(kind="crash", step=step, detail=NO_REPLY)
    if trial.aborts and record.left and record.error is None:
        return Finding(kind="broken invariant", step=step, detail=ANSWERED)
    if reply is None or reply.error is not None:
        trial.exercised["cancel" if record.error == CANCELLED else "refusal"] += 1
        trial.cached.append(None)
        return breach or _broken_batch(record, reply, options)
    trial.cached.append(reply.cached)
    trial.exercised["reuse"] += bool(reply.cached)
    explained = sum(loss.before - loss.after for loss in reply.losses)
    if explained != reply.equal - (reply.cached or 0):
        detail = f"{reply.equal} equal, {reply.cached} cached, the rules explain {explained}"
        return Finding(kind="broken invariant", step=step, detail=detail)
    if record.peeked not in {None, reply.cached}:
        detail = f"{reply.cached} cached, a lookup right before it found {record.peeked}"
        return Finding(kind="broken invariant", step=step, detail=detail)
    if (uncounted := _uncounted(reply)) is not None:
        return Finding(kind="broken invariant", step=step, detail=uncounted)
    replies = (reply, *record.children)
    if len(replies) < record.step.completions:
        detail = f"{len(replies)} of {record.step.completions} completions are returned"
        return Finding(kind="broken invariant", step=step, detail=detail)
    unlike = next(
        filter(None, (_wrong_reply(record, reply, trial.longest) for reply in replies)), None
    )
    if unlike is not None:
        return Finding(kind="broken invariant", step=step, detail=unlike)
    verdict = worst([judge(reply, oracle) for reply in replies])
    leak = None
    if trial.texts is not None:
        if verdict is not None and verdict.wrong is not None:
            leak = leak_of(reply, oracle, trial.texts)
        trial.texts.append((record.name, record.tokens))
    if verdict is None or verdict.answer in {"same", "by-design"}:
        trial.exercised["by design"] += verdict is not None and verdict.answer == "by-design"
        spec = oracle.network.spec
        plain = not (spec.family or spec.mtp_depth)  # caches of some classes cannot be cut
        full = plain and set(spec.layers) == {"attention"}
        return breach or (_lost_reuse(record, before, trial) if full else None)
    trial.wrong += 1
    if leak is not None:
        return Finding(kind="leak", step=step, detail=str(leak))
    off = f"logits off by {verdict.max_difference:.3g}"
    detail = f"{reply.cached} of {len(reply.prompt)} tokens cached, {off}"
    return Finding(kind="wrong answer", step=step, detail=detail)


def _breach(record: Record, oracle: Oracle, laws: Laws | None) -> Finding | None:
    """The law of its engine that a request breaks."""
    if laws is None or record.reply is None:
        return None
    step, spec = record.step, oracle.network.spec
    cut = None if step.predict is None or step.predict < 0 else step.predict
    seen = Seen(
        reply=record.reply,
        events=record.events,
        forced=as_tokens(step.reply)[:cut] if isinstance(step.reply, tuple) else None,
        alone=record.alone and step.leaves is None,
        images=bool(record.images),
        fields=step.options,
        model=step.model,
        layers=frozenset(spec.layers),
        plain=not (spec.family or spec.mtp_depth),
        chat=bool(step.messages),
    )
    breach = laws.broken(seen)
    if breach is None:
        return None
    return Finding(kind=breach.kind, step=record.index, detail=breach.detail, due=breach.due)


def _uncounted(reply: Reply) -> str | None:
    """The counts of a reply that do not add up, where the server returns them."""
    cached, processed, n_tokens = reply.cached, reply.processed, len(reply.prompt)
    if cached is None or processed is None or reply.truncated or cached + processed == n_tokens:
        return None
    return f"{cached} cached and {processed} processed of {n_tokens} tokens"


def _wrong_reply(record: Record, reply: Reply, longest: int | None) -> str | None:
    """A reply that is not the sampled one, or shorter or longer than it.

    The end of the sampled tokens ends a reply, but one that a stop word is to end.
    """
    step, tokens = record.step, reply.generated
    if not isinstance(step.reply, tuple):
        return None
    sampled = as_tokens(step.reply)
    if tokens[: len(sampled)] != sampled[: len(tokens)]:
        return f"{list(tokens)} is returned for the sampled tokens {list(sampled)}"
    limit = len(sampled) if step.predict is None or step.predict < 0 else step.predict
    wanted = min(limit, len(sampled)) - reply.unsent
    most = limit if step.options else wanted + reply.unsent
    ends = reply.truncated or record.left or step.leaves is not None or bool(step.options)
    room = longest is None or len(reply.prompt) + wanted < longest
    if len(tokens) > most or (len(tokens) < wanted and room and not ends):
        return f"{len(tokens)} of {wanted} tokens are returned"
    return None


def _lost_reuse(record: Record, before: Record | None, trial: Trial) -> Finding | None:
    """Too little reuse of the prompt that the same client sent right before.

        before   [ prompt ................ )
        record   [ prompt ........ )           its beginning
                 [ prompt ................ | more )   if `trial.continues`

    One unit less is no loss: some drafters drop the last block of a match.
    """
    if before is None or not trial.unit or record.step.completions > 1:
        return None
    if trial.extended_by in before.step.options:  # a session may keep the tokens for itself
        return None
    alike = replace(before.step, name="", prompt=None, messages=(), reply=None, predict=None)
    here = replace(record.step, name="", prompt=None, messages=(), reply=None, predict=None)
    replies = before.reply, record.reply
    if alike != here or not (before.alone and record.alone and record.step.cache_prompt):
        return None
    first, second = (reply for reply in replies)
    if first is None or second is None or first.error or first.truncated or second.truncated:
        return None
    if before.images or record.images or second.cached is None:
        return None
    earlier, prompt = first.prompt, second.prompt
    shorter = earlier[: len(prompt)] == prompt
    if not shorter and not (trial.continues and prompt[: len(earlier)] == earlier):
        return None
    due = min(len(earlier), len(prompt) - 1) // trial.unit * trial.unit
    if second.cached >= due - trial.unit:
        return None
    detail = f"{second.cached} of {due} tokens cached that the request before wrote"
    return Finding(kind="lost reuse", step=record.index, detail=detail, due=due)


def _broken_batch(
    record: Record, reply: Reply | None, options: Mapping[str, Any]
) -> Finding | None:
    """A batch that memory refuses as invalid, or a request that fails though it fits its slot."""
    if reply is None or reply.error != SERVER_ERROR:
        return None
    if "Invalid input batch" in reply.message:
        return Finding(kind="broken invariant", step=record.index, detail=reply.message)
    room = options.get("ctx_size", 4096) // options.get("parallel", 1)
    more = 0 if options.get("context_shift") else len(record.step.reply or ()) or room
    if options.get("kv_unified") or len(reply.prompt) + more + 1 >= room:
        return None
    return Finding(kind="refusal", step=record.index, detail=reply.message)


def play(
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName = "ring",
    stop_early: bool = True,
    oracles: Oracles | None = None,
    thin: bool = False,
    only: Kind | None = None,
) -> Trial:
    """Run a workload; by default its first failure ends it, with `only` that of one kind.

    Runs of workloads that are much alike may share `oracles`: uncached answers are computed once.
    With `thin` the network has one layer of each kind that the model has.
    """
    session = Session(scenario, profile, arithmetic=arithmetic, reads_state=False, thin=thin)
    oracles = oracles or Oracles()
    return judge_session(session, session.run(), oracles, stop_early=stop_early, only=only)


def is_of_port(error: Exception, package: str) -> bool:
    """True for an exception that is a finding: a port's broken contract, or its crash."""
    if isinstance(error, CachesimError):
        return isinstance(error, ContractError)
    return bool(raised_by(error, package))


def judge_session(
    session: Session,
    records: Iterable[Record],
    oracles: Oracles,
    *,
    stop_early: bool,
    only: Kind | None,
) -> Trial:
    """The outcome of a session's run."""
    trial, options, done = Trial.of(session), session.scenario.engine.options, 0
    try:
        with handled():
            for record in records:
                done = record.index + 1
                oracle = oracles.of(session.networks[record.step.model])
                with bounded(LONGEST_TURN + PER_TOKEN * len(record.prompt)):
                    finding = finding_of(record, oracle, trial, options)
                if finding is not None and only in {None, finding.kind}:
                    trial.findings.append(finding)
                    if stop_early:
                        break
            if not session.ended:  # an assertion ends a function before its bookkeeping
                with bounded(LONGEST_TURN):
                    session.engine.check_integrity()
    except EndlessError as endless:
        if only in {None, "crash"}:
            trial.findings.insert(0, Finding(kind="crash", step=done, detail=str(endless)))
    except ContractError as error:
        if only in {None, "broken invariant"}:
            broken = Finding(kind="broken invariant", step=trial.requests, detail=str(error))
            trial.findings.insert(0, broken)
    except Exception as error:
        package = session.family.package
        if not is_of_port(error, package):
            raise
        if only in {None, "crash"}:
            place = raised_by(error, package)
            detail = f"{type(error).__name__}: {error}, raised by {place}"
            trial.findings.insert(0, Finding(kind="crash", step=done, detail=detail))
    exercised = search_of(session.family).exercised
    kinds: Counter[type[Event]] = Counter(map(type, session.engine.events))
    for kind, times in kinds.items():
        word = exercised.get(kind.name())
        if word is not None:
            trial.exercised[word] += times
    return trial
