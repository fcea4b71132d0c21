"""`cachesim new`: a commented scenario to start from."""

import re
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED
from cachesim.cli.inputs import given
from cachesim.cli.options import refuse_beside
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.report.consoles import notes, show
from cachesim.scenario.format import NAME_SHAPE
from cachesim.scenario.readers import nearest
from cachesim.scenario.shipped import shipped_files, shipped_under

TEMPLATE: Final = """\
# A scenario: one story of requests to a server, and what is expected of it.
# Run it:      cachesim run {name}.toml
# Look closer: cachesim run {name}.toml --explain
# All keys:    cachesim list schema
format = 1
name   = "{name}"
about  = "What happens, in a sentence."
class  = "lost-reuse"             # lost-reuse | stale-state | crash | limits | accounting

[source]                          # optional: where it was reported
issue    = "owner/repository#1"
upstream = "b9538"

[model]
preset = "hybrid"                 # cachesim list presets; or layers = ["ssm", "attention"]
seed   = 0                        # weights and spans come from it

[engine]
name     = "llama.cpp"            # cachesim list engines
profiles = ["b9538", "b11549"]    # releases, with patches: b9538+24143

[engine.options]                  # the server's flags under upstream's names
parallel = 1

[spans]                           # named runs of tokens; no two begin with the same token
system   = 200
question = 40
followup = 30

[[step]]
name    = "first"
prompt  = "system question"       # spans, "first.reply", or a list of token ids
predict = 8

[[step]]
name    = "second"
prompt  = "system question first.reply followup"
predict = 8

# [[expect]]                      # optional: what a profile should show, one item per step
# profile = "b9538"
# cached  = [0, 247]
# answer  = "same"
"""


UNNAMED: Final = "my-scenario"


def new_command(
    name: Annotated[str, Parameter(help="The scenario's name.")] = UNNAMED,
    *,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="The file to write; with --engine, the folder."),
    ] = None,
    source: Annotated[
        str | None, Parameter("--from", help="A shipped scenario to copy instead.")
    ] = None,
    from_report: Annotated[
        str | None,
        Parameter(help="A saved thread or pasted text, - for standard input: draft its scenario."),
    ] = None,
    engine: Annotated[
        str | None, Parameter(help="Write the package of an engine of this name instead.")
    ] = None,
) -> int:
    """Print a scenario, or an engine's package, to start from.

    Example: cachesim new my-report -o my-report.toml
    """
    template = {"--from": source, "--from-report": from_report}
    if engine is not None:
        refuse_beside("--engine", {"NAME": name != UNNAMED, **template})
        sys.stdout.write(write_package(engine, output or Path(engine)))
        return AS_EXPECTED
    if not re.fullmatch(NAME_SHAPE, name):
        raise InputError(f"{name!r} cannot be a name: write letters, digits, '.', '_', '+' and '-'")
    if from_report is not None:
        refuse_beside("--from-report", {"--from": source})
        text = drafted(from_report, name)
    else:
        text = TEMPLATE.format(name=name) if source is None else copied(source, name)
    if output is None:
        sys.stdout.write(text)
    else:
        Output.at(output, "--output").write(text)
    return AS_EXPECTED


def drafted(report: str, name: str) -> str:
    """A scenario drafted from a report; missing facts are printed."""
    from cachesim.why.from_report import MOST, draft_of

    with given([report], example="cachesim new --from-report thread.md") as (found,):
        draft = draft_of(name, found.file.read(MOST + 1), source=found.name)
    screen = notes()
    for lack in draft.missing:
        show(screen, Text(f"not in the report: {lack}"))
    if draft.server:
        show(screen, Text(f"server: {draft.server}"))
    show(screen, Text(draft.note))
    return draft.text


def copied(source: str, name: str) -> str:
    """A shipped scenario under another name."""
    file = shipped_under(source)
    if file is None:
        known = [path.stem for path in shipped_files()]
        hint = nearest(source, known) or "; `cachesim list` names those there are"
        raise InputError(f"no shipped scenario is called {source!r}{hint}")
    text = file.read_text(encoding="utf-8")
    return re.sub(r"^name( *)=.*$", rf'name\1= "{name}"', text, count=1, flags=re.MULTILINE)


ENGINE_TEMPLATE: Final = Path(__file__).parent / "template"

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
        raise InputError(f"--engine {name!r}: there is an engine of this name; write another one")
    if iskeyword(module) or module in {*sys.stdlib_module_names, "cachesim", "tests"}:
        raise InputError(f"--engine {name!r}: Python has this word already; write another name")
    files = {
        f"my_engine/{path.name}": path.read_text() for path in sorted(ENGINE_TEMPLATE.glob("*.py"))
    }
    files |= {"pyproject.toml": PROJECT, "tests/test_contract.py": TEST}
    return {
        path.replace("my_engine", module): text.replace("my_engine", module).replace(
            "my-engine", name
        )
        for path, text in files.items()
    }


def write_package(name: str, folder: Path) -> str:
    """Write the package into an empty folder; return the next steps."""
    files = engine_package(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already; name another folder with --output")
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
