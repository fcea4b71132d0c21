"""Every command that the program, its reports and its pages print, run as printed.

documented   the README, the guides, the lessons, the help texts: they run
proofs       `prove it`: the real engine is as wrong as the simulator says, on the step that says so
searches     what `check` and `new` print behind a finding and in a file: it runs
hunts        reports of `check --prove`, and reports of shipped scenarios: real servers, started by
             the printed lines, answer the last request in another way than the cold server
flags        advice of `why`, with and without `--tune`, and the flags of every release: accepted by
             the release's own parser
"""

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.play import run
from cachesim.prove.hunt.report import DIFFERS, ENDS
from cachesim.prove.hunt.report import commands as report_lines
from cachesim.prove.llama_cpp import fitting
from cachesim.prove.llama_cpp.server import environment_for
from cachesim.prove.mlx_lm.process import environment_for as mlx_environment_for
from cachesim.scenario import full_profile, load
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import shipped_files
from cachesim.why.infer.settings import flag_of
from conformance.end_to_end.bench import FAILURES, Failure, Result, Settings, Task
from conformance.end_to_end.documented import (
    by_a_shell,
    documented,
    guide_folder,
    left_out,
    runnable,
    wrong_with,
)
from conformance.end_to_end.shell import Shell, printed_lines, run_lines
from conformance.servers import LLAMA_SERVER

WIDE: Final = "400"
"""Columns: tables name their steps whole."""

APART: Final = 0.02
"""Limit of the distance of log probabilities on two sound servers with 16-bit keys."""

PIECES: Final = 6

Wrong: TypeAlias = tuple[Path, Profile, int]
"""A scenario, a profile, and the step whose answer is wrong there."""

PASTED: Final = 5
"""Tries of a report whose requests must overlap."""

LATEST: Final = LLAMA_CPP.real()[-1]
SOME: Final = ("b9093", "b9538", LATEST)
"""Releases whose flags `make check` looks at."""


def tasks(settings: Settings) -> Iterator[Task]:
    """All parts, or one piece of each that takes minutes."""
    lines = [*dict.fromkeys(documented())]
    files = [file for file in shipped_files() if is_expected_wrong(load(file))]
    for at in range(PIECES if settings.all_commands else 1):
        piece = [line for line in lines if crc32(line.encode()) % PIECES == at]
        if not settings.all_commands:  # `make check` compares the engines in a part of its own
            piece = [line for line in piece if not line.startswith("cachesim real")]
        yield Task(name=f"documented {at}", do=run_documented, given=(piece,))
        yield Task(name=f"proofs {at}", do=run_proofs, given=(files[at::PIECES],))
        yield Task(name=f"reports {at}", do=run_reports, given=(files[at::PIECES],))
    if settings.all_commands:
        for number, release in enumerate(("b9538", LATEST)):
            yield Task(name=f"hunt {release}", do=run_hunt, given=(release, settings.seed + number))
    yield Task(name="searches", do=run_searches)
    yield Task(name="advice", do=run_advice)
    for release in LLAMA_CPP.real() if settings.all_commands else SOME:
        yield Task(name=f"flags {release}", do=run_flags, given=(release,))
    yield Task(name="flags of mlx-lm", do=run_mlx_flags)


# -- documented ------------------------------------------------------------------------------------


def run_documented(lines: Sequence[str]) -> Result:
    """Lines of pages and help texts, each in a folder of its own."""
    result = Result()
    for printed in lines:
        why = left_out(printed)
        if why:
            result.skipped.append(f"{printed}: {why}")
            continue
        line = runnable(printed)
        with folder_of(result, "documented") as folder:
            done = by_a_shell(line, guide_folder(folder, line))
            count(result, line, "documented", wrong_with(line, done), folder)
    return result


# -- proofs ----------------------------------------------------------------------------------------


def is_expected_wrong(scenario: Scenario) -> bool:
    return any("diverged" in (expect.answer or ()) for expect in scenario.expect)


def wrong_answers(files: Sequence[Path]) -> Iterator[Wrong]:
    """Each wrong answer of the scenarios, as played: its profile and step."""
    for file in files:
        scenario = load(file)
        for name in scenario.engine.profiles:
            profile = full_profile(scenario.engine.name, name)
            steps = run(scenario, profile, arithmetic="ring").steps
            for number, step in enumerate(steps):
                if step.answer == "diverged":
                    yield file, profile, number


