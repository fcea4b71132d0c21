"""The verdict of a run: sentences, a report that can be posted, the scenario, JSON."""

import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import CachesimError
from cachesim.files import free_name
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.runner import run
from cachesim.printable import printable
from cachesim.probe.answers import Answer, Query, Row, distance
from cachesim.probe.judging import MATERIAL, Judge
from cachesim.probe.outcome import Finding, Outcome
from cachesim.probe.target import PORT, Target
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Expect, Scenario
from cachesim.typed import JsonObject

SHOWN: Final = 5
"""Likeliest tokens of an answer in a report."""

UNSEEN: Final = 3.0
"""A fault in one of N answers shows in N answers with probability 0.63, in 3 N with 0.95."""

HEADS: Final = ("request", "prompt", "cached", "slot", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished run."""

    outcome: Outcome
    judge: Judge
    name: str  # the kind of server and its version
    url: str
    about: str
    how_cold: str
    requests: int
    tokens: int
    seconds: float
    alarms: float
    start: str = ""

    @property
    def right(self) -> bool:
        """True if nothing was wrong so far."""
        return self.outcome.finding is None

    @property
    def missing(self) -> tuple[str, ...]:
        """What a run without a finding lacked, so that it could not have found anything."""
        out, limit = self.outcome, self.judge.noise.limit
        if out.finding is not None:
            return ()
        lacks = []
        if out.reused == 0:
            lacks.append(
                f"no answer came from cache: the server reports 0 cached tokens for each of "
                f"{counted(out.compared, 'compared answer')}; its prompt cache is off, or keeps "
                "nothing that such prompts can reuse"
            )
        elif not out.searched and not out.plain:
            lacks.append(
                f"the run ended before an answer from cache was searched ({out.ended}): after "
                f"{counted(self.requests, 'request')} in {self.seconds:.0f} s, with "
                f"{counted(out.compared, 'answer')} compared; allow more with --minutes or "
                "--requests"
            )
        if lacks:
            return tuple(lacks)  # the rest is measured on answers from cache
        if out.apart <= limit:
            lacks.append(
                f"uncached answers to different prompts differ by at most {out.apart:.2g}, and an "
                f"answer is suspicious from {limit:.2g}: one of another conversation would pass"
            )
        if not self.judge.rarest():
            lacks.append(
                "rounding is beyond the limit so often that no replays could confirm a suspicion"
            )
        return tuple(lacks)

    @classmethod
    def of(cls, target: Target, outcome: Outcome, judge: Judge, alarms: float) -> "Result":
        """The result of a run that is over."""
        facts, meter = target.dialect.facts, target.dialect.connection.meter
        missing = [] if facts.probabilities else ["no log probabilities: greedy tokens alone"]
        missing += [] if facts.counts else ["no cached counts"]
        missing += [] if facts.forces else ["replies are not forced"]
        about = ", ".join(
            (
                *([] if facts.slots is None else [counted(facts.slots, "slot")]),
                *([] if facts.context is None else [f"{facts.context} tokens of context"]),
                f"prompts of {counted(len(facts.words), 'word')}",
                *missing,
            )
        )
        return cls(
            outcome=outcome,
            judge=judge,
            name=f"{target.dialect.name} {facts.version}".strip(),
            url=target.url,
            about=about,
            how_cold=target.how_cold,
            requests=meter.requests,
            tokens=meter.tokens,
            seconds=meter.seconds,
            alarms=alarms,
            start="" if target.process is None else target.process.command,
        )

    # -- sentences ---------------------------------------------------------------------------

    def head(self) -> Iterator[str]:
        """The server, its fingerprint and its rounding."""
        yield f"{self.name} at {self.url}: {self.about}"
        proven = ", equal to that of a fresh start" if self.outcome.proven_cold else ""
        yield f"uncached answers: {self.how_cold}{proven}"
        yield from self._fingerprint()
        if self.judge.noise.alone:
            yield rounding(self.judge)

    def _fingerprint(self) -> Iterator[str]:
        found = self.outcome.fingerprint
        if not found.first or not found.requests:
            return
        if not found.fresh:
            yield "the server was not restarted: earlier requests may have a part in its counts"
        after = f"after {counted(found.requests, 'request')}"
        if found.left:
            yield (
                f"counts: {len(found.left)} of {found.first} simulated servers explain them "
                f"{after}: {found.names()}"
            )
        else:
            why = found.unexplained
            yield f"counts: none of {found.first} simulated servers explains them: {why}"

    def verdict(self) -> Iterator[str]:
        for finding in self.outcome.findings:
            yield from self.wrong(finding)
        yield from self.rest()

    def rest(self) -> Iterator[str]:
        """The verdict of a right run, the bounds, and other observations."""
        out, sent = self.outcome, f"{counted(self.requests, 'request')}, {self.seconds:.1f} s"
        if out.finding is None:
            which = f"{out.reused} answers from cache, of {out.compared} compared,"
            if out.reused is None:
                which = f"{out.compared} answers, from cache or not,"
            but = ""
            if out.suspicions:
                but = f", except {out.suspicions} that replays did not confirm"
            if missing := self.missing:
                yield f"NOT TESTED: {'; '.join(missing)} ({sent})"
                which = f"what was compared: {which}"
            else:
                which = f"right so far: {which}"
            yield (
                f"{which} are the uncached answers within {self.judge.noise.limit:.2g}{but}"
                f" ({sent})"
            )
            if not missing and (power := out.compared if out.reused is None else out.reused):
                least = max(1, round(power / UNSEEN))
                replays = self.judge.rarest()
                again = f", and confirmed if one of {replays} replays shows it" if replays else ""
                yield (
                    f"power: a fault of more than {self.judge.noise.limit:.2g} in one of {least} "
                    f"such answers would have been met with probability 0.95{again}"
                )
        if out.finding is None or any(finding.evidence for finding in out.findings):
            yield (
                f"false alarms: at most 1 in {self.alarms:g} runs against a right server, if its "
                "rounding is within the measured bound"
            )
        if out.suspicions:
            yield f"suspicions that were replayed: {out.suspicions}"
        yield from out.notes
        yield from (f"refused {n} times: {why}" for why, n in out.refused.most_common(3))
        if out.ended:
            yield f"ended: {out.ended}"

    @staticmethod
    def wrong(finding: Finding) -> Iterator[str]:
        yield f"WRONG: {finding.sentence}"
        found = f"found after {counted(finding.requests, 'request')}, {finding.seconds:.1f} s"
        if finding.evidence:
            found += (
                f"; e-value {finding.evidence:.3g}: a right server reaches it in at most 1 of "
                f"{finding.evidence:.3g} runs"
            )
        yield found
        again, of = finding.proofs
        if of:
            yield f"again after a restart: {again} of {of}"
        yield from finding.mechanism
        if finding.repeats:
            yield f"later, not told from it by a cause: {counted(finding.repeats, 'wrong answer')}"

    @staticmethod
    def rows(finding: Finding) -> Iterator[tuple[str, ...]]:
        """The requests of a finding, one row each, as `HEADS` says."""
        pairs = zip(finding.queries, finding.answers, strict=False)
        for at, (query, answer) in enumerate(pairs):
            word = answer.error[:40] or ("WRONG" if at == finding.wrong else "")
            slot = "" if answer.slot is None else str(answer.slot)
            yield str(at + 1), str(len(query.prompt)), count(answer.cached), slot, word

    # -- files -------------------------------------------------------------------------------

    def write(self, folder: Path, target: Target) -> Iterator[Path]:
        """A report for each finding, and its scenario if there is one; their paths."""
        for finding in self.outcome.findings:
            folder.mkdir(parents=True, exist_ok=True)
            scenario = self.scenario(finding)
            path, command, sequence = None, "", None
            if scenario is not None:
                command = command_of(scenario)
            if scenario is not None and (command or _is_proven(finding)):
                path = free_name(folder / f"{scenario.name}.toml")
                path.write_text(to_toml(scenario), encoding="utf-8")
                yield path
            if finding.sent and not _is_proven(finding):
                sequence = free_name(folder / "sequence.sh")
                text = "\n".join(sequence_of(finding, target, sequence.name))
                sequence.write_text(f"{text}\n", encoding="utf-8")
                yield sequence
            report = free_name(folder / "report.md")
            lines = "\n".join(self._report(finding, target, path, command, sequence))
            report.write_text(f"{lines}\n", encoding="utf-8")
            yield report

    def scenario(self, finding: Finding) -> Scenario | None:
        """The workload of the finding, which expects the uncached answer."""
        if finding.scenario is None:
            return None
        shows, one = finding.server, finding.scenario
        shows = shows or next(iter(self.outcome.fingerprint.ranked), None)
        if shows is not None:
            profile, options = shows.profile, shows.options
            server = replace(
                one.engine, name=profile.engine, profiles=(profile.release,), options=options
            )
            model = replace(one.model, preset=shows.model)
            one = replace(one, engine=server, model=model)
        about = f"Found on a live server, {self.name}: {finding.sentence}."
        return replace(one, about=about, expect=(Expect(answer="same"),))

    def _report(
        self,
        finding: Finding,
        target: Target,
        scenario: Path | None,
        command: str,
        sequence: Path | None,
    ) -> Iterator[str]:
        yield f"# {self.name}: {_title(finding)}"
        yield ""
        yield from (f"- {line}" for line in (*self.head(), *self.wrong(finding), *self.rest()))
        yield ""
        if finding.queries and finding.wrong >= 0:
            yield from self._commands(finding, target)
        if sequence is not None:
            fresh = "seen with a simulated server, not with the real one"
            shown = f"a fresh server shows the fault after these lines alone is {fresh}"
            if not finding.fresh:
                shown = "a fresh server shows the fault after these lines alone was not seen"
            yield (
                f"That {shown}. `{sequence.name}` holds all "
                f"{counted(len(finding.sent), 'request')} that this server was sent up to the "
                "wrong answer, in their order. For a server that has just been started: "
                f"`URL={self.url} sh {sequence.name}`."
            )
            yield ""
        if scenario is not None and command:
            yield f"The same requests as a scenario, beside this: `{command}`, which fails."
        elif scenario is not None:
            yield (
                f"The same requests as a scenario, beside this: `{scenario.name}`. No simulated "
                "release answers them wrong, so that `cachesim run` of it passes."
            )

    def _commands(self, finding: Finding, target: Target) -> Iterator[str]:
        yield "| " + " | ".join(HEADS) + " |"
        yield "|---:|---:|---:|---:|---|"
        yield from ("| " + " | ".join(row) + " |" for row in self.rows(finding))
        yield ""
        fresh = "Against a server that has just been started"
        if not finding.fresh:
            fresh = "Against the server as it was: earlier requests may have a part in it"
        elif not self.start:
            fresh += ", where a simulated one is wrong (the real one was not restarted)"
        start = self.start.replace(PORT, self.url.rpartition(":")[2])
        yield f"{fresh}{f' (`{start}`)' if start else ''}:"
        yield ""
        yield "```sh"
        yield f"URL={self.url}"
        wrong = finding.queries[finding.wrong]
        beside = _sent_beside(finding)
        for at, query in enumerate(finding.queries):
            if at > finding.wrong and at not in beside:
                break
            yield target.dialect.curl(query) + (" &" if at + 1 in beside else "")
            if at in beside and at + 1 not in beside:
                yield "wait"
        yield f"# request {finding.wrong + 1} again, cold:"
        if target.dialect.cold_by:
            yield target.dialect.curl(wrong, cold=True)
        else:
            yield "URL=...  # of another server of the same model, which has just been started"
            yield target.dialect.curl(wrong)
        yield "```"
        yield ""
        if finding.cold is not None:
            warm, cold = finding.answers[finding.wrong], finding.cold
            place = _first_difference(warm, cold)
            yield f"The likeliest tokens at place {place + 1} of its reply:"
            yield ""
            yield "| from cache | log probability | cold | log probability |"
            yield "|---|---:|---|---:|"
            yield from _beside(warm, cold, place)
            yield ""

    def as_json(self) -> JsonObject:
        out, noise = self.outcome, self.judge.noise
        return {
            "format": 1,
            "server": {"name": self.name, "url": self.url, "about": self.about},
            "cold": self.how_cold,
            "cold_equals_fresh_start": self.outcome.proven_cold,
            "right": self.right,
            "missing": list(self.missing),
            "requests": self.requests,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "workloads": out.workloads,
            "compared": out.compared,
            "reused": out.reused,
            "suspicions": out.suspicions,
            "alarms": self.alarms,
            "limit": noise.limit,
            "noise": {"alone": noise.alone, "company": noise.company, "reuse": noise.reuse},
            "fingerprint": {
                "left": [str(candidate) for candidate in out.fingerprint.left],
                "first": out.fingerprint.first,
                "requests": out.fingerprint.requests,
                "unexplained": out.fingerprint.unexplained or None,
            },
            "finding": None if out.finding is None else finding_json(out.finding),
            "findings": [finding_json(finding) for finding in out.findings],
            "notes": out.notes,
            "refused": dict(out.refused),
            "ended": out.ended or None,
        }


def _is_proven(finding: Finding) -> bool:
    """True if the requests of a finding were wrong on a server that had just been started."""
    wrong, plays = finding.proofs
    return bool(wrong and plays)


def command_of(scenario: Scenario) -> str:
    """The command that runs a scenario and fails; empty if it passes in every arithmetic."""
    profile = Profile.parse(f"{scenario.engine.name}@{scenario.engine.profiles[0]}")
    flags: dict[ArithmeticName, str] = {"float": "", "ring": " --arithmetic ring"}
    for arithmetic, flag in flags.items():
        with suppress(CachesimError):
            if not run(scenario, profile, arithmetic=arithmetic).as_expected:
                return f"cachesim run {scenario.name}.toml{flag}"
    return ""


SEQUENCE: Final = """\
#!/bin/sh
# {count} that one server was sent, up to an answer that is not the uncached one:
# {sentence}
# Start a server with the same flags, then: URL={url} sh {name}
# Printed is that answer{cold}.
URL=${{URL:-{url}}}
send() {{ curl -so /dev/null -m "${{3:-{patience:g}}}" "$URL$1" {head} -d "$2"; }}
"""


def sequence_of(finding: Finding, target: Target, name: str) -> Iterator[str]:
    """A script of all requests up to the wrong answer; the last two of them print theirs."""
    dialect = target.dialect
    asked = "" if finding.asked is None else json.dumps(dialect.body(finding.asked, cold=False))
    last = max((at for at, sent in enumerate(finding.sent) if sent.content == asked), default=-1)
    yield SEQUENCE.format(
        count=counted(len(finding.sent), "request"),
        sentence=printable(finding.sentence),
        url=target.url,
        name=name,
        cold=", and then the uncached one" if dialect.cold_by else "",
        patience=dialect.connection.meter.limits.patience,
        head=dialect.head,
    ).rstrip()
    beside = [sent.beside for sent in finding.sent] + [False]
    for at, sent in enumerate(finding.sent):
        line = f"send {shlex.quote(sent.path)} {shlex.quote(sent.content)}"
        line += f" {sent.leaves:g}" if sent.leaves else ""
        if at == last and finding.asked is not None:
            line = dialect.curl(finding.asked)
        yield f"{line} &" if beside[at + 1] else line
        if beside[at] and not beside[at + 1]:
            yield "wait"
    if finding.asked is not None and dialect.cold_by:
        yield dialect.curl(finding.asked, cold=True)


def finding_json(finding: Finding) -> JsonObject:
    """A finding as JSON, with numbers and no text of a prompt."""
    pairs = zip(finding.queries, finding.answers, strict=False)
    return {
        "kind": finding.kind,
        "sentence": finding.sentence,
        "requests": finding.requests,
        "seconds": round(finding.seconds, 1),
        "evidence": finding.evidence,
        "hits": finding.hits,
        "replays": finding.replays,
        "distances": finding.distances,
        "after_restart": list(finding.proofs),
        "mechanism": finding.mechanism,
        "repeats": finding.repeats,
        "wrong": finding.wrong,
        "steps": [
            {
                "prompt_tokens": len(query.prompt),
                "cached": answer.cached,
                "slot": answer.slot,
                "error": answer.error or None,
            }
            for query, answer in pairs
        ],
    }


def rounding(judge: Judge) -> str:
    """The limit, and the measurements that it rests on."""
    noise = judge.noise
    samples = (noise.alone, noise.company, noise.reuse)
    alone, company, reuse = (
        f"{max(sample):.2g}" if sample else "not measured" for sample in samples
    )
    return (
        f"rounding: cold and cold differ by at most {alone}, in company {company}, plain reuse "
        f"{reuse} ({counted(len(noise.reuse), 'prompt')}); suspicious from {noise.limit:.2g}"
    )


def count(value: int | None) -> str:
    """A number of tokens, or a dash where it is not known."""
    return "-" if value is None else str(value)


def _title(finding: Finding) -> str:
    return {
        "answer": "an answer from cache is not the uncached answer",
        "reuse": "a plain extension is not answered as cold",
        "company": "a prompt beside others is not answered as alone",
        "no answer": "the server stops answering",
        "count": "more cached tokens are reported than there can be",
        "lost reuse": "fewer tokens are reused than the release's rules allow",
        "isolation": "an answer has what only another conversation said",
        "restart": "a restored conversation is not the saved one",
    }[finding.kind]


def _sent_beside(finding: Finding) -> frozenset[int]:
    """Requests that were sent at once with the one before."""
    steps = () if finding.scenario is None else finding.scenario.step
    sent = [step.with_previous for step in steps if step.do == "complete"]
    return frozenset(at for at, beside in enumerate(sent[: len(finding.queries)]) if beside)


def _first_difference(warm: Answer, cold: Answer) -> int:
    """The first place of the replies with another row of log probabilities; 0 without one."""
    for at in range(len(warm.rows)):
        one, other = (replace(answer, rows=answer.rows[: at + 1]) for answer in (warm, cold))
        if distance(one, other) > MATERIAL:
            return at
    return 0


def _beside(warm: Answer, cold: Answer, place: int) -> Iterator[str]:
    def likeliest(answer: Answer) -> list[tuple[str, str]]:
        row: Row = answer.rows[place] if place < len(answer.rows) else {}
        ranked = sorted(row.items(), key=lambda pair: -pair[1])[:SHOWN]
        return [(f"`{token}`", f"{p:.3f}") for token, p in ranked]

    for ours, theirs in zip(likeliest(warm), likeliest(cold), strict=False):
        yield f"| {' | '.join((*ours, *theirs))} |"


def line_of(number: int, seconds: float, query: Query, answer: Answer) -> JsonObject:
    """A line of the recording; words of the prompt are drawn, not the user's."""
    details = {} if answer.cached is None else {"cached_tokens": answer.cached}
    return {
        "number": number,
        "time": seconds,
        "prompt": list(query.prompt),
        "status": 200 if not answer.error else 0,
        "usage": {
            "prompt_tokens": answer.prompt_tokens or len(query.prompt),
            "completion_tokens": len(answer.tokens),
            "prompt_tokens_details": details,
        },
    }
