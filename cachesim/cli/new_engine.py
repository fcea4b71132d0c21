"""`cachesim new --engine`: the package of an engine, from `template`."""

import re
from pathlib import Path
from typing import Final

from cachesim.errors import InputError
from cachesim.files import Output

TEMPLATE: Final = Path(__file__).parent / "template"

PROJECT: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-engine"
version = "1.0"
dependencies = ["cachesim"]

[project.entry-points."cachesim.engines"]
my-engine = "my_engine.family:FAMILY"
"""

TEST: Final = """\
\"\"\"The contract of every engine; it needs this package to be installed.\"\"\"

from cachesim.testing import engine_contract
from my_engine.family import FAMILY


def test_contract() -> None:
    engine_contract(FAMILY)
"""


def engine_package(name: str) -> dict[str, str]:
    """The files of an engine's package by their paths."""
    from cachesim.engines import FAMILIES

    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        msg = f"--engine {name!r}: write a name of small letters, digits and '-', like my-engine"
        raise InputError(msg)
    if name in FAMILIES:
        msg = f"--engine {name!r}: there is an engine of this name; write another one"
        raise InputError(msg)
    files = {f"my_engine/{each.name}": each.read_text() for each in sorted(TEMPLATE.glob("*.py"))}
    files |= {"pyproject.toml": PROJECT, "tests/test_contract.py": TEST}
    return {
        path.replace("my_engine", module): text.replace("my_engine", module).replace(
            "my-engine", name
        )
        for path, text in files.items()
    }


def write_package(name: str, folder: Path) -> str:
    """Write the package into a folder without files; what to do next."""
    files = engine_package(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder}: is there already; name another folder with --output"
        raise InputError(msg)
    for path, text in files.items():
        where = folder / path
        where.parent.mkdir(parents=True, exist_ok=True)
        Output.at(where, "--output").write(text)
    lines = sum(text.count("\n") for text in files.values())
    return (
        f"{folder}: {len(files)} files, {lines} lines\n"
        f"  pip install --editable {folder} pytest && python -m pytest {folder}/tests\n"
        f"  cachesim check {name}@1.0\n"
    )
