"""Logs of real llama.cpp servers: `why`, `bisect`, `compare`, and what they write, run again.

`why --format json` reads every log together with others; so many of them are read alone, by command
lines that take turns, so that each of these meets each release, verbosity and kind of life.
"""

import bz2
import gzip
import json
import lzma
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.server import environment_for
from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.client import Answer
from conformance.end_to_end.laws import broken_by_truth
from conformance.end_to_end.life import Life, Lives, shares
from conformance.end_to_end.lives import by_life, paired
from conformance.end_to_end.program import Ran

LOG: Final = "server.log"
DAMAGED: Final = frozenset({0, 2})
PLAYED: Final = frozenset({0, 1})

LONG: Final = 400
"""Answers of a log that is played on other servers on request only."""

Turn = Callable[[Bench, Life], None]


def tasks(settings: Settings) -> Iterator[Task]:
    """The lives of each release and verbosity."""
    for release, verbosity, numbers in shares(settings.logs):
        for part in (numbers[::2], numbers[1::2]):
            yield Task(
                name=f"logs of {release} -lv {verbosity}",
                do=of_release,
                given=(release, verbosity, part, settings),
            )


def of_release(release: str, verbosity: int, numbers: range, settings: Settings) -> Result:
    """Play lives and read their logs: all in one command line, and some of them each for itself."""
    result = Result()
    try:
        environment_for(release).ready()
    except EnvironmentUnavailableError as error:
        result.skipped.append(f"logs of {release}: {error}")
        return result
    found: list[Life] = []
    with Lives(release, verbosity) as lives:
        for at, number in enumerate(numbers):
            life = lives.play(settings.seed, number)
            if life is None:
                continue
            found.append(life)
            if at % settings.every == 0:
                read(life, number, result)
    read_together(found, result)
    return result


def read_together(lives: Sequence[Life], result: Result) -> None:
    """All logs of one release, as those of a server that was started again and again.

    They are listed until there are so many requests that none is played on other servers too.
    """
    if not any(each.answers for each in lives):
        return
    for life in lives:
        result.inputs["logs of llama.cpp"] += 1
        for kind in life.kinds:
            result.inputs[f"logs with {kind}"] += 1
    with bench(f"{lives[0].release} -lv {lives[0].verbosity}", result) as place:
        files = [place.put(f"{at}.log", life.log) for at, life in enumerate(lives)]
        listed = list(zip(files, lives, strict=True))
        while sum(len(life.answers) for _, life in listed) < LONG:
            listed += listed
        every = [life for _, life in listed]

        def law(ran: Ran) -> Iterator[str]:
            found = json.loads(ran.out)
            yield from broken_by_truth(found, by_life(every, ran))
            if len(found["servers"]) == len(every):
                for life, server in zip(every, found["servers"], strict=True):
                    yield from _inferred_states(life, server)

        words = ["why", *(name for name, _ in listed), "--format", "json"]
        place.try_(Case(words=words, form="json", extra=law))


def read(life: Life, number: int, result: Result) -> None:
    """Run the command lines whose turn it is on one log."""
    with bench(f"{life.release} -lv {life.verbosity}", result) as place:
        result.inputs["logs read alone"] += 1
        place.put(LOG, life.log)
        served = any(answer.was_launched for answer in life.answers)
        words = ["why", LOG, "--format", "json"]
        statuses = frozenset({0}) if served else DAMAGED
        ran = place.try_(
            Case(words=words, form="json", statuses=statuses, extra=partial(_of_life, life))
        )
        if ran.status == 2 and not served:
            return
        TURNS[number % len(TURNS)](place, life)


def _of_life(life: Life, ran: Ran) -> Iterator[str]:
    yield from _true(life.answers, ran)
    for server in json.loads(ran.out)["servers"]:
        yield from _inferred_states(life, server)


def _inferred_states(life: Life, server: dict[str, Any]) -> Iterator[str]:
    """States are inferred only of a model that has them, or a window."""
    if life.preset == "dense" and server["model"]["how"] == "bounded":
        yield f"the model is {server['model']['preset']} (inferred), and has full attention alone"


def _true(answers: Sequence[Answer], ran: Ran) -> Iterator[str]:
    found = json.loads(ran.out)
    yield from broken_by_truth(found, paired(answers, found["requests"]))