def run_proofs(files: Sequence[Path]) -> Result:
    """The commands after `prove it`; the same step is wrong on the real engine."""
    result = Result()
    for file in files:
        with folder_of(result, "scenario") as folder:
            shown = by_a_shell(f"cachesim run {file.stem} --arithmetic ring", folder, COLUMNS=WIDE)
            for line in dict.fromkeys(re.findall(r"prove it (cachesim .*)", shown.stdout)):
                if why := left_out(line):
                    result.skipped.append(f"{line}: {why}")
                    continue
                done = by_a_shell(line, folder, COLUMNS=WIDE)
                problem = wrong_with(line, done) or unproven(line, shown.stdout, done.stdout)
                count(result, line, "prove it", problem, folder)
    return result


def unproven(line: str, shown: str, proof: str) -> str:
    """The first release and step that the run calls wrong there and its proof does not."""
    for block in shown.split("\n\n"):
        if f"prove it {line}" not in block:
            continue
        heading = re.search(r"^(\S+@.*), request (.*): WRONG answer", block, re.MULTILINE)
        if heading is None:
            return f"no wrong answer stands above {line!r}"
        engine, _, first = heading[1].split(", ")[0].partition("@")
        releases = [first, *heading[1].split(", ")[1:]]
        for release in releases:
            table = proof.partition(f" on {engine} {release.rpartition('@')[2]}\n")[2]
            table = re.split(r"\n\S+ on \S+ \S+\n", table)[0]
            row = re.search(rf"^[ │]*{re.escape(heading[2])} .*$", table, re.MULTILINE)
            wrong = row is not None and re.search(r"WRONG \d|(WRONG|off by).*WRONG", row[0])
            if not wrong:
                return f"not proven on {release}: {row and row[0]}"
    return ""


# -- searches --------------------------------------------------------------------------------------


def run_searches() -> Result:
    """The commands behind a finding of `check`, in a file of `new`, and in messages."""
    result = Result()
    with folder_of(result, "search") as folder:
        words = "cachesim check llama.cpp@b9538 --model hybrid --seed 1 --emit ."
        found = by_a_shell(words, folder)
        again = re.findall(r"(?:to run it again|on the real server): (cachesim .*)", found.stdout)
        count(result, words, "search", "" if len(again) == 2 else found.stdout[-400:], folder)
        for line in again:
            done = by_a_shell(line, folder, COLUMNS=WIDE)
            told = "WRONG" in done.stdout
            count(result, line, "search", "" if told else f"nothing wrong:\n{done.stdout}", folder)
    with folder_of(result, "new") as folder:
        by_a_shell("cachesim new mine -o mine.toml", folder)
        text = (folder / "mine.toml").read_text(encoding="utf-8")
        run_all(result, re.findall(r"^#.*?(cachesim .*?)(?:;.*)?$", text, re.MULTILINE), folder)
    with folder_of(result, "message") as folder:
        for words in ("run nosuch", "list nosuch", "learn --check", "why", "run"):
            said = by_a_shell(f"cachesim {words}", folder, COLUMNS=WIDE).stderr
            lines = [
                *re.findall(r"`(cachesim [^`]+)`", said),
                *re.findall(r"see (cachesim .*)", said),
            ]
            run_all(result, lines, folder)
    return result


def run_all(result: Result, lines: Iterable[str], folder: Path) -> None:
    """Run lines that claim nothing but that they run."""
    for line in lines:
        done = by_a_shell(runnable(line), folder)
        count(result, line, "message", wrong_with(line, done), folder)


# -- hunts -----------------------------------------------------------------------------------------


def run_reports(files: Sequence[Path]) -> Result:
    """Reports of shipped scenarios, each on the newest release that answers wrong."""
    result = Result()
    newest = {
        file: (profile.release, step)
        for file, profile, step in wrong_answers(files)
        if profile.engine == LLAMA_CPP.name and not profile.patches
    }
    for file, (release, step) in newest.items():
        scenario = load(file)
        if provable(scenario, step):
            try_report(result, [*report_lines(scenario, release, step)], release, "", file.stem)
    return result


