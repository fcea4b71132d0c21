"""Sources of scenarios for a command: files, folders, `-`, and the scenarios shipped."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISFIFO, S_ISREG
from typing import TYPE_CHECKING, Final

from cachesim.errors import ScenarioError

if TYPE_CHECKING:
    from cachesim.scenario.format import Scenario

STDIN: Final = "<stdin>"
"""Name of the file `-`."""


def shipped_folder() -> Path | None:
    """The folder of the scenarios: in an installed package, or in the source tree."""
    package = Path(__file__).parents[1]
    for folder in (package / "shipped", package.parent / "scenarios"):
        if folder.is_dir():
            return folder
    return None


def shipped_files() -> list[Path]:
    """Every shipped scenario, by name."""
    folder = shipped_folder()
    return [] if folder is None else sorted(folder.rglob("*.toml"), key=lambda path: path.stem)


def shipped_under(name: str) -> Path | None:
    """The file of the shipped scenario that has this name, or once had it; None without one."""
    from cachesim.scenario.former import FORMER

    name = FORMER.get(name, name)
    return next((path for path in shipped_files() if path.stem == name), None)


def shipped_file(name: str) -> Path:
    """The path of the shipped scenario of that name, in the folder of its engine."""
    file = shipped_under(name)
    if file is None:
        raise ValueError(f"no scenario {name} is shipped")
    return file


def load_all(names: Iterable[str]) -> "list[tuple[str, Scenario]]":
    """The scenarios of arguments with their origins; all errors at once."""
    loaded: list[tuple[str, Scenario]] = []
    problems: list[str] = []
    for name in names:
        try:
            for source in sources(name):
                try:
                    loaded.append((source.name, source.load()))
                except ScenarioError as error:
                    problems.extend(error.problems)
        except ScenarioError as error:
            problems.extend(error.problems)
    if problems:
        raise ScenarioError(*problems)
    return loaded


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a scenario, and a name that loads it again."""

    name: str
    path: Path | None  # None: standard input

    def load(self) -> "Scenario":
        from cachesim.scenario.files import load, load_stream

        return load_stream(sys.stdin.buffer) if self.path is None else load(self.path)


def sources(name: str) -> list[Source]:
    """Scenarios of one argument."""
    path = Path(name)
    if name in {"-", STDIN}:
        return [Source(STDIN, None)]
    try:
        mode = path.stat().st_mode  # is_file() is False for any error since Python 3.14
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except (OSError, ValueError):
        from cachesim.scenario.readers import short

        raise ScenarioError(f"{short(name)} cannot be the name of a file") from None
    if S_ISDIR(mode):
        files = [Source(str(file), file) for file in sorted(path.rglob("*.toml"))]
        if not files:
            msg = f"{path}: a folder without scenarios; a scenario is a file that ends in .toml"
            raise ScenarioError(msg)
        return files
    if S_ISREG(mode) or S_ISFIFO(mode):  # the latter: a shell's <(command)
        return [Source(name, path)]
    stem = path.name.removesuffix(".toml")
    shipped = shipped_under(stem) if len(path.parts) == 1 else None
    if shipped is not None:
        return [Source(shipped.stem, shipped)]
    import difflib

    known = [file.stem for file in shipped_files()]
    near = difflib.get_close_matches(stem, known, n=3, cutoff=0.6)
    near += [other for other in known if name.lower() in other.lower() and other not in near][:3]
    hint = f"did you mean {', '.join(near)}?" if near else "`cachesim list` names those shipped"
    raise ScenarioError(f"{name}: there is no such file, folder or shipped scenario; {hint}")