def _text(place: Bench, _life: Life) -> None:
    place.try_(Case(words=["why", LOG]))
    place.try_(Case(words=["why", LOG, "--worst", "0"]))
    place.try_(Case(words=["why", LOG, "--worst", "50"]))


def _page(place: Bench, _life: Life) -> None:
    place.try_(
        Case(words=["why", LOG, "--report", "why.html"], form="--report", writes=("why.html",))
    )


def _trace(place: Bench, life: Life) -> None:
    words = ["why", LOG, "--trace", "t.jsonl"]
    ran = place.try_(Case(words=words, form="--trace", writes=("t.jsonl",), statuses=DAMAGED))
    if ran.status != 0:
        return
    replay = ["compare", "t.jsonl", "--profile", f"llama.cpp@{life.release}", "--model", "dense"]
    for form in ("text", "json", "jsonl"):
        place.try_(Case(words=[*replay, "--format", form], form=form, statuses=PLAYED))


def _scenario(place: Bench, _life: Life) -> None:
    words = ["why", LOG, "--scenario", "s.toml"]
    ran = place.try_(Case(words=words, form="--scenario", writes=("s.toml",), statuses=DAMAGED))
    if ran.status != 0:
        return
    quick = ["--arithmetic", "ring"]
    for form in ("text", "json", "jsonl"):
        place.try_(
            Case(words=["run", "s.toml", *quick, "--format", form], form=form, statuses=PLAYED)
        )
    page = ["run", "s.toml", *quick, "--report", "run.html"]
    place.try_(Case(words=page, form="--report", writes=("run.html",), statuses=PLAYED))


def _scenario_elsewhere(place: Bench, _life: Life) -> None:
    words = ["why", LOG, "--scenario", "s.toml"]
    ran = place.try_(Case(words=words, form="--scenario", writes=("s.toml",), statuses=DAMAGED))
    if ran.status != 0:
        return
    quick = ["--arithmetic", "ring"]
    place.try_(Case(words=["run", "--explain", "s.toml", *quick], statuses=PLAYED))
    page = ["run", "--explain", "s.toml", *quick, "--report", "explained.html"]
    place.try_(Case(words=page, form="--report", writes=("explained.html",), statuses=PLAYED))
    (own,) = tomllib.loads((place.folder / "s.toml").read_text())["engine"]["profiles"]
    newest = "b11549" if own != "b11549" else "b11063"
    place.try_(Case(words=["compare", "s.toml", "-p", own, "-p", newest, *quick], statuses=PLAYED))


def _scenario_compared(place: Bench, _life: Life) -> None:
    words = ["why", LOG, "--scenario", "s.toml"]
    ran = place.try_(Case(words=words, form="--scenario", writes=("s.toml",), statuses=DAMAGED))
    if ran.status != 0:
        return
    place.try_(Case(words=["compare", "s.toml"], statuses=PLAYED))
    place.try_(Case(words=["compare", "s.toml", "--format", "json"], form="json", statuses=PLAYED))
    plot = ["compare", "s.toml", "--rows", "policies", "--plot", "c.svg"]
    place.try_(Case(words=plot, form="--plot", writes=("c.svg",), statuses=PLAYED))
    place.try_(Case(words=["why", "--tune", "s.toml", "--format", "json"], form="json"))


def _what_if(place: Bench, _life: Life) -> None:
    asked = ["--what-if", "b11549", "--what-if", "cache_ram=0"]
    place.try_(Case(words=["why", LOG, *asked], form="--what-if"))
    place.try_(Case(words=["why", LOG, *asked, "--format", "json"], form="json"))


def _one_request(place: Bench, _life: Life) -> None:
    place.try_(Case(words=["why", LOG, "--request", "0"], form="--request"))
    several = ["why", LOG, "--request", "0", "--request", "1"]
    place.try_(Case(words=several, form="--request", statuses=DAMAGED))
    place.try_(
        Case(words=["why", LOG, "--request", "99"], form="--request", statuses=frozenset({2}))
    )


def _told(place: Bench, life: Life) -> None:
    law = partial(_true, life.answers)
    words = ["why", LOG, *life.flags(), "--format", "json"]
    place.try_(Case(words=words, form="json", extra=law))
    place.try_(Case(words=["why", LOG, *life.flags(), "--chats"], form="--chats"))