def provable(scenario: Scenario, step: int) -> bool:
    """True if a real server accepts the same, and returns its tokens' probabilities.

    A reply that the server chooses itself can be quoted by no line that is printed beforehand.
    """
    quoted = any(
        f"{name}.reply" in str(each.prompt)
        for name, said in zip(scenario.step_names, scenario.step, strict=True)
        for each in scenario.step
        if said.reply is None
    )
    return fitting.fits(scenario) and fitting.shows(scenario.step[step]) and not quoted


def run_hunt(release: str, seed: int) -> Result:
    """A short hunt, and each of its reports as a reader pastes it."""
    result = Result()
    with folder_of(result, "hunt") as folder:
        line = f"cachesim check llama.cpp@{release} --prove --minutes 0.7 --seed {seed} --emit ."
        done = by_a_shell(line, folder, COLUMNS=WIDE)
        title = rf"^ *llama.cpp@{release}, all models: [\d,]+ workloads?, [\d,]+ requests?\b"
        counted = re.search(title, done.stdout, re.MULTILINE)
        problem = wrong_with(line, done) or ("" if counted else f"no counts:\n{done.stdout}")
        count(result, line, "hunt", problem, folder)
        for report in sorted(folder.glob("*.md")):
            text = report.read_text(encoding="utf-8")
            ends = next(line for line in text.splitlines() if line.startswith("Seen on"))
            if ENDS in text or DIFFERS in text:
                try_report(result, printed_lines(text), release, ends, report.stem)
            run_all(result, re.findall(r"^    (cachesim run .*)$", text, re.MULTILINE), folder)
    return result


def try_report(result: Result, lines: Sequence[str], release: str, seen: str, name: str) -> None:
    """Paste the lines of a report into a shell; what is said of the last request is seen."""
    told = "crash" in seen or "endless" in seen
    races = any(line.startswith("curl") and line.endswith("&") for line in lines)
    with folder_of(result, "report") as folder, alone():
        (folder / "lines").write_text("\n".join(lines), encoding="utf-8")
        for _ in range(PASTED if races else 1):
            shell = run_lines(lines, release, folder)
            problem = not_ended(shell) if told else alike(lines, shell)
            if not problem:
                break
        count(result, f"report {name} {release}", "curl", problem, folder)


def not_ended(shell: Shell) -> str:
    """The failure if all requests were answered despite a reported crash; else nothing."""
    answers = [line for line in shell.out.splitlines() if line.startswith("{")]
    asked = len(answers) + shell.out.count("\n\n") + shell.out.startswith("\n")
    return f"all requests were answered:\n{shell.out[-400:]}" if len(answers) == asked else ""


def alike(lines: Sequence[str], shell: Shell) -> str:
    """The last two answers are the same; nothing where they differ as the report says."""
    shown = [answer for answer in shell.answers if "completion_probabilities" in answer]
    if len(shown) < 2:
        return f"{len(shown)} answers with probabilities:\n{shell.out[-300:]}\n{shell.err[-600:]}"
    calls = [prompts_of(line) for line in lines if "n_probs" in line]
    warm, cold = shown[calls[0].index(calls[-1][0])], shown[-1]
    rows = zip(likelihoods(warm), likelihoods(cold), strict=True)
    apart = max(
        abs(one[token] - other[token]) for one, other in rows for token in one.keys() & other
    )
    same = warm["tokens"] == cold["tokens"] and apart < APART
    return f"warm and cold are alike: {warm['tokens']}, {apart}" if same else ""


