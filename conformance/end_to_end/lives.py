"""The reused tokens of server lives: as `cachesim why` returns them, and as clients were answered.

    python -m conformance.end_to_end.lives --seed N --lives N [--flags] [--together] [--uncached]
                                           [--keep FOLDER]

Every life is new: seeds that no other test draws. The log goes through the installed program,
without a flag, or with the flags that the server's user set (`--flags`). With `--together` one
command line reads all logs of a release at one verbosity, which plays none of them on other servers
and takes a quarter of the time.

The table compares with the clients. Below it, for each level: the requests that the replay
reproduces, of all that a slot took; one whose reuse is unknown is not reproduced. With `--uncached`
the requests go to a fresh server too, one by one and with `cache_prompt: false`: a reply that
differs there is a wrong answer, and `why` has to name its request.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any, Final

from cachesim.prove.llama_cpp.server import environment_for
from conformance.end_to_end.client import Answer
from conformance.end_to_end.life import BUSY, DEFAULT, PRINTING, Life, Lives, releases, shares
from conformance.end_to_end.program import Ran, load, run

TIME, PROMPT, SLOT, CACHED = 300, 100, 10, 1
"""Weight of an equal number when answers are paired with a log's requests."""

CENTIMILLI: Final = 0.006
"""Milliseconds by which a printed time of two decimals may differ."""

LOADS: Final = b"load_model: loading model '"
"""A line that a server prints once, at its start."""

MANY: Final = 1000
"""More groups than one life has."""

ROUNDING: Final = 0.02
"""Difference of two logarithms of probabilities that batches of other sizes may reverse."""

LIKELY: Final = 12
"""Places in a log that are followed up at once."""

Request = dict[str, Any]
Pair = tuple[Answer, Request | None]


def paired(answers: Sequence[Answer], requests: Sequence[Request]) -> list[Pair]:
    """Each answer with its request in the log, in order of launch.

    Answers of one group went out together, so their order is open; a request that was refused, or
    given up before any slot took it, may be missing from the log. Further completions of a prompt
    have requests of their own there, and are in their parent's answer.
    """
    requests = [request for request in requests if request.get("parent") is None]
    groups: dict[int, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.group, []).append(answer)
    best: dict[int, tuple[int, list[Pair]]] = {0: (0, [])}
    for group in groups.values():
        grown: dict[int, tuple[int, list[Pair]]] = {}
        for at, (score, pairs) in best.items():
            for taken in range(min(len(group), len(requests) - at) + 1):
                more, found = _placed(group, requests[at : at + taken])
                if at + taken not in grown or score + more > grown[at + taken][0]:
                    grown[at + taken] = score + more, pairs + found
        likely = sorted(grown, key=lambda at: grown[at][0], reverse=True)[:LIKELY]
        best = {at: grown[at] for at in likely}
    return max(best.values(), key=lambda each: each[0])[1]


def _placed(group: Sequence[Answer], requests: Sequence[Request]) -> tuple[int, list[Pair]]:
    """The best order of a few answers on as many requests or fewer."""
    places = [*requests, *[None] * (len(group) - len(requests))]
    found = []
    for order in permutations(range(len(places))):
        pairs = [(answer, places[at]) for answer, at in zip(group, order, strict=True)]
        found.append((sum(worth(*pair) for pair in pairs), pairs))
    return max(found, key=lambda each: each[0])


def worth(answer: Answer, request: Request | None) -> int:
    """The fit of an answer to a request of the log."""
    if request is None:
        return -PROMPT if answer.was_launched else 0
    if answer.prompt is None:  # an embedding, for one, has no counts
        fits = 0
    elif request["prompt_tokens"] is None:
        fits = 0 if answer.was_launched or answer.cancelled or answer.status >= 400 else -PROMPT
    else:
        fits = PROMPT if request["prompt_tokens"] == answer.prompt else -PROMPT
    seconds = request.get("seconds")  # of two requests with the same counts the time is another
    if answer.prompt_ms is not None and seconds is not None:
        fits += TIME * (abs(answer.prompt_ms - 1000 * seconds) <= CENTIMILLI)
    same_slot = answer.slot is not None and answer.slot == request["slot"]
    return fits + SLOT * same_slot + CACHED * bool(request["cached"] == answer.cached)