def _stdin(place: Bench, life: Life) -> None:
    place.try_(Case(words=["why", "-"], form="stdin", stdin=life.log))
    place.try_(Case(words=["why", "-", "--format", "json"], form="json", stdin=life.log))


def _packed(place: Bench, life: Life) -> None:
    law = partial(_true, life.answers)
    for name, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        place.put(f"server.log.{name}", pack(life.log))
        words = ["why", f"server.log.{name}", "--format", "json"]
        place.try_(Case(words=words, form="json", extra=law))


def _rotated(place: Bench, life: Life) -> None:
    lines = life.log.splitlines(keepends=True)
    place.put("server.log.1", b"".join(lines[: len(lines) // 2]))
    place.put("server.log.2", b"".join(lines[len(lines) // 2 :]))
    law = partial(_true, life.answers)
    words = ["why", "server.log.1", "server.log.2", "--format", "json"]
    place.try_(Case(words=words, form="json", extra=law))


def _excerpt(place: Bench, life: Life) -> None:
    """A pasted excerpt: a few lines from the middle."""
    rng = Random(life.name)
    lines = life.log.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    place.put("excerpt.log", b"".join(lines[at : at + rng.choice((3, 7, 20, 60))]))
    for form in ("text", "json"):
        words = ["why", "excerpt.log", "--format", form]
        place.try_(Case(words=words, form=form, statuses=DAMAGED))
    place.try_(Case(words=["why", "--tune", "excerpt.log"], statuses=DAMAGED))


def _damaged(place: Bench, life: Life) -> None:
    """Lines lost, doubled, cut and mixed up; a file that ends in the middle."""
    rng = Random(life.name)
    lines = life.log.splitlines(keepends=True)
    for _ in range(rng.choice((1, 3, 10))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[at] = rng.choice((b"", lines[other], lines[at] * 2, lines[at][: other % 90], b"\xff"))
    text = b"".join(lines)
    place.put("damaged.log", text[: rng.choice((len(text), rng.randint(1, len(text))))])
    for form in ("text", "json"):
        words = ["why", "damaged.log", "--format", form]
        place.try_(Case(words=words, form=form, statuses=DAMAGED))
    page = ["why", "damaged.log", "--report", "why.html"]
    place.try_(Case(words=page, form="--report", writes=("why.html",), statuses=DAMAGED))


def _wrapped(place: Bench, life: Life) -> None:
    """A terminal or a chat has broken the lines, or a service has put its own words before them."""
    broken = b"".join(
        line[:80] + b"\n" + line[80:] if len(line) > 81 else line
        for line in life.log.splitlines(keepends=True)
    )
    place.put("broken.log", broken)
    place.try_(Case(words=["why", "broken.log"], statuses=DAMAGED))
    journal = b"Nov 22 08:00:01 host llama-server[812]: "
    lines = life.log.splitlines(keepends=True)
    place.put("journal.log", b"".join(journal + line for line in lines))
    law = partial(_true, life.answers)
    words = ["why", "journal.log", "--format", "json"]
    place.try_(Case(words=words, form="json", extra=law))


def _tune(place: Bench, _life: Life) -> None:
    place.try_(Case(words=["why", "--tune", LOG], statuses=DAMAGED))


def _tune_json(place: Bench, _life: Life) -> None:
    place.try_(
        Case(words=["why", "--tune", LOG, "--format", "json"], form="json", statuses=DAMAGED)
    )


def _tune_page(place: Bench, _life: Life) -> None:
    words = ["why", "--tune", LOG, "--report", "tune.html"]
    place.try_(Case(words=words, form="--report", writes=("tune.html",), statuses=DAMAGED))


def _bisect(place: Bench, _life: Life) -> None:
    place.try_(Case(words=["bisect", LOG], statuses=frozenset({0, 1, 2})))


TURNS: Final[tuple[Turn, ...]] = (
    _text, _page, _trace, _scenario, _what_if, _told, _stdin, _packed, _excerpt, _damaged,
    _one_request, _rotated, _scenario_elsewhere, _wrapped, _scenario_compared, _tune, _tune_json,
    _tune_page, _bisect,
)  # fmt: skip
