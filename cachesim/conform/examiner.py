"""One server with one model: fixed requests for each law, then the search of `probe`.

counts, isolation      from a fresh start, before any request without a cache
calibration            of `probe`: rounding, and whether an answer depends on what is cached
isolation, liveness, restart
answer, company, cancel     fixed requests, then drawn ones until the time is over
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final

from cachesim.conform.laws import LAWS, Verdict
from cachesim.conform.workloads import Case, cases
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import CachesimError, InputError
from cachesim.probe import judging
from cachesim.probe.answers import Answer, Query, Word, distance
from cachesim.probe.connection import Meter
from cachesim.probe.loop import Probe
from cachesim.probe.outcome import Finding, FindingKind, Outcome, Plan
from cachesim.probe.playing import Played, play, words_for
from cachesim.probe.profiles import Candidate, Fingerprint
from cachesim.probe.target import Target
from cachesim.scenario.format import Scenario, Step
from cachesim.testing.search import shrink

AGES: Final = 1, 16, 100
"""Tokens by which a state may be old: it has to show in the log probabilities."""

VISIBLE: Final = 10.0
"""Ratio of what a stale state moves to rounding, from which a model can be judged."""

COUNTED: Final = 40
"""Requests after one start that are compared with the simulated server."""

COUNTING: Final = 0.2
"""Share of the time for counts alone."""

UNLIKELY: Final = 16
"""Cached tokens beyond those that were sent, which no earlier client can have sent by chance."""

TRIALS: Final = 25
"""Simplifications of requests whose count differs, a start of the server each."""

AGAIN: Final = 3
"""Plays in a row that show a violation which is no matter of rounding."""

LONGEST: Final = 8192
"""Tokens of a context that is filled, to see what the server does beyond it."""

SAVED: Final = 20, 120, 400
"""Tokens of saved conversations."""

SEARCHED: Final = ("answer", "company", "cancel")
"""Laws that `probe` searches."""


class Examiner(Probe):
    """A probe that holds a server against every law."""

    def __init__(
        self,
        target: Target,
        meter: Meter,
        plan: Plan,
        watch: Callable[[Outcome], None],
        *,
        laws: Sequence[str],
        named: Callable[[], list[Candidate]] | None = None,
    ) -> None:
        """`named`: new simulated servers of the same release, model and flags, if known; one for
        each way to lay out slots that the server does not tell.
        """
        super().__init__(target, meter, plan, watch)
        self.verdicts = {law: Verdict(law=law) for law in LAWS if law in laws}
        if "restart" in self.verdicts and not target.dialect.slot_files:
            why_not = f"{target.dialect.name} has no request that saves a conversation"
            self.verdicts["restart"].why_not = why_not
        self._named = named
        self._uncached = ""  # why there is no uncached answer
        self._asking = True  # fixed requests are sent, all of them whatever is found
        self._blank = replace(self._draw(together=False), step=())

    @property
    def _over(self) -> bool:
        if not self._asking:
            return super()._over
        dead = any(finding.kind == "no answer" for finding in self.outcome.findings)
        return dead and self.target.process is None

    def examine(self) -> list[Verdict]:
        """The verdict on each law."""
        stopped = ""
        try:
            self.run()
        except CachesimError as error:
            stopped = str(error)
            judged = any(verdict.requests for verdict in self.verdicts.values())
            if isinstance(error, InputError) and not judged:
                raise
        for finding in self.outcome.findings:
            law = law_of(finding)
            if law in self.verdicts:
                self.verdicts[law].findings.append(finding)
        for law, verdict in self.verdicts.items():
            if law in SEARCHED:
                verdict.missing = verdict.missing or self._uncached
                if self.outcome.reused == 0:
                    verdict.missing = verdict.missing or "no answer came from cache"
            if not verdict.requests:
                verdict.missing = verdict.missing or stopped or self.outcome.ended
            elif law == "isolation" and stopped:
                verdict.notes.append(f"reports of cached tokens alone: {stopped}")
        return list(self.verdicts.values())

    # -- from a fresh start ------------------------------------------------------------------------

    def _identify(self) -> None:
        if self._named is None:
            super()._identify()  # before any request of another kind, which its counts would feel
        else:
            self._guided = self._named()
            self.outcome.fingerprint = Fingerprint(self._guided, first=len(self._guided))
        if "isolation" in self.verdicts:
            self._ask_for_no_reuse()
        if self.verdicts.keys() & {"count", "lost-reuse"}:
            self._count_all()

    def _count_all(self) -> None:
        """Hold cached counts against what was sent, and against the simulated server."""
        count, lost = (self.verdicts.get(law) for law in ("count", "lost-reuse"))
        if not self.facts.counts:
            for verdict in filter(None, (count, lost)):
                verdict.missing = "the server reports no cached tokens"
            return
        fresh = self.target.process is not None or self.target.restart()
        if lost is not None and not (self._named and fresh):
            lost.missing = (
                "what may be reused depends on release, model and flags: name them with"
                " --profile, --model and --set, and the server with --start"
            )
        if count is not None and not (self._named and fresh):
            count.notes.append(
                "compared with what was sent alone: no simulated server was named, or the server"
                " was not started for this"
            )
        ends = self.meter.seconds + COUNTING * 60 * self.meter.limits.minutes
        for number, steps in enumerate(self._in_turn()):
            if number and self.meter.seconds > ends:
                break
            scenario = replace(self._blank, name="count", step=steps)
            played, wrong = self._miscounted(scenario)
            if not self._check_alive(played, scenario):
                return
            compared = sum(answer.cached is not None for answer in played.answers)
            for judged in (count, lost):
                if judged is not None and not judged.missing:
                    judged.requests += compared
            if wrong is not None:
                kind: FindingKind = "lost reuse" if wrong.lost else "count"
                broken = lost if wrong.lost else count
                if broken is not None and not broken.findings:
                    self._prove_count(scenario, kind, broken)

    def _in_turn(self) -> Iterator[tuple[Step, ...]]:
        """Requests one at a time, as many as one start of the server answers."""
        most = min(self._context // 2, 800)
        drawn = (self._draw(together=False).step for _ in range(1000))
        texts = (steps for _, steps in cases(("answer", "isolation"), most, self.target.page))
        held: tuple[Step, ...] = ()
        for steps in (*texts, *islice(drawn, 20)):
            held += steps
            if len(held) >= COUNTED:
                yield tuple(replace(step, name=f"r{at}") for at, step in enumerate(held))
                held = ()

    def _miscounted(self, scenario: Scenario) -> "tuple[Played, Miscount | None]":
        """A play from a fresh start if possible, and its first impossible count."""
        fresh = self.target.restart()
        played = play(self.target, scenario, words_for(self.facts.words, self._chance))
        simulated = self._named() if self._named is not None and fresh else []
        sent: list[tuple[Word, ...]] = []
        for at, (query, answer) in enumerate(zip(played.queries, played.answers, strict=True)):
            wrong = None
            if simulated and not answer.error:
                wrong = self._differs(simulated, query, answer)
            elif answer.cached is not None and self.target.dialect.by_ids:
                most = max((get_common_prefix(each, query.prompt) for each in sent), default=0)
                if answer.cached >= most + (1 if fresh else UNLIKELY):
                    wrong = f"of which {most} were sent before", False
            if wrong is not None:
                size = answer.prompt_tokens or len(query.prompt)
                said = f"{answer.cached} of {size} tokens are reported as cached, {wrong[0]}"
                return played, Miscount(at, said, lost=wrong[1])
            sent.append(query.prompt + answer.tokens)
        return played, None

    def _differs(
        self, simulated: list[Candidate], query: Query, answer: Answer
    ) -> tuple[str, bool] | None:
        """A count that no simulated server reports, and whether theirs are all larger.

        Those that report another count are taken from the list, as long as one is left.
        """
        numbers = self.outcome.fingerprint.numbered(query.prompt, query.reply, answer.tokens)
        told = [candidate.counts(query, numbers, answer) for candidate in simulated]
        counts = {count for found in told for count in found if isinstance(count, int)}
        if answer.cached is None or not counts:
            return None
        if answer.cached not in counts:
            who, many = simulated[-1], " or ".join(map(str, sorted(counts)))
            return f"where simulated {who} reports {many}", answer.cached < min(counts)
        pairs = zip(list(simulated), told, strict=True)
        simulated[:] = [candidate for candidate, found in pairs if answer.cached in found]
        return None

    def _prove_count(self, scenario: Scenario, kind: FindingKind, verdict: Verdict) -> None:
        """The smallest requests whose count differs in each play."""
        lost = kind == "lost reuse"
        ends = self.meter.seconds + COUNTING * 60 * self.meter.limits.minutes

        def holds(scenario: Scenario) -> bool:
            if self.meter.seconds > ends:
                return False
            wrong = self._miscounted(scenario)[1]
            return wrong is not None and wrong.lost == lost

        small = shrink(scenario, holds, trials=TRIALS)
        shown = [self._miscounted(small) for _ in range(AGAIN)]
        kept = [(played, wrong) for played, wrong in shown if wrong and wrong.lost == lost]
        if len(kept) < AGAIN:
            verdict.notes.append("a count differed, and not in each of its repetitions")
            return
        played, wrong = kept[0]
        self._violates(
            verdict, kind, wrong.said, Shown(played, wrong.at, (AGAIN, AGAIN), scenario=small)
        )

    def _ask_for_no_reuse(self) -> None:
        """A request with a key of its own, or that leaves the cache out, reports nothing cached."""
        verdict, dialect = self.verdicts["isolation"], self.target.dialect
        if not dialect.cold_by or not self.facts.counts:
            return
        seen: list[tuple[Query, Answer]] = []
        for size in (80, 200, 400):
            prompt = self._text(min(size, self._context // 2), min(size, self._context // 2))
            query = Query(prompt=prompt, reply=self._text(2, 2))
            for cold in (False, True, True):
                answer = dialect.answer(query, cold=cold)
                verdict.requests += not answer.error
                if cold and answer.cached:
                    seen.append((query, answer))
        if len(seen) >= AGAIN:
            query, answer = seen[-1]
            said = (
                f"{answer.cached} of {len(query.prompt)} tokens are reported as cached for a"
                f" request with {dialect.cold_by}"
            )
            shown = Shown(Played([query], [answer], [0]), 0, (len(seen), 2 * AGAIN))
            self._violates(verdict, "isolation", said, shown)
            self._uncached = f"there is no uncached answer to compare with: {said}"

    # -- the rest ----------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        if not self._uncached:
            super()._calibrate()
            self._check_that_states_show()

    def _check_that_states_show(self) -> None:
        """Refuse a model whose answers hardly depend on what a cache may hold wrongly."""
        noise = self.judge.noise
        believed = [each for each in noise.reuse if each < judging.ERROR]
        rounding = max([*noise.alone, *believed, judging.MATERIAL / VISIBLE])
        for age in AGES:
            if age + 8 > self._context // 2:
                continue
            moved = 0.0
            for _ in range(AGAIN):
                prompt, other = self._text(age + 8, age + 8), self._text(age, age)
                answers = [
                    self.target.cold(Query(prompt=text, reply=prompt[:2]))
                    for text in (prompt, prompt[: 8 - 1] + other + prompt[-1:])
                ]
                moved = max(moved, distance(*answers))
            if moved < VISIBLE * rounding and self.facts.probabilities:
                raise InputError(
                    f"{self.target.url}: other tokens in the last {age} of a prompt move the log"
                    f" probabilities by {moved:.2g} at most, and rounding alone by {rounding:.2g}:"
                    " a stale answer of this model would pass, so nothing can be certified"
                )

    def _search(self) -> None:
        for law, ask in (
            ("isolation", self._look_for_leaks),
            ("liveness", self._strain),
            ("restart", self._save_and_restore),
        ):
            if (
                law in self.verdicts
                and not self._over
                and (law == "liveness" or not self._uncached)
            ):
                ask(self.verdicts[law])
        searched = [law for law in SEARCHED if law in self.verdicts]
        if self._uncached or not searched:
            return
        for name, steps in self._fixed(searched):
            if self._over:
                return
            self._send(replace(self._blank, name=name, step=steps))
            while self._open and self.meter.requests >= self._open[0].resumes:
                self._decide(self._open[0])
        self._asking = False
        super()._search()

    def _fixed(self, laws: Sequence[str]) -> Iterator[Case]:
        alone = self.facts.parallel < 2
        kept = [law for law in laws if not (law == "company" and alone)]
        for name, steps in cases(kept, min(self._context // 2, 1000), self.target.page):
            yield name, steps
            if self._slot >= 0 and law_of_steps(steps) == "answer":  # conversations meet there
                yield name, tuple(replace(step, slot=self._slot) for step in steps)

    def _compare(self, scenario: Scenario, played: Played) -> None:
        before = self.outcome.compared
        super()._compare(scenario, played)
        law = law_of_steps(scenario.step)
        if law in self.verdicts:
            self.verdicts[law].requests += self.outcome.compared - before

    def _look_for_leaks(self, verdict: Verdict) -> None:
        """Two conversations part at a text; the second is not answered with that of the first.

        A    rules | one   | ask          what leaks: the answer is that of A's tokens, or of
        B    rules | other | text ...     the first of them and B's rest
        B    rules | other | ask
        """
        for (far, most), slot in product(((2, 600), (8, 60), (60, 250)), sorted({-1, self._slot})):
            long = min(most, self._context // 2)
            shown = [self._leak(far, long, slot) for _ in range(AGAIN)]
            verdict.requests += 4 * AGAIN
            leaks = [one for one in shown if one is not None]
            if len(leaks) == AGAIN:
                played, cold, said = leaks[0]
                proof = Shown(played, 3, (AGAIN, AGAIN), cold=cold)
                self._violates(verdict, "isolation", said, proof)
                return

    def _leak(self, far: int, long: int, slot: int) -> tuple[Played, Answer, str] | None:
        rules, ask = self._text(6, 6), self._text(2, 2)
        one, other = self._text(far + 1, far + 1), self._text(far, far)
        prompts = (rules, rules + one + ask, rules + other + self._text(long, long))
        queries = [
            Query(prompt=prompt, reply=self._text(1, 1), slot=slot)
            for prompt in (*prompts, rules + other + ask)
        ]
        played = Played(queries, [self.target.together([query])[0] for query in queries], [])
        last, warm = queries[-1], played.answers[-1]
        cold = self.target.cold(last)
        if warm.error or cold.error or distance(warm, cold) <= self.judge.noise.error:
            return None
        first = get_common_prefix(prompts[1], last.prompt)
        for taken in range(first + 1, min(first + far, len(last.prompt) - 2) + 1):
            mixed = replace(last, prompt=prompts[1][:taken] + last.prompt[taken:])
            if distance(warm, self.target.cold(mixed)) <= self.judge.noise.limit:
                said = (
                    f"the answer to {len(last.prompt)} tokens is that of a prompt with"
                    f" {taken - first} tokens of another conversation in it"
                )
                return played, cold, said
        return None

    def _strain(self, verdict: Verdict) -> None:
        """Requests that servers stop at, each answered or refused."""
        for name, groups in self._straining():
            if self._sent_well(groups):
                verdict.requests += sum(map(len, groups))
                continue
            again = 0
            for _ in range(AGAIN if self.target.process is not None else 0):
                self.target.restart()
                again += not self._sent_well(groups)
            if again == AGAIN or not self.target.answers():
                said = f"a request stays without an answer, or the server stops: {name}"
                process = self.target.process
                if process is not None and process.death() is not None:
                    said += f"; its last output{process.last_line()}"
                queries = [query for group in groups for query in group]
                errors = [Answer(error="no answer") for _ in queries]
                proof = Shown(Played(queries, errors, []), len(queries) - 1, (again, AGAIN))
                self._violates(verdict, "no answer", said, proof)
                if not self.target.restart():
                    return

    def _straining(self) -> Iterator[tuple[str, list[list[Query]]]]:
        def ask(size: int, reply: int = 2, leaves: float = 0.0) -> Query:
            return Query(
                prompt=self._text(size, size) if size else (),
                reply=self._text(reply, reply),
                leaves=leaves,
            )

        yield "a prompt of one token", [[ask(1)], [ask(1)]]
        same = ask(1)
        yield "the same token again", [[same], [same], [same]]
        yield "an empty prompt", [[ask(0)], [ask(8)]]
        if self._context <= LONGEST:
            yield "a prompt as long as the context", [[ask(self._context - 2, 1)], [ask(8)]]
            yield "a prompt longer than the context", [[ask(self._context + 8)], [ask(8)]]
            yield "a reply beyond the context", [[ask(self._context - 8, 32)], [ask(8)]]
        many = min(self.meter.limits.in_flight, 2 * self.facts.parallel + 2)
        yield "many requests at once", [[ask(300) for _ in range(many)], [ask(8)]]
        gone = ask(500, 16, 0.01)
        yield "a client that leaves at once", [[gone], [replace(gone, leaves=0.0)]]
        yield "many that leave", [[ask(400, 16, 0.02) for _ in range(many)], [ask(8)]]

    def _sent_well(self, groups: Sequence[Sequence[Query]]) -> bool:
        """True if each request is answered or refused, and the server answers afterwards."""
        answers = [answer for group in groups for answer in self.target.together(group)]
        lost = [one for one in answers if one.fatal and "answered with status" not in one.error]
        return not lost and self.target.answers()

    def _save_and_restore(self, verdict: Verdict) -> None:
        """Save a slot to a file, start again, restore it, and go on with its conversation."""
        if verdict.why_not:
            return
        if not self.target.may_erase:
            verdict.missing = "a slot is emptied for it: add --may-erase, or use --start"
            return
        for size in SAVED:
            seen = [self._restored(min(size, self._context // 4), at) for at in range(AGAIN)]
            if (refused := next((one for one in seen if isinstance(one, str)), None)) is not None:
                verdict.why_not = f"slots are not saved: {refused}"
                return
            verdict.requests += len(seen)
            # Releases that need a checkpoint, which no slot file holds, prefill such a conversation
            # again: the answer is right, so it is no violation.
            unused = [
                one for one in seen if not isinstance(one, str) and one[0].answers[1].cached == 0
            ]
            if len(unused) == AGAIN:
                verdict.notes.append(f"a restored conversation of {size} tokens is prefilled again")
            wrong = [one for one in seen if not isinstance(one, str) and one[2]]
            if len(wrong) == AGAIN and not isinstance(wrong[0], str):
                played, cold, said = wrong[0]
                proof = Shown(played, 1, (AGAIN, AGAIN), cold=cold)
                self._violates(verdict, "restart", said, proof)
                return

    def _restored(self, size: int, at: int) -> tuple[Played, Answer, str] | str:
        """The conversation before and after, its uncached answer, and what is wrong with it."""
        dialect, name = self.target.dialect, f"cachesim-{size}-{at}.bin"
        first = Query(prompt=self._text(size, size), reply=self._text(2, 2), slot=0)
        said = self.target.together([first])[0]
        if refused := said.error or dialect.slot_file("save", 0, name):
            return refused
        self.target.restart()
        if refused := dialect.slot_file("restore", 0, name):
            return refused
        last = Query(prompt=first.prompt + said.tokens, reply=self._text(3, 3), slot=0)
        last = replace(last, prompt=last.prompt + self._text(4, 4))
        warm, cold = self.target.together([last])[0], self.target.cold(last)
        wrong = ""
        if warm.error:
            wrong = f"a restored conversation is not continued: {warm.error}"
        elif (far := distance(warm, cold)) > self.judge.noise.error:
            wrong = f"the answer after a restored slot is not the uncached answer: off by {far:.2g}"
        return Played([first, last], [said, warm], []), cold, wrong

    def _violates(self, verdict: Verdict, kind: FindingKind, sentence: str, shown: "Shown") -> None:
        scenario = shown.scenario
        finding = Finding(
            kind=kind,
            sentence=sentence,
            requests=self.meter.requests,
            seconds=self.meter.seconds,
            scenario=scenario,
            queries=shown.played.queries,
            answers=shown.played.answers,
            wrong=shown.at,
            cold=shown.cold,
            proofs=shown.proofs,
            fresh=self.target.process is not None,
        )
        verdict.findings.append(finding)
        self._watch(self.outcome)


@dataclass(frozen=True, slots=True)
class Miscount:
    """The request whose count cannot be, and whether it is too small."""

    at: int
    said: str
    lost: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """The requests that show a violation, the wrong one, and how often they did."""

    played: Played
    at: int
    proofs: tuple[int, int]
    cold: Answer | None = None
    scenario: Scenario | None = None


def law_of_steps(steps: Sequence[Step]) -> str:
    """The law that a workload asks for."""
    if any(step.do == "cancel" for step in steps):
        return "cancel"
    return "company" if any(step.with_previous for step in steps) else "answer"


def law_of(finding: Finding) -> str:
    """The law that a finding of the search violates, by its smallest workload."""
    if finding.kind == "no answer":
        return "liveness"
    if finding.kind == "company":
        return "company"
    return law_of_steps(finding.scenario.step if finding.scenario else ())
