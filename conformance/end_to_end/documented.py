"""The command lines of the README, the guides, the lessons and the help texts.

Each is run by a shell as it is printed, in a folder with the files that the guides name. What
cannot be run so has another form here, or is left out, each with its reason.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cachesim.cli.app import functions, real_functions
from cachesim.engines.llama_cpp_python.family import FAMILY as BINDING
from cachesim.prove.llama_cpp_python.scenarios import environment_for
from conformance.end_to_end.program import PROGRAM

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 600

PLACEHOLDERS: Final = (
    (r"(cachesim run) NAME\b", r"\1 llama.cpp-three-requests"),
    (r"(list) ENGINE\[?@RELEASE\]?", r"\1 vllm@0.33.0"),
    (r"(list) ENGINE\b", r"\1 vllm"),
    (r"(new --engine) NAME\b", r"\1 acme-cache"),
    (r"--release NAME\b", "--release b9538 --workloads 2"),
    (r"(mlx-lm --scenario) NAME\b", r"\1 mlx-lm-1908-tokens-lost"),
    (r"(llama.cpp --scenario) NAME\b", r"\1 llama.cpp-three-requests-window"),
    (r"(llama-cpp-python --release) R\b", r"\1 0.3.36"),
    (r"(real llama\.cpp --release) R\b", r"\1 b9538"),
    (r"--release R\b", "--release 0.31.3"),
    (r"(--from-report) thread\.md", r"\1 docs/examples/hybrid.log"),
    (r"\bFILE(\.\.\.)?(?=$| )", "tests/vectors/mlx-caches.jsonl.gz"),
)
"""Placeholders for the reader's own names."""

REDUCED: Final = (
    (r"(real [\w.-]+ .*--workloads) \d+", r"\1 2"),
    (r"(real (?:llama\.cpp|mlx-lm|vllm|sglang))$", r"\1 --workloads 2"),
    (r"(--agents|--arrivals)$", r"\1 --workloads 1"),
    (r"(real llama\.cpp --logs .*--requests) \d+", r"\1 26"),
    (r"(real transformers) (--output)", r"\1 --family llama \2"),
    (r"(real (?:vllm|sglang) --(?:settings|runner).*)$", r"\1 --workloads 3"),
    (r"(--prove .*--minutes) \d+", r"\1 0.1"),
    (r"(check \S+ --prove)$", r"\1 --minutes 0.1"),
    (r"(check .*--examples) \d+", r"\1 5"),
    (r"(check .*--scope) \d+", r"\1 2"),
    (r"(check (?!.*--(?:examples|prove|scope))\S+@.*)$", r"\1 --examples 5"),
    (r"--require \w+", ""),
    (r"^(cachesim run (?!.*--arithmetic).* ?.*)$", r"\1 --arithmetic ring"),
    (r" > docs/", " > "),
)
"""Long commands in a short form: fewer workloads, fewer examples, exact arithmetic."""

LEFT_OUT: Final[Mapping[str, str]] = {
    r"--newest": "asks a package index which release is the newest",
    r"--fit ": "searches for minutes; conformance/tests/real/test_fit.py",
    r"--end-to-end": "installs 3.5 GB",
    r"^cachesim record ": "passes requests on until it is ended; conformance.real_recorder",
    r"^cachesim probe ": "needs a server; tests/probe",
    r"^cachesim conform ": "needs a server; conformance/tests/servers",
    r"real ik_llama\.cpp.* --binary": "needs a server that somebody has built",
    r"my-change": "stands for the reader's own patch",
    r"--traces FOLDER|conversation_trace\.jsonl": "needs the published trace",
    r"plan\.toml": "needs the reader's own plan",
    r"mine\.toml --rows releases": "plays every release of every engine",
    r"scenarios --symptom \"\.\.\.\"": "stands for the reader's own words",
    r"real marconi --artifact": "needs a checkout of the artifact",
    r"real transformers --library": "needs a checkout; its tests copy it",
    r"--logits": "conformance.real_engines",
    r"learn 4 --check$": "waits for the reader's answers; its help has the line with answers",
}
"""Commands that are not run here, with the reason or the place."""

ANY_STATUS: Final = frozenset({0, 1})


def pages() -> list[Path]:
    made = {"_generated", "_build"}
    found = (path for path in (ROOT / "docs").rglob("*.md") if not made & set(path.parts))
    return [ROOT / "README.md", *sorted(found), *sorted((ROOT / "cachesim").rglob("texts/*.md"))]


def documented() -> Iterator[str]:
    """Every command of a block, of a sentence, and of a help text."""
    fence = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in fence.findall(text):
            lines = (line.strip().removeprefix("$ ") for line in block.splitlines())
            yield from (line for line in lines if line.startswith("cachesim "))
        yield from re.findall(r"`(cachesim [^`\n]+)`", fence.sub("", text))
    yield from examples()


def examples() -> Iterator[str]:
    commands = dict(functions()) | real_functions()
    for command in commands.values():
        yield from re.findall(r"^ *Example: (cachesim .*)$", command.__doc__ or "", re.MULTILINE)


def left_out(line: str) -> str:
    """Why a line is not run; nothing where it is."""
    if re.search(r"real llama-cpp-python|llama-cpp-python.*--prove", line) and (
        not all(environment_for(release).is_ready() for release in BINDING.real())
    ):
        return "builds the package first; python -m conformance.real_engines --every"
    return next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, line)), "")


def runnable(line: str) -> str:
    """The line as it is run: a command's bare name asks for its help."""
    words = line.split()
    named = [word for word in words[2:] if not word.startswith("--")]
    if not named and words[1] not in {"list", "new"}:
        return f"{line} --help"
    for pattern, other in (*PLACEHOLDERS, *REDUCED):
        line = re.sub(pattern, other, line)
    return line


def guide_folder(folder: Path, line: str) -> Path:
    """The files that the guides name, where a reader who follows them has them."""
    for name in ("scenarios", "tests", "conformance", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    for name in ("schema", ".local/share/bash-completion/completions"):
        (folder / name).mkdir(parents=True)
    mine = re.search(r"\b(my-(?:report|chat))\.toml", line)
    if mine and "cachesim new" not in line:
        by_a_shell(f"cachesim new {mine[1]} -o {mine[0]}", folder)
    if "why events.jsonl" in line:
        by_a_shell("cachesim compare made:60 -p vllm@0.33.0 --events events.jsonl", folder)
    shutil.copy(ROOT / "docs" / "examples" / "hybrid.log", folder / "server.log")
    return folder


def by_a_shell(line: str, folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a line by a shell, the installed program first of all."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    more |= {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder, env={**kept, **more}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


def wrong_with(line: str, done: "subprocess.CompletedProcess[str]") -> str:
    """The failure of a printed command; nothing if it ran."""
    if done.returncode not in ANY_STATUS or "Traceback" in done.stderr:
        return f"status {done.returncode}: {done.stderr.strip()[-400:]}"
    if not done.stdout and not re.search(r" > | -o | --output | --report ", line):
        return "nothing was printed"
    return ""