@dataclass(slots=True)
class Tally:
    """Counts of the program's numbers that equal the server's."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)  # by kind of life
    told: list[str] = field(default_factory=list)  # lives with requests that are not reproduced
    answers: list[str] = field(default_factory=list)  # wrong ones

    def add_replay(self, life: Life, found: dict[str, Any]) -> list[str]:
        """Count the requests that the replay reproduces; a line for those that it does not.

        Of some the log has no count: the client left, or it was an embedding. The client's own is
        taken then. Where it has none either, as after an error, there is nothing to reproduce.
        """
        answers = {
            request["number"]: answer
            for answer, request in paired(life.answers, found["requests"])
            if request is not None
        }
        names: dict[str, list[int]] = {"differing": [], "unknown": []}
        for request in found["requests"]:
            parent = request["number"] if request["parent"] is None else request["parent"]
            answer, own = answers.get(parent), request["replayed"]["cached"]
            truth = None if answer is None else answer.cached
            if request["refused"]:
                continue
            agrees = request["agrees"]
            if agrees is None:
                self.counts["without a count in the log"] += 1
                agrees = None if truth is None else truth == own
            if agrees is None and (answer is None or truth is None):
                self.counts["without any count"] += 1
                continue
            self.counts["taken"] += 1
            self.counts["reproduced"] += bool(agrees)
            if not agrees:
                kind = "unknown" if request["agrees"] is None else "differing"
                self.counts[kind + " to the replay"] += 1
                names[kind].append(request["number"])
        told = [f"{name} {numbers}" for name, numbers in names.items() if numbers]
        if told:
            about = f"{life.name} ({', '.join(life.kinds)}; {life.preset})"
            self.told.append(f"{about}: {', '.join(told)}")
        return told

    def add_uncached(
        self, life: Life, alone: Sequence[Answer], column: "Column", stated: dict[str, Any]
    ) -> list[str]:
        """Count the wrong answers of a server, and those that `why` names (`stated`: what it says
        by the log's lines and counts alone).
        """
        # An uncached run that did not answer in time says nothing of the reply.
        both = [pair for pair in zip(life.answers, alone, strict=True) if pair[1].text]
        unlike = any(one.prompt != lone.prompt for one, lone in both if one.prompt and lone.prompt)
        if unlike and BUSY not in life.kinds:  # counts of an overwritten slot are another prompt's
            raise ValueError(f"{life.name}: the uncached server got another prompt")
        gaps = {id(answer): parting(answer.text, lone) for answer, lone in both}
        self.counts["replies"] += sum(bool(answer.text) for answer, _ in both)
        told = []
        accused = {number for finding in stated["wrong"] for number in finding["requests"]}
        for answer, request in paired(life.answers, stated["requests"]):
            if request is None or not answer.text or id(answer) not in gaps:
                continue  # a client that left, or got no answer at all
            if request["number"] in accused and gaps[id(answer)] is None:
                self.counts["sound, and named"] += 1
                told.append(f"request {request['number']} is named, and its reply is the same")
        about = f"{life.name} ({', '.join(life.kinds)}; {life.preset})"
        self.answers += [f"{about}: {each}" for each in told]
        if not any(gap is not None for gap in gaps.values()):
            return told
        found = json.loads(reading([life], column, whole=True).out)
        named = {
            number: finding["scenario"] or "without a scenario"
            for finding in found["wrong"]
            for number in finding["requests"]
        }
        wrong = []
        for answer, request in paired(life.answers, found["requests"]):
            gap = gaps.get(id(answer))
            number = None if request is None else request["number"]
            if gap is None:
                continue
            name = named.get(-1 if number is None else number)
            kind = "wrong answers" if gap > ROUNDING else "rounded otherwise"
            self.counts[kind] += 1
            self.counts[f"{kind}, named"] += name is not None
            wrong.append(f"request {number} differs by {gap:.3f}: {name or 'not named'}")
        self.answers += [f"{about}: {each}" for each in wrong]
        return told + wrong

    def add(self, life: Life, ran: Ran, pairs: Sequence[Pair] = ()) -> list[str]:
        """Count one life; a line for each request that differs."""
        counts = self.counts
        counts["lives"] += 1
        counts["status 3"] += ran.status == 3
        if ran.status != 0:
            counts["status not 0"] += 1
            self.wrong[f"status {ran.status}"] += 1
            counts["requests"] += sum(each.was_launched for each in life.answers)
            return [f"status {ran.status}: {ran.err.strip()[-300:]}"]
        told = []
        for answer, request in pairs or paired(life.answers, json.loads(ran.out)["requests"]):
            if not answer.was_launched:
                continue
            counts["requests"] += 1
            found = None if request is None else request["cached"]
            counts["equal"] += found == answer.cached
            counts["unknown"] += found is None
            if found != answer.cached:
                said = "no such request"
                if request is not None:
                    known = request.get("known", {}).get("cached")
                    said = (
                        f"request {request['number']} cached {request['cached']} ({known}) of "
                        f"{request['prompt_tokens']}"
                    )
                left = ", client left" if answer.cancelled else ""
                told.append(
                    f"{said}; the server answered {answer.cached} of {answer.prompt}"
                    f" (slot {answer.slot}, group {answer.group}{left})"
                )
        if told:
            self.wrong.update(life.kinds)
        return told

    def merge(self, other: "Tally") -> None:
        """Add another one's counts."""
        self.counts.update(other.counts)
        self.wrong.update(other.wrong)
        self.told += other.told
        self.answers += other.answers

    def summary(self, verbosity: int) -> Iterator[str]:
        """Shares of what is reproduced, and the names of what is not."""
        counts = self.counts
        taken = counts["taken"]
        share = 100 * counts["reproduced"] / max(1, taken)
        yield (
            f"-lv {verbosity}: the replay reproduces {counts['reproduced']:,} of {taken:,} "
            f"requests ({share:.1f} %); {counts['differing to the replay']} differ from the log, "
            f"{counts['unknown to the replay']} from the client where the log has no count; it has "
            f"none of {counts['without a count in the log']}, and of "
            f"{counts['without any count']} of these no client has one either"
        )
        yield from (f"  {each}" for each in self.told)
        if counts["replies"]:
            yield (
                f"-lv {verbosity}: {counts['wrong answers']} wrong answers of "
                f"{counts['replies']:,}, {counts['wrong answers, named']} of them named; "
                f"{counts['rounded otherwise']} more may be rounded otherwise; "
                f"{counts['sound, and named']} named whose replies are the same"
            )
            yield from (f"  {each}" for each in self.answers)

    def row(self, name: str) -> str:
        """The table's line."""
        counts = self.counts
        share = 100 * counts["equal"] / max(1, counts["requests"])
        wrong = counts["requests"] - counts["equal"] - counts["unknown"]
        return (
            f"{name:22} {counts['lives']:6,} {counts['requests']:8,} {counts['equal']:8,} "
            f"{share:7.2f} % {counts['unknown']:8,} {wrong:7,} {counts['status 3']:8,} "
            f"{counts['status not 0']:8,}"
        )


HEAD: Final = (
    f"{'log':22} {'lives':>6} {'requests':>8} {'equal':>8} {'share':>9} {'unknown':>8} "
    f"{'other':>7} {'status 3':>8} {'not 0':>8}"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A part of the work: the lives of one release at one verbosity."""

    release: str
    verbosity: int
    numbers: range
    seed: int
    flags: bool
    keep: Path | None
    together: bool
    uncached: bool = False


def measured(column: Column) -> tuple[Column, Tally]:
    tally = Tally()
    with Lives(column.release, column.verbosity) as lives:
        played = (lives.play(column.seed, number) for number in column.numbers)
        found = (life for life in played if life is not None)
        if column.together:
            every = list(found)
            ran = reading(every, column)
            tally.add(merged(every), ran, by_life(every, ran) if ran.status == 0 else ())
            tally.counts["lives"] = len(every)
            if ran.status == 0:
                tally.add_replay(merged(every), json.loads(ran.out))
            return column, tally
        for life in found:
            ran = reading([life], column)
            differing = tally.add(life, ran)
            if ran.status == 0:
                stated = json.loads(ran.out)
                differing += tally.add_replay(life, stated)
                if column.uncached:
                    differing += tally.add_uncached(life, lives.uncached(life), column, stated)
            if differing and column.keep is not None:
                kept(column.keep, life, ran, differing)
    return column, tally


def parting(text: str, alone: Answer) -> float | None:
    """By how much the uncached run prefers its own token where a reply parts from it.

    None where the reply is a part of it; without probabilities any other text is infinitely far.
    """
    if alone.text.startswith(text):
        return None
    at = 0
    for place in alone.likely:
        chosen, *others = place
        if text.startswith(chosen, at):
            at += len(chosen)
            continue
        gaps = [place[chosen] - place[other] for other in others if text.startswith(other, at)]
        return max(0.0, min(gaps, default=inf))
    return inf


def reading(lives: Sequence[Life], column: Column, *, whole: bool = False) -> Ran:
    """`why` on these logs, as on the files of one server; the `whole` of it looks for wrong answers
    of the replay too, and tries other settings.
    """
    with tempfile.TemporaryDirectory() as name:
        names = [f"{at}.log" for at in range(len(lives))]
        for file, life in zip(names, lives, strict=True):
            (Path(name) / file).write_bytes(life.log)
        told = lives[0].flags() if column.flags else []
        told += [] if whole else ["--no-tune"]
        return run(["why", *names, "--format", "json", *told], Path(name))


def by_life(lives: Sequence[Life], ran: Ran) -> list[Pair]:
    """The answers of each life with the requests of its servers: one for each start in its log."""
    found = json.loads(ran.out)
    starts = [life.log.count(LOADS) for life in lives]
    if sum(starts) != len(found["servers"]):
        raise ValueError(f"{sum(starts)} starts of servers, and {len(found['servers'])} were read")
    requests: list[list[Request]] = [[] for _ in lives]
    owners = [at for at, count in enumerate(starts) for _ in range(count)]
    for request in found["requests"]:
        requests[owners[request["server"]]].append(request)
    both = zip(lives, requests, strict=True)
    return [pair for life, own in both for pair in paired(life.answers, own)]


def merged(lives: Sequence[Life]) -> Life:
    """All answers in order, as those of one server."""
    answers = [
        replace(answer, group=at * MANY + answer.group)
        for at, life in enumerate(lives)
        for answer in life.answers
    ]
    kinds = tuple(sorted({kind for life in lives for kind in life.kinds}))
    return replace(lives[0], answers=tuple(answers), kinds=kinds)


def kept(folder: Path, life: Life, ran: Ran, differing: Sequence[str]) -> None:
    """Keep a log that was read wrongly, with the truth and one line of README."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{life.name}.log").write_bytes(life.log)
    (folder / f"{life.name}.json").write_text(json.dumps(life.truth(), indent=1) + "\n")
    line = f"{life.name}.log ({', '.join(life.kinds)}; {life.preset}, {life.options}): "
    with (folder / "README").open("a") as readme:
        readme.write(line + " | ".join((ran.line, *differing)) + "\n")


def columns(arguments: argparse.Namespace) -> Iterator[Column]:
    """The work in parts of even size."""
    for release, verbosity, numbers in shares(arguments.lives):
        if not arguments.release or release in arguments.release:
            yield Column(
                release,
                verbosity,
                numbers,
                arguments.seed,
                arguments.flags,
                arguments.keep,
                arguments.together,
                arguments.uncached,
            )


def main(words: Sequence[str] | None = None) -> int:
    """Print a table by release and verbosity; 1 where the program ended with status 3."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.end_to_end.lives", description=__doc__
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--release", action="append", choices=releases())
    parser.add_argument("--flags", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--uncached", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(words)
    work = list(columns(arguments))
    for column in work:
        environment_for(column.release).ready()
    sums = {DEFAULT: Tally(), PRINTING: Tally()}
    sys.stdout.write(HEAD + "\n")
    load()
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        for column, tally in pool.map(measured, work):
            sums[column.verbosity].merge(tally)
            sys.stdout.write(tally.row(f"{column.release} -lv {column.verbosity}") + "\n")
            sys.stdout.flush()
    sys.stdout.write(sums[DEFAULT].row("all at the default") + "\n")
    sys.stdout.write(sums[PRINTING].row(f"all at -lv {PRINTING}") + "\n")
    for verbosity, tally in sums.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in tally.wrong.most_common())
        sys.stdout.write(f"lives with a differing request at -lv {verbosity}: {kinds or 'none'}\n")
    for verbosity, tally in sums.items():
        sys.stdout.writelines(f"{each}\n" for each in tally.summary(verbosity))
    return 1 if any(each.counts["status 3"] for each in sums.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
