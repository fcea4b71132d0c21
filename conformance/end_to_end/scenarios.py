"""Shipped scenarios, profiles and lessons: the commands that take no file of a user's server."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file, shipped_files
from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.program import Ran

QUICK: Final = ["--arithmetic", "ring"]
PLAYED: Final = frozenset({0, 1})
WRONG: Final = frozenset({2})
ANY: Final = frozenset({0, 1, 2})
FORMS: Final = ("text", "json", "jsonl")
ENGINES: Final = ("llama.cpp", "ik_llama.cpp", "mlx-lm", "vllm", "sglang", "marconi")
EACH: Final = 9
DAMAGED: Final = 30
"""Scenarios of each engine, and damaged ones; a third and a sixth where the run is not whole."""


def tasks(settings: Settings) -> Iterator[Task]:
    """A task for each engine's scenarios, and one for commands without any."""
    share = 1 if settings.whole else 3
    for engine in ENGINES:
        given = (engine, settings.seed, EACH // share)
        yield Task(name=f"scenarios of {engine}", do=of_engine, given=given)
    yield Task(name="lists and lessons", do=of_lists)
    damaged = (settings.seed, DAMAGED // (1 if settings.whole else 6))
    yield Task(name="damaged scenarios", do=of_damaged, given=damaged)
    yield Task(name="wrong words", do=of_words)


def of_engine(engine: str, seed: int, count: int) -> Result:
    """Play some scenarios of an engine with every command that takes one."""
    result = Result()
    names = sorted(Path(str(file)).stem for file in shipped_files() if folder_of(file) == engine)
    rng = Random(f"scenarios {engine} {seed}")
    for number, name in enumerate(rng.sample(names, min(count, len(names)))):
        with bench(f"scenario {engine}", result) as place:
            _run(place, name, number)
            _look(place, name, number)
    with bench(f"scenario {engine}", result) as place:
        _search(place, engine)
    return result


def folder_of(path: object) -> str:
    """The folder of a scenario, which is named after its engine."""
    return Path(str(path)).parent.name


def _run(place: Bench, name: str, number: int) -> None:
    for form in FORMS:
        words = ["run", name, *QUICK, "--format", form]
        law = _adds_up if form == "json" else None
        place.try_(Case(words=words, form=form, statuses=PLAYED, extra=law))
    page = ["run", name, *QUICK, "--report", "run.html"]
    place.try_(Case(words=page, form="--report", writes=("run.html",), statuses=PLAYED))
    if number % 3 == 0:
        for more in (["--detail", "--format", "json"], ["--brief"], ["--arithmetic", "counts"]):
            words = ["run", name, *(QUICK if "--arithmetic" not in more else []), *more]
            form = "json" if "json" in more else more[0]
            place.try_(Case(words=words, form=form, statuses=PLAYED))


def _adds_up(ran: Ran) -> Iterator[str]:
    """Tokens of each step; unknown ones are null."""
    for run in json.loads(ran.out)["runs"]:
        for step in run["steps"]:
            whole, cached, processed = (
                step.get(key) for key in ("prompt_tokens", "cached", "processed")
            )
            if None in (whole, cached, processed):
                continue
            if cached + processed != whole and step.get("error") is None:
                yield (
                    f"{run['scenario']} {run['profile']} {step['name']}: {whole} prompt tokens "
                    f"are not {cached} cached and {processed} processed"
                )


def _look(place: Bench, name: str, number: int) -> None:
    place.try_(Case(words=["list", name]))
    raw = place.try_(Case(words=["list", name, "--raw"], form="--raw"))
    place.put("mine.toml", raw.out.encode())
    place.try_(Case(words=["run", "mine.toml", *QUICK], statuses=PLAYED))
    place.try_(Case(words=["run", "-", *QUICK], form="stdin", stdin=raw.out.encode(),
                    statuses=PLAYED))  # fmt: skip
    match number % 3:
        case 0:
            place.try_(Case(words=["run", "--explain", name, *QUICK], statuses=PLAYED))
            page = ["run", "--explain", name, *QUICK, "--report", "e.html"]
            place.try_(Case(words=page, form="--report", writes=("e.html",), statuses=PLAYED))
        case 1:
            place.try_(Case(words=["compare", name], statuses=PLAYED))
            words = ["compare", name, "--format", "json"]
            place.try_(Case(words=words, form="json", statuses=PLAYED))
            words = ["compare", name, "--rows", "policies", "--plot", "c.svg"]
            own = any(step.options for step in load(shipped_file(name)).step)
            refused = Case(words=words, statuses=WRONG)  # fields that other engines do not have
            drawn = Case(words=words, form="--plot", writes=("c.svg",), statuses=PLAYED)
            place.try_(refused if own else drawn)
        case _:
            place.try_(Case(words=["bisect", name], statuses=ANY))
            place.try_(Case(words=["why", "--tune", name], statuses=ANY))
            place.try_(
                Case(words=["why", "--tune", name, "--format", "json"], form="json", statuses=ANY)
            )


def _search(place: Bench, engine: str) -> None:
    """`check` on the engine's newest releases."""
    listed = place.try_(Case(words=["list", "releases", "--format", "json"], form="json"))
    names = [row["name"] for row in _rows(listed) if str(row["name"]).startswith(f"{engine}@")]
    for profile in names[-1:]:
        words = ["check", profile, "--model", "dense", "--examples", "10", "--jobs", "1"]
        emit = [*words, "--emit", "found"]
        place.try_(Case(words=emit, form="--emit", statuses=PLAYED))
        place.try_(Case(words=["list", profile]))
        place.try_(Case(words=["list", profile, "--flags"], form="--flags"))


def _rows(ran: Ran) -> Sequence[dict[str, str]]:
    found = json.loads(ran.out)
    if isinstance(found, dict):
        found = next(each for each in found.values() if isinstance(each, list))
    return [each for each in found if isinstance(each, dict)]


def of_lists() -> Result:
    """`list`, `completion`, `new`, `learn` in all their forms."""
    result = Result()
    with bench("no input", result) as place:
        for what in ("scenarios", "engines", "releases", "patches", "presets"):
            place.try_(Case(words=["list", what]))
            place.try_(Case(words=["list", what, "--format", "json"], form="json"))
        words = ["list", "scenarios", "--symptom", "every turn reprocesses the whole prompt"]
        place.try_(Case(words=words, form="--symptom"))
        for name in ("hybrid", "dense", "llama.cpp", "vllm", "llama.cpp@b11549"):
            place.try_(Case(words=["list", name]))
        for what in ("scenario", "output", "why", "requests"):
            place.try_(Case(words=["list", "schema", what], form="json"))
        for shell in ("bash", "zsh", "fish"):
            place.try_(Case(words=["completion", shell], form=shell))
        place.try_(Case(words=["new"]))
        place.try_(Case(words=["new", "mine", "-o", "m.toml"], form="-o", writes=("m.toml",)))
        place.try_(Case(words=["new", "mine", "-o", "m.toml"], form="-o", statuses=WRONG))
        place.try_(Case(words=["run", "m.toml", *QUICK], statuses=PLAYED))
        place.try_(Case(words=["learn"]))
        for number in range(1, 4):
            place.try_(Case(words=["learn", str(number), "--all"], form="--all"))
            asked = ["learn", str(number), "--check"]
            place.try_(Case(words=asked, form="--check", stdin=b"1 2 3\n", statuses=ANY))
        place.try_(Case(words=["real", "gguf", "dense", "-o", "d.gguf"], writes=("d.gguf",)))
        place.try_(Case(words=["--version"]))
        place.try_(Case(words=["--help"]))
    return result


def of_damaged(seed: int, count: int) -> Result:
    """Scenario files with a line lost, doubled or changed."""
    result = Result()
    rng = Random(f"damaged scenarios {seed}")
    for path in rng.sample(list(shipped_files()), count):
        lines = Path(str(path)).read_text(encoding="utf-8").splitlines()
        at = rng.randrange(len(lines))
        wrong = ("", lines[at] * 2, "[[step]]", "= 3", lines[at][:5], "parallel = -1", "\x00")
        lines[at] = rng.choice(wrong)
        with bench("damaged scenario", result) as place:
            place.put("s.toml", "\n".join(lines).encode())
            form = rng.choice(FORMS)
            words = ["run", "s.toml", *QUICK, "--timeout", "20", "--format", form]
            place.try_(Case(words=words, form=form, statuses=ANY))
            page = ["run", "s.toml", *QUICK, "--timeout", "20", "--report", "r.html"]
            place.try_(Case(words=page, form="--report", writes=("r.html",), statuses=ANY))
            place.try_(Case(words=["run", "--explain", "s.toml", *QUICK], statuses=ANY))
            place.try_(Case(words=["compare", "s.toml"], statuses=ANY))
    return result


def of_words() -> Result:
    """Invalid command lines: an error message, and status 2."""
    result = Result()
    with bench("wrong words", result) as place:
        for line in (
            "nonsense", "run missing.toml", "run nonsense", "why", "why missing.log",
            "why --worst x a.log", "why --tune missing.log", "list nonsense",
            "list schema nonsense", "completion nonsense", "tune missing.log", "show nonsense",
            "schema nonsense", "hunt nonsense", "replay made:0 -p vllm@0.33.0", "explain nonsense",
            "diff b9538 nonsense llama.cpp-24143-load-consumes-entry-hybrid",
            "compare llama.cpp-24143-load-consumes-entry-hybrid -p b9538 -p nonsense",
            "run --explain nonsense", "bisect nonsense", "compare nonsense", "check nonsense",
            "check llama.cpp@b11549 --model nonsense", "check --prove nonsense",
            "check --prove llama.cpp",
            "compare missing.jsonl -p vllm@0.33.0", "compare made:0 -p vllm@0.33.0",
            "compare made:5 -p nonsense", "sweep missing.toml", "learn 99", "new --from nonsense",
            "record --upstream nonsense://x", "record --upstream http://127.0.0.1:1 --listen x",
            "real nonsense", "real llama.cpp --release b1", "real vllm --release 9",
            "real mlx-lm --release 9", "real sglang --release 9", "real gguf nonsense -o x.gguf",
            "run llama.cpp-two-codes -p nonsense", "run llama.cpp-two-codes --set nonsense=1",
            "run llama.cpp-two-codes --format nonsense", "real vectors missing.jsonl",
            "run llama.cpp-two-codes --report missing/folder/r.html",
        ):  # fmt: skip
            place.try_(Case(words=line.split(), form="wrong", statuses=WRONG))
    return result
