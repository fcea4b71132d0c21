"""A whole run: identification by counts, calibration, search, replay, shrinking."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from statistics import median
from typing import Final

from cachesim.engines.family import Profile, family_of
from cachesim.engines.words import counted
from cachesim.errors import InputError, UntestedError
from cachesim.probe import judging
from cachesim.probe.answers import DISCONNECTED, Answer, Query, Word, distance
from cachesim.probe.connection import LAST_SECONDS, BudgetError, Meter, Sent
from cachesim.probe.outcome import (
    BATCH,
    Finding,
    FindingKind,
    Outcome,
    Plan,
    Shown,
    Suspicion,
)
from cachesim.probe.playing import (
    Played,
    after,
    distances,
    one_at_a_time,
    opened_together,
    play,
    play_with_leaver,
    query_of,
    refuse_other_decoding,
    up_to,
    without_repeats,
    words_for,
)
from cachesim.probe.profiles import Candidate, Fingerprint, Guide
from cachesim.probe.target import HISTORY, Target
from cachesim.scenario.format import Scenario
from cachesim.testing.search import shrink
from cachesim.testing.survey import Cause
from cachesim.testing.workloads import EDGES, Seeded, Shape, draw_workload

CONTEXT: Final = 4096
"""Tokens of one request, where a server does not report them."""

STARTS: Final = 3
"""Starts of the server with which a cold answer is compared, until one is equal."""

SAMPLES: Final = 30
"""Prompts of the calibration."""

FEWEST_SAMPLES, CALIBRATING = 10, 0.25
"""Fewest prompts of the calibration of a slow server, and its share of the time."""

CONTINUATION: Final = 6
"""Forced tokens on which calibration and replays compare."""

DRAWN: Final = 3
"""Workloads of which the one that divides the candidates best is sent."""

BEFORE: Final = (0, 8, 64, HISTORY)
"""Groups of requests before the wrong workload that may have had a part in it."""

SIMULATED: Final = BEFORE[:3]
"""Groups of requests before a wrong answer, for the simulated server that explains it."""

TRIALS: Final = 100
"""Simplifications that are tried on the live server."""

EXPLAINING: Final = 4
"""Simulated servers on which the cause is looked for; then one with each flag, until one shows it.
"""

SIMULATING: Final = 2
"""Simulated servers that are asked for a smaller workload where the time of the run is over."""

LONG_REPLIES, LONG_TEXT = 8, 16
"""Most tokens of drawn replies where texts alone are compared, and of the reply in a replay: each
token more may be another one.
"""

LONGEST_LIKE: Final = 1000
"""Tokens of a prompt of `--like`, where the context allows them."""

ONE_SLOT: Final = 0.4
"""Share of workloads that go to one slot of several, as most conversations in one slot meet
another only after the others are taken.
"""

COMPARED: Final = 16
"""Last answers of a workload from a fresh start that are compared."""

PROOFS: Final = 5
"""Replays of the smallest workload after a restart each; of a fault that is seldom shown, more."""

IN_A_ROW: Final = 3
"""Replays after a restart that all have to be wrong, where those of the whole workload were."""


class Probe:
    """Run against a server."""

    def __init__(
        self, target: Target, meter: Meter, plan: Plan, watch: Callable[[Outcome], None]
    ) -> None:
        self.target, self.meter, self.plan = target, meter, plan
        self.facts = target.dialect.facts
        self.outcome = Outcome(reused=0 if self.facts.counts else None)
        self.judge = judging.Judge(judging.Noise(), alpha=1 / plan.alarms)
        self._watch = watch
        self._chance = Random(plan.seed)
        self._drawn = 0
        self._before: list[list[Query]] = []  # requests before the last workload
        self._open: list[Suspicion] = []
        self._guided: list[Candidate] = []
        self._fresh: list[Candidate] = []  # instead of a server that cannot be restarted
        self._explaining: Candidate | None = None  # it shows the causes of the findings
        self._plays = 1  # of a simplification, until it counts as right
        self._calibrated: list[Sent] = []
        self._plainest: dict[FindingKind, Query] = {}  # the last one that breaks a plain law
        self._until = 0  # requests that the server was sent, with the last workload
        self._last: Shown | None = None  # workload that was wrong from a fresh start
        self._smallest: Shown | None = None  # of them, for the finding that is made smaller
        self._context = self.facts.context or CONTEXT
        most = plan.longest or min(LONGEST_LIKE, self._context // 2)
        self._like = [] if plan.like is None else list(plan.like.workloads(most))
        engine = target.dialect.engine
        family = family_of(engine or "llama.cpp")
        self._profile = Profile(family.name, family.names()[-1])
        self._slots = self.facts.parallel if family.has_slots else 1
        self._slot = 0 if self._slots > 1 else -1  # that all requests of a workload may name

    # -- the run -----------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        findings = self.outcome.findings
        dead = self.target.process is None and any(e.kind == "no answer" for e in findings)
        return dead or len(findings) >= self.plan.failures

    def run(self) -> Outcome:
        """Until enough is wrong, or the budget is used up."""
        try:
            self._identify()
            for part in (self._calibrate, self._search):
                if not self._over:
                    part()
        except BudgetError as error:
            self.outcome.ended = str(error)
        except InputError as error:  # a server that cannot be started again
            if not self.outcome.findings:
                raise
            self.outcome.ended = str(error)
        for suspicion in self._open if not self._over else ():
            self.outcome.note(
                f"a suspicion was not decided: {suspicion.test.hits} of {suspicion.test.replays} "
                f"replays are off by more than {self.judge.noise.limit:.2g}"
            )
        for fault, times in self.target.faults.most_common(5):
            self.outcome.note(f"{fault} ({counted(times, 'request')})")
        ends = Counter[str]() if self.target.process is None else self.target.process.told
        for sentence, times in (+ends).items():
            self.outcome.note(f"{sentence} ({counted(times, 'time')})")
        if not self.outcome.compared and self.outcome.finding is None:
            raise UntestedError(self._nothing())
        return self.outcome

    def _nothing(self) -> str:
        reasons = "; ".join(f"{why} ({n})" for why, n in self.outcome.refused.most_common(2))
        return (
            f"{self.target.url}: no answer could be compared with an uncached one "
            f"({self.outcome.ended or 'no request was answered'}{reasons and f'; {reasons}'})"
        )

    def _identify(self) -> None:
        """Send workloads one request at a time, until the counts leave one candidate."""
        target, found = self.target, self.outcome.fingerprint
        if not (target.dialect.engine and self.facts.counts) or target.dialect.chat:
            return  # templates add tokens that no drawn prompt has
        found = Fingerprint.of(target.dialect.engine, self.facts.parallel, self._context)
        self.outcome.fingerprint = found
        first, target.dialect.first = target.dialect.first or [], None
        found.fresh = target.restart()
        for query, answer in () if found.fresh else first:
            if query.cache_prompt or target.dialect.declines:  # else it was kept apart, by a key
                found.add(query, answer)
        while len(found.left) > 1 and found.requests < self.plan.identifying:
            named = words_for(self.facts.words, self._chance)
            drawn = [self._draw(together=False) for _ in range(DRAWN)]
            queries = [[query_of(step, named) for step in scenario.step] for scenario in drawn]
            best = found.dividing(list(zip(drawn, queries, strict=True)))
            played = play(target, best, named)
            if not self._check_alive(played, best):
                break
            for query, answer in zip(played.queries, played.answers, strict=True):
                found.add(query, answer)
            self._watch(self.outcome)
        if found.left and self.plan.repeats and not self._over:
            self._leave(found)
        models = dict.fromkeys(candidate.model for candidate in found.ranked)
        self._guided = [next(e for e in found.ranked if e.model == one) for one in models][:2]

    def _leave(self, found: Fingerprint) -> None:
        """Hold the count after a client that left to those of the simulated servers."""
        named = words_for(self.facts.words, self._chance)
        drawn = self._draw(together=False)
        queries = [query_of(step, named) for step in drawn.step]
        played = play_with_leaver(self.target, queries, self._chance)
        for query, answer in zip(played.queries, played.answers, strict=True):
            found.add(query, answer)
        sent = [[query] for query in played.queries]
        self._check_alive(played, after(sent, replace(drawn, step=()), self.facts.words))

    def _calibrate(self) -> None:
        """Measure rounding: uncached twice, beside other requests, and as an extension.

        The last two are laws themselves: a server may be wrong there already. Half of the
        extensions quote the reply: a state that cannot be cut back is reused by these alone.
        """
        noise, target = self.judge.noise, self.target
        company, reuse, colds = list[float](), list[float](), list[Answer]()
        whole = list[tuple[Query, Answer]]()
        for number in range(SAMPLES):
            share = self.meter.seconds / (60 * self.meter.limits.minutes)
            if number >= FEWEST_SAMPLES and share > CALIBRATING:
                break
            prompt, reply = self._text(5, self._longest), self._text(CONTINUATION, CONTINUATION)
            cut = self._chance.randint(1, len(prompt) - 1)
            target.erase()
            first = target.together([Query(prompt=prompt[:cut], reply=self._text(2, 2))])[0]
            said = first.tokens if number % 2 else ()
            query = Query(prompt=prompt[:cut] + said + prompt[cut:], reply=reply)
            warm = target.together([query])[0]
            one, two = target.cold(query), target.cold(query)
            beside = [
                Query(prompt=self._text(5, 60), reply=self._text(3, 3))
                for _ in range(min(3, 2 * self.facts.parallel - 1))
            ]
            crowded = target.cold(query, beside)
            for samples, other in ((noise.alone, two), (company, crowded), (reuse, warm)):
                if one.fatal or other.fatal:
                    continue
                if one.error or other.error:
                    self.outcome.refused[one.error or other.error] += 1
                else:
                    samples.append(distance(one, other))
                    if samples[-1] > judging.ERROR and samples is not noise.alone:
                        self._plainest["reuse" if other is warm else "company"] = query
                    if other is warm:
                        self._count(warm)
                        colds.append(one)
                        whole.append((query, one))
            self._check_alive(Played([query], [warm]), None)
            if self._over:
                return
            self._watch(self.outcome)
        noise.company, noise.reuse = company, reuse
        if len(colds) > 1:
            self.outcome.apart = max(map(distance, colds, colds[1:]))
        self._before = list(target.sent)  # a start forgets it
        self._calibrated = list(target.dialect.connection.sent)
        self._check_cold()
        if self.facts.probabilities and target.dialect.by_ids:
            refuse_other_decoding(target, whole[:STARTS], noise.error)
        self._check_plain_laws()

    def _check_cold(self) -> None:
        """Check uncached answers on a server that was just started or emptied, where one may be."""
        target, far = self.target, list[float]()
        queries = [
            Query(prompt=self._text(5, self._longest), reply=self._text(CONTINUATION, CONTINUATION))
            for _ in range(STARTS if target.process is not None else 0)
        ]
        for query, cold in [(query, target.cold(query)) for query in queries]:
            target.restart()
            fresh = target.together([query])[0]
            if cold.error or fresh.error:
                return
            far.append(distance(cold, fresh))
            if far[-1] <= self.judge.noise.limit:
                self.outcome.proven_cold = not target.emptied
                return
        if far:
            raise InputError(
                f"{target.url}: an uncached answer ({target.how_cold}) is not that of a server "
                f"that has just been {'emptied' if target.emptied else 'started'}: off by"
                f" {min(far):.2g} in {len(far)} of {len(far)} cases"
            )

    def _check_plain_laws(self) -> None:
        noise = self.judge.noise
        laws: tuple[tuple[FindingKind, list[float], str], ...] = (
            ("reuse", noise.reuse, "a prompt that extends the one before is answered"),
            ("company", noise.company, "an uncached prompt beside other requests is answered"),
        )
        alone = sum(distance > judging.ERROR for distance in noise.alone)
        if alone * 5 > len(noise.alone):
            self.outcome.note(
                f"uncached answers to the same prompt differ in {alone} of {len(noise.alone)} "
                "cases by more than rounding: sampling is not greedy, or the server is not"
                " deterministic"
            )
            return
        for kind, samples, what in laws:
            error = 1 / (4 * self.plan.alarms)
            test = judging.SequentialTest(
                max(judging.FLOOR, judging.upper_bound(alone, len(noise.alone), error))
            )
            far = [sample for sample in samples if sample > noise.error]
            if kind == "reuse":
                least = judging.SequentialTest(test.chance)
                for _ in range(
                    len(samples) if self.outcome.reused is None else self.outcome.reused
                ):
                    least.add(hit=True)
                self.outcome.plain = least.value >= 4 * self.plan.alarms
            for sample in samples:
                test.add(hit=sample > noise.error)
            if test.value >= 4 * self.plan.alarms:
                sentence = (
                    f"{what} differently from one alone in {len(far)} of {len(samples)} cases, "
                    f"off by {median(far):.2g}"
                )
                finding = self._found(kind, sentence, evidence=test.value, distances=samples)
                finding.hits, finding.replays = len(far), len(samples)
                finding.sent, finding.asked = list(self._calibrated), self._plainest.get(kind)
                self._prove(finding, replace(self._draw(together=False), step=()))
                if self._over:
                    return
            elif far:
                self.outcome.note(
                    f"{what} differently from one alone in {len(far)} of {len(samples)} cases, "
                    f"off by up to {max(far):.2g}: too few to decide"
                )

    # -- search ------------------------------------------------------------------------------------

    def _search(self) -> None:
        guide, cured = Guide(self._guided, self.plan.tries), frozenset[str]()
        while not self._over:
            known = frozenset(cause.cure for cause in self._known if cause.cure)
            if known != cured:
                cured = known
                guide = Guide(self._guided, self.plan.tries, cured)
            if self._open and self.meter.requests >= self._open[0].resumes:
                self._decide(self._open[0])
                continue
            self._send(guide.choose(self._draw))

    def _send(self, scenario: Scenario) -> None:
        """Run a workload, and compare its answers with the uncached ones."""
        self._empty()
        self._before = list(self.target.sent)
        played = play(self.target, scenario, words_for(self.facts.words, self._chance))
        self._until = len(self.target.dialect.connection.sent)
        self.outcome.workloads += 1
        alive = self._check_alive(played, scenario)
        for _, query, answer in played.answered:
            size = answer.prompt_tokens or len(query.prompt)
            if answer.cached is not None and not 0 <= answer.cached <= size:
                self.outcome.note(
                    f"a count cannot be true: {answer.cached} cached of {size} tokens"
                )
        if alive:
            self._compare(scenario, played)
        self._watch(self.outcome)

    def _empty(self) -> None:
        """Erase the cache before half of the workloads; once a cause is known, restart instead.

        The simulated server that tells a repetition from another finding then has all requests
        since the start. Restarts take half of the time at most.
        """
        process = self.target.process
        if process is not None and self._known:
            if process.served:
                self.target.restart()
        elif self._chance.random() < 0.5:
            self.target.erase()

    def _compare(self, scenario: Scenario, played: Played) -> None:
        for at, far, _ in list(distances(self.target, played)):
            self._count(played.answers[at])
            cached = played.answers[at].cached
            self.outcome.searched += self.outcome.reused is None or bool(cached)
            number = played.steps[at]
            if not self.judge.add(far) or self._repeated(self._before, scenario, number):
                continue
            self.outcome.suspicions += 1
            test, threshold = self.judge.next_test()
            least = 0 if self.facts.probabilities else LONG_TEXT
            workload = up_to(scenario, number, CONTINUATION if self.facts.forces else least)
            calm = one_at_a_time(workload, self._slot)
            place = sum(step.do == "complete" for step in workload.step[:number])
            forms = [(workload, number), (calm, place)]
            suspicion = Suspicion(
                forms=forms if calm != workload else forms[:1],
                played=played,
                at=at,
                test=test,
                threshold=threshold,
                before=self._before,
                sent=self.target.dialect.connection.sent,
                until=self._until,
            )
            self._open.append(suspicion)
            found = len(self.outcome.findings)
            self._decide(suspicion)
            if self._over or len(self.outcome.findings) > found:
                return  # a proof restarts the server

    def _count(self, answer: Answer) -> None:
        self.outcome.compared += 1
        if self.outcome.reused is not None:
            self.outcome.reused += bool(answer.cached)

    def _decide(self, suspicion: Suspicion) -> None:
        """Replay a suspicious workload with other tokens; if it stays undecided, later again.

        A server that takes two buffers in turn may be wrong at each second reuse only, so half of
        the replays follow one reuse more.
        """
        test, seen, started = suspicion.test, suspicion.seen, self.meter.requests
        while test.value < suspicion.threshold and not test.dropped:
            form = suspicion.form
            if test.replays // len(suspicion.forms) % 2:
                text = self._text(self._longest, self._longest)
                for prompt in (text[:-1], text):
                    self.target.together([Query(prompt=prompt, reply=self._text(1, 1))])
            far = self._replayed(*suspicion.forms[form])
            if far is None:
                self._open.remove(suspicion)
                return
            seen.append(far)
            test.add(hit=far > self.judge.noise.limit)
            suspicion.hits[form] += far > self.judge.noise.limit
            if test.replays % BATCH == 0 and test.value < suspicion.threshold and not test.dropped:
                suspicion.resumes = 2 * self.meter.requests - started
                return
        self._open.remove(suspicion)
        if test.value < suspicion.threshold:
            self.outcome.note(
                f"a suspicion was not confirmed: {test.hits} of {test.replays} replays are off "
                f"by more than {self.judge.noise.limit:.2g}"
            )
            return
        played, at, workload = suspicion.played, suspicion.at, suspicion.forms[0][0]
        query, answer = played.queries[at], played.answers[at]
        hits = [distance for distance in seen if distance > self.judge.noise.limit]
        cached = "an unknown number" if answer.cached is None else str(answer.cached)
        off = f"off by {median(hits):.2g}"
        if math.isinf(median(hits)):
            off = "without a finite probability" if self.facts.probabilities else "another text"
        sentence = (
            f"an answer with {cached} of {len(query.prompt)} tokens cached is not the uncached "
            f"answer: {off} in {len(hits)} of {len(seen)} replays"
        )
        finding = self._found(
            "answer", sentence, evidence=test.value, distances=seen, scenario=workload
        )
        finding.hits, finding.replays = test.hits, test.replays
        finding.queries, finding.answers, finding.wrong = played.queries, played.answers, at
        finding.sent, finding.asked = suspicion.sent[: suspicion.until], query
        self._before = suspicion.before
        self._prove(finding, workload)

    def _replayed(self, scenario: Scenario, number: int) -> float | None:
        """The distance of one step in a replay; None where it no longer has an answer."""
        played = play(self.target, scenario, words_for(self.facts.words, self._chance))
        at = played.steps.index(number) if number in played.steps else -1
        if at < 0 or played.answers[at].error:
            return None
        cold = self.target.cold(played.queries[at])
        return None if cold.error else distance(cold, played.answers[at])

    def _found(
        self,
        kind: FindingKind,
        sentence: str,
        *,
        evidence: float = 0.0,
        distances: list[float] | None = None,
        scenario: Scenario | None = None,
    ) -> Finding:
        finding = Finding(
            kind=kind,
            sentence=sentence,
            requests=self.meter.requests,
            seconds=self.meter.seconds,
            evidence=evidence,
            distances=distances or [],
            scenario=scenario,
        )
        self.outcome.findings.append(finding)
        self._watch(self.outcome)
        return finding

    # -- what else may be wrong --------------------------------------------------------------------

    def _check_alive(self, played: Played, scenario: Scenario | None) -> bool:
        """False if the server no longer answers; one of ours is restarted."""
        fatal = [answer.error for answer in played.answers if answer.fatal]
        refused = [
            answer.error
            for answer in played.answers
            if answer.error and not answer.fatal and answer.error != DISCONNECTED
        ]
        self.outcome.refused.update(refused)
        answered, began = any(not answer.error for answer in played.answers), time.monotonic()
        requests, seconds = self.meter.requests, self.meter.seconds
        if (not fatal and (answered or not refused)) or self.target.answers():
            return True
        process = self.target.process
        how = (fatal or refused)[0]
        if any(answer.denied for answer in played.answers):
            raise BudgetError(how)
        if self.target.returns(began):
            self.outcome.note(f"the server answered no request for a time, then again: {how}")
            return False
        if process is not None and (status := process.death()) is not None:
            how = f"the process ended with status {status}{process.last_line()}"
        elif process is not None and process.last_line():
            how = f"{how}; its last output{process.last_line()}"
        more = " any more" if self.target.dialect.answered else ""
        sentence = f"the server answers no request{more}: {how}"
        finding = self._found("no answer", sentence, scenario=scenario)
        finding.requests, finding.seconds = requests, seconds  # before it was waited for
        finding.sent = list(self.target.dialect.connection.sent)
        finding.asked = played.queries[-1]
        finding.queries, finding.answers = played.queries, played.answers
        finding.wrong = len(played.queries) - 1
        if scenario is not None and self.target.restart():
            play(self.target, scenario, words_for(self.facts.words, self._chance))
            finding.proofs = (int(not self.target.answers()), 1)
            finding.fresh = finding.proofs[0] > 0
        first = next(finding for finding in self.outcome.findings if finding.kind == "no answer")
        if finding is not first:
            self._drop(finding, first)
        if not self._over:
            self.target.restart()
        return False

    # -- smaller -----------------------------------------------------------------------------------

    def _prove(self, finding: Finding, scenario: Scenario) -> None:
        """A smaller workload, its proof and its cause; the end of a finding that is known."""
        earlier = self.outcome.findings[:-1]
        try:
            proven = self._simplify(finding, scenario)
        except BudgetError as error:
            proven = True
            self.outcome.ended = f"{error} while the workload was made smaller"
            if self._smallest is not None:
                self._take(finding, self._smallest)
            elif self.target.process is None:
                self._simulate(finding, scenario)
        self._explain(finding)
        same = (e for e in earlier if e.kind != "no answer" and finding.causes <= e.causes)
        first = next(same, None)
        if first is None and not proven:  # nothing tells it from those before
            first = next((finding for finding in earlier if finding.kind != "no answer"), None)
        if first is not None:
            self._drop(finding, first)
            return
        self._open = [e for e in self._open if not self._repeated(e.before, *e.forms[0])]

    def _drop(self, finding: Finding, first: Finding) -> None:
        """Count a finding as a repetition of an earlier one."""
        self.outcome.findings.remove(finding)
        first.repeats += 1

    @property
    def _known(self) -> frozenset[Cause]:
        return frozenset[Cause]().union(*(finding.causes for finding in self.outcome.findings))

    def _explained(self, scenario: Scenario) -> frozenset[int]:
        """Steps that the causes of earlier findings make wrong in a simulated server."""
        known, server = self._known, self._explaining
        if not known or server is None:
            return frozenset()
        steps = server.causes(scenario).items()
        return frozenset(step for step, found in steps if found <= known)

    def _repeated(self, before: list[list[Query]], scenario: Scenario, number: int) -> bool:
        """True for a wrong answer that the causes of earlier findings explain; it is counted."""
        for back in SIMULATED if self._known else ():
            whole = after(before[-back:] if back else [], scenario, self.facts.words)
            if len(whole.step) - len(scenario.step) + number in self._explained(whole):
                self.outcome.findings[0].repeats += 1
                return True
        return False

    def _simplify(self, finding: Finding, scenario: Scenario) -> bool:
        """The smallest workload that is wrong from a fresh start, and its proof; False without."""
        self._smallest = None
        if not self.plan.shrinking:
            return True
        if self.target.process is None:
            self._fresh = self.outcome.fingerprint.ranked[:EXPLAINING]
        whole = self._from_fresh(finding, scenario)
        finding.fresh = whole is not None and bool(self.target.process or self._fresh)
        if whole is None and self._fresh:
            self._fresh = []
            whole = self._from_fresh(finding, scenario)
        if whole is None:
            self.outcome.note(
                "not wrong again from a fresh start: what the server was sent before has a part "
                "in it"
            )
            return False
        until = 0.9 * 60 * self.meter.limits.minutes  # the rest is for the proof
        ends = min(self.meter.seconds + self.plan.shrinking, until)
        plays = max(PROOFS, self._plays)

        def holds(each: Scenario) -> bool:
            affords = self.meter.left > (plays + self._plays) * (len(whole.step) + COMPARED)
            if self.meter.seconds > ends or not affords:
                return False
            if self._plays == 1:
                held = self._in_a_row(each)
            else:
                held = self._shows(each) and self._shows(each)  # once may be luck
            if held:
                self._smallest = self._last
            return held

        best = Shown(whole, Played(), [], (0, plays))
        for start in (shrink(whole, holds, trials=TRIALS), whole):
            shown = [proof for proof in (self._fresh_play(start) for _ in range(plays)) if proof[1]]
            if len(shown) > best.proofs[0]:
                best = Shown(start, *shown[0], (len(shown), plays))
            if len(shown) == plays:
                break
        self._take(finding, best)
        return True

    def _take(self, finding: Finding, shown: Shown) -> None:
        """Make a smaller workload that of the finding."""
        finding.scenario = shown.scenario
        finding.proofs = shown.proofs if self.target.process else (shown.proofs[0], 0)
        if shown.wrong:
            finding.queries, finding.answers = shown.played.queries, shown.played.answers
            finding.wrong, _, finding.cold = shown.wrong[-1]

    def _simulate(self, finding: Finding, scenario: Scenario) -> None:
        """Where the time is over: a workload that is wrong from a simulated fresh start, if any."""
        self._fresh = self.outcome.fingerprint.ranked[:SIMULATING]
        for back in SIMULATED if self._fresh else ():
            whole = after(self._before[-back:] if back else [], scenario, self.facts.words)
            for start in (one_at_a_time(whole, self._slot), whole):
                if self._closes or not self._simulated(start):
                    continue
                small = shrink(start, self._holds_simulated, trials=TRIALS)
                named = words_for(self.facts.words, self._chance)
                sent = [at for at, step in enumerate(small.step) if step.do == "complete"]
                finding.scenario, finding.fresh = small, True
                finding.queries = [query_of(small.step[at], named) for at in sent]
                finding.answers = [Answer() for _ in sent]
                finding.wrong = sent.index(max(self._simulated(small)))
                return

    def _holds_simulated(self, scenario: Scenario) -> bool:
        return not self._closes and bool(self._simulated(scenario))

    @property
    def _closes(self) -> bool:
        """True once the run has to end, with what it knows."""
        return time.monotonic() > self.meter.ends + LAST_SECONDS

    def _from_fresh(self, finding: Finding, scenario: Scenario) -> Scenario | None:
        """A workload that is wrong from a fresh start: if possible, one request at a time.

        Where slots are many, a fresh server gives each conversation its own; those that a used
        server had to replace meet again in one slot.
        """
        most = judging.plays_for(finding.hits / (finding.replays + 1))
        for back in BEFORE if len(self.outcome.findings) == 1 else SIMULATED:
            before = self._before[-back:] if back else []
            whole = after(before, scenario, self.facts.words)
            calm, self._plays = one_at_a_time(whole, self._slot), 1
            for start in (calm, whole) if calm != whole else (whole,):
                if (not self._fresh or self._simulated(start)) and self._in_a_row(start):
                    self._smallest = self._last
                    return start
            self._plays = most
            if most > 1 and self._shows(whole):
                self._smallest = self._last
                return whole
        return None

    def _in_a_row(self, scenario: Scenario) -> bool:
        return all(self._is_wrong(scenario, at) for at in range(IN_A_ROW))

    def _shows(self, scenario: Scenario) -> bool:
        return any(self._is_wrong(scenario, at) for at in range(self._plays))

    def _is_wrong(self, scenario: Scenario, earlier: int) -> bool:
        """One more play from a fresh start, after `earlier` of the same workload."""
        played, wrong = self._fresh_play(scenario)
        if wrong:
            last = self._last
            hits = last.proofs[0] if earlier and last and last.scenario is scenario else 0
            self._last = Shown(scenario, played, wrong, (hits + 1, earlier + 1))
        return bool(wrong)

    def _fresh_play(self, scenario: Scenario) -> tuple[Played, list[tuple[int, float, Answer]]]:
        self.target.restart()
        played = play(self.target, scenario, words_for(self.facts.words, self._chance))
        far = distances(self.target, played, COMPARED)
        wrong = [reply for reply in far if reply[1] > self.judge.noise.limit]
        if wrong and self._fresh:
            shown = self._simulated(scenario)
            wrong = [reply for reply in wrong if played.steps[reply[0]] in shown]
        known = self._explained(scenario) if wrong else frozenset()
        return played, [reply for reply in wrong if played.steps[reply[0]] not in known]

    def _simulated(self, scenario: Scenario) -> frozenset[int]:
        """Steps that are wrong from a fresh start in a simulated server."""
        return frozenset(step for candidate in self._fresh for step in candidate.causes(scenario))

    def _explain(self, finding: Finding) -> None:
        """Causes of the same wrong answer in the remaining simulated servers."""
        if finding.scenario is None:
            return
        found: dict[Cause, dict[str, None]] = {}
        known = self._known
        ranked = self.outcome.fingerprint.ranked
        flagged = {(candidate.model, candidate.flags): candidate for candidate in reversed(ranked)}
        for number, candidate in enumerate([*ranked[:EXPLAINING], *reversed(flagged.values())]):
            if (number >= EXPLAINING and found) or (number and self._closes):
                break
            steps = candidate.causes(finding.scenario)
            for cause in sorted(frozenset[Cause]().union(*steps.values()) - known):
                model = f"{candidate.model} {candidate.flags}".strip()
                found.setdefault(cause, {})[f"{candidate.profile} ({model})"] = None
                self._explaining = self._explaining or candidate
                finding.server = finding.server or candidate
        finding.causes = frozenset(found)
        finding.mechanism = [
            f"simulated {', '.join(who)}, not run on that release: {cause}"
            for cause, who in found.items()
        ]

    # -- drawing -----------------------------------------------------------------------------------

    @property
    def _longest(self) -> int:
        paged = min(2 * self.target.page + 8, self._context // 4) if self.target.page else 0
        return self.plan.longest or max(8, min(120, self._context // 8), paged)

    def _text(self, shortest: int, longest: int) -> tuple[Word, ...]:
        count = self._chance.randint(shortest, max(shortest, longest))
        return tuple(self._chance.choices(self.facts.words, k=count))

    def _draw(self, *, together: bool = True) -> Scenario:
        drawn = next(self._workloads(together=together))
        if not self._like or self._chance.random() < 0.5:
            return drawn
        return replace(drawn, step=self._chance.choice(self._like))

    def _workloads(self, *, together: bool) -> Iterator[Scenario]:
        """Workloads that have something to send."""
        slots = self.facts.parallel
        parallel = {"parallel": slots} if family_of(self._profile.engine).has_slots else {}
        page = self.target.page
        shape = Shape(
            flags=False,
            longest=self._longest,
            replies=LONG_REPLIES if not self.facts.probabilities else Shape().replies,
            edges=(*EDGES, *(3 * (page - 1, page, page + 1, 2 * page + 1) if page else ())),
            page=page,
            together=together and slots > 1,
            cancels=together,
            fixed=parallel,
        )
        while True:
            self._drawn += 1
            draws = Seeded(f"probe {self.plan.seed} {self._drawn}")
            model = self._chance.choice(self._guided).model if self._guided else "hybrid"
            drawn = draw_workload(draws, self._profile, model, shape, name=f"probe-{self._drawn}")
            if self.target.dialect.chat and together and not draws.integer(0, 1):
                drawn = replace(drawn, step=opened_together(draws, self._longest))
            declines = self.target.dialect.declines
            steps = tuple(
                replace(step, cache_prompt=step.cache_prompt or not declines)
                for step in drawn.step
                if (step.do == "cancel" and together)
                or (step.do == "complete" and step.ids and step.reply)
            )
            if not self.plan.repeats:
                steps = without_repeats(steps)
            if steps and steps[0].do == "complete":
                drawn = replace(drawn, step=steps)
                alone = self._slots > 1 and self._chance.random() < ONE_SLOT
                yield one_at_a_time(drawn, self._chance.randrange(slots)) if alone else drawn
