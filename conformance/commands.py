"""Every command line of the README, the guides and the help texts, from a wheel of one's own.

    python -m conformance.commands [PYTHON ...]

The wheel is built and installed into a fresh environment of each interpreter (without arguments
the newest that is found), and the commands run in an empty folder outside the repository. What
needs a real engine, or files of the repository, `conformance.end_to_end` runs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from conformance.end_to_end.documented import documented, left_out, runnable

ROOT: Final = Path(__file__).parents[1]
LEFT_OUT: Final = {"real", "record", "probe", "conform"}
"""Commands that need a real engine, the source tree, or a server."""

NEWER: Final = ("3.15", "3.14", "3.13", "3.12")
VERSIONS: Final = Path.home() / ".pyenv" / "versions"
OUTSIDE: Final = re.compile(
    r"(?<![\w/.-])(scenarios|tests|conformance|docs)/"
    r"|server\.log|why events\.jsonl|my-(report|chat)\.toml"
)
"""Paths of the repository and of the guides, which a user elsewhere has not.

`tests/docs/test_blocks.py` runs the quick start's commands, which make files for each other.
"""


def commands() -> list[list[str]]:
    """The words of each command that can be run anywhere, without `cachesim`."""
    found: dict[tuple[str, ...], None] = {}
    for line in documented():
        if left_out(line) or OUTSIDE.search(line):
            continue
        words = shlex.split(runnable(line).partition(" > ")[0], comments=True)
        if words[1] not in LEFT_OUT and "--prove" not in words:
            found[tuple(words[1:])] = None
    return [list(words) for words in found]


def run(program: list[str], words: list[str], folder: Path) -> str:
    """Run one; what is wrong with it, or nothing."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [*program, *words],
        cwd=folder, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    command = f"cachesim {shlex.join(words)}"
    if done.returncode not in {0, 1} or "Traceback" in done.stderr:
        return f"{command}: exit {done.returncode}\n{done.stderr[-800:]}"
    if not done.stdout and not {"-o", "--output", "--report"} & set(words):
        return f"{command}: printed nothing"
    return ""


def border(program: list[str], folder: Path) -> str:
    """What is wrong with a comparison that the wheel has not: it says so, in one sentence."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [*program, "real", "vllm"],
        cwd=folder, env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    says = done.stderr.startswith("cachesim: the installed package has no `cachesim real vllm`: ")
    return "" if (done.returncode, says) == (2, True) else f"cachesim real vllm: {done.stderr}"


def installed(python: str, wheel: Path, folder: Path) -> list[str]:
    """The program in an environment of its own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    return [str(place / "bin" / "cachesim")]


def built(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), "."]
    subprocess.run([*pip, "--disable-pip-version-check"], cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))


def newest() -> str:
    """The newest interpreter there is; `conformance.end_to_end` runs the program on this one."""
    named = (shutil.which(f"python{version}") for version in NEWER)
    kept = (str(path) for v in NEWER for path in VERSIONS.glob(f"{v}.*/bin/python3"))
    return next((each for each in (*named, *kept) if each and is_python(each)), sys.executable)


def is_python(program: str | None) -> bool:
    """True if it starts: a version manager also names missing interpreters."""
    if program is None:
        return False
    done = subprocess.run([program, "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = built(folder)
        failed = sum(tried(python, wheel, folder) for python in sys.argv[1:] or [newest()])
    return 1 if failed else 0


def tried(python: str, wheel: Path, folder: Path) -> int:
    """Run all commands on one interpreter; how many failed."""
    program = installed(python, wheel, folder)
    version = subprocess.run(
        [python, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    asked = commands()
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda words: run(program, words, fresh(folder)), asked)
        wrong = [each for each in told if each]
    sys.stdout.write(f"{version}: {len(asked) - len(wrong)} of {len(asked)} commands run\n")
    wrong += filter(None, [border(program, fresh(folder))])
    sys.stdout.writelines(f"  {each}\n" for each in wrong)
    return len(wrong)


def fresh(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


if __name__ == "__main__":
    sys.exit(main())