def prompts_of(line: str) -> list[Any]:
    """The prompts of a printed call."""
    words = shlex.split(line.removesuffix(" &"))
    prompt = json.loads(words[words.index("-d") + 1])["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def likelihoods(answer: dict[str, Any]) -> list[dict[int, float]]:
    """Log probabilities of the likeliest tokens at each place."""
    rows = (probability["top_logprobs"] for probability in answer["completion_probabilities"])
    return [{int(each["id"]): float(each["logprob"]) for each in row} for row in rows]


# -- flags -----------------------------------------------------------------------------------------


def run_advice() -> Result:
    """Advice of `why` on the logs of the guides: the newest server accepts every flag."""
    result = Result()
    with folder_of(result, "advice") as folder:
        guide_folder(folder, "")
        found: dict[str, str] = {}
        for command in ("why", "why --tune"):
            for log in ("server.log", "docs/examples/recorded.jsonl"):
                line = f"cachesim {command} {log}"
                done = by_a_shell(line, folder, COLUMNS=WIDE)
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+(?: [\d.]+)?", done.stdout):
                    if flag.split()[0] not in OURS:
                        found.setdefault(flag, line)
        as_printed = parse(LATEST, [flag.split() for flag in found])
        with_value = parse(LATEST, [[*flag.split(), "1"] for flag in found])  # a sentence names it
        accepted = map(max, as_printed, with_value)
        for (flag, line), is_known in zip(found.items(), accepted, strict=True):
            problem = "" if is_known else f"{line} advises {flag}, which {LATEST} refuses"
            count(result, flag, "advice", problem, folder)
    return result


OURS: Final = frozenset(
    {"--what-if", "--worst", "--request", "--scenario", "--report", "--format", "--trace", "--tune"}
    | {"--gguf", "--all", "--profile", "--model", "--set", "--help"}
)
"""Flags of cachesim itself that a report names."""


def run_flags(release: str) -> Result:
    """Every declared flag of a release, at every value that a search sets."""
    result = Result()
    lines = [*flags_of(release)]
    with folder_of(result, "flags") as folder:
        for words, is_known in zip(lines, parse(release, lines), strict=True):
            problem = "" if is_known else f"{release} refuses {' '.join(words)}"
            count(result, shlex.join(words), "flag", problem, folder)
    return result


def flags_of(release: str) -> Iterator[list[str]]:
    for option in LLAMA_CPP.table():
        if release not in LLAMA_CPP.having(option):
            continue
        for value in dict.fromkeys(map(str, (option.default, *option.tried))):
            given = next(each for each in (option.default, *option.tried) if str(each) == value)
            fits = given not in {"", None} and LLAMA_CPP.having(option, given)
            if fits and release in LLAMA_CPP.having(option, given):
                yield flag_of(LLAMA_CPP, option.name, given, release).split()


def parse(release: str, lines: Sequence[Sequence[str]]) -> list[bool]:
    """Command lines as parsed by a release."""
    done = subprocess.run(
        [environment_for(release).ready(), LLAMA_SERVER, "--parse-only"],
        input=json.dumps(lines), capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: list[bool] = json.loads(done.stdout)
    return answers


def run_mlx_flags() -> Result:
    """The flags of mlx-lm's server, in the help text of its own parser."""
    result, release = Result(), MLX_LM.real()[-1]
    words = [str(mlx_environment_for(release).ready()), "-m", "mlx_lm.server", "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    with folder_of(result, "flags") as folder:
        for option in MLX_LM.table():
            if release in MLX_LM.having(option) and option.flag:
                flag = option.flag.split(", ")[-1]
                problem = "" if f"{flag} " in text or f"{flag}\n" in text else "no such flag"
                count(result, flag, "flag", problem, folder)
    return result


# -- counts ----------------------------------------------------------------------------------------


def count(result: Result, line: str, kind: str, problem: str, folder: Path) -> None:
    """Count a line; keep what is wrong with it."""
    command = " ".join(line.split()[1 : 3 if " real " in line else 2]).removesuffix(" --help")
    result.counts[command if line.startswith("cachesim") else kind, kind, kind] += 1
    if problem:
        result.failures.append(Failure(kind=kind, line=line, problem=problem, folder=folder))


@contextmanager
def folder_of(result: Result, kind: str) -> Iterator[Path]:
    """A folder for some lines; it is kept where one of them failed."""
    before = len(result.failures)
    result.inputs[kind] += 1
    with tempfile.TemporaryDirectory(prefix="cachesim-commands-") as name:
        yield Path(name)
        if len(result.failures) > before:
            FAILURES.mkdir(exist_ok=True)
            kept = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=FAILURES))
            for each in (path for path in Path(name).iterdir() if path.is_file()):
                (kept / each.name).write_bytes(each.read_bytes())


@contextmanager
def alone() -> Iterator[None]:
    """One report at a time: all of them name the same ports."""
    with (Path(tempfile.gettempdir()) / "cachesim-end-to-end.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield
