"""`cachesim export`: a scenario as the engine's own test, or as a report in its project's form."""

import sys
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.report.consoles import notes, show
from cachesim.scenario.shipped import load_all

Form: TypeAlias = Literal["test", "pytest", "unittest", "issue", "patch"]


def export_command(
    scenario: Annotated[str, Parameter(help="A scenario: a file, or a shipped one's name.")],
    *,
    to: Annotated[
        Form,
        Parameter(
            help="test (pytest or unittest, as the engine's suite has it), issue (a report in its "
            "project's form) or patch (the change in words)."
        ),
    ] = "test",
    release: Annotated[
        str, Parameter(help="The release; by default the one that the scenario accuses.")
    ] = "",
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="The file to write.")
    ] = None,
    prove: Annotated[
        bool | None,
        Parameter(
            negative="--no-prove",
            help="Run the test on a release that fails it and on one that passes, in environments "
            "that are made for it; by default where these exist already.",
        ),
    ] = None,
) -> int:
    """Write a scenario as the engine's own test, or as a report to its project.

    The file needs the project alone. A test is run first, red and green; a file whose test was not
    run says so in its first line.

    Example: cachesim export llama.cpp-two-codes --to pytest -o test_two_codes.py
    """
    loaded = load_all([scenario])
    if len(loaded) != 1:
        raise InputError(f"{scenario}: a folder of {len(loaded)} scenarios; name one of them")
    status, said = AS_EXPECTED, ""
    if to in {"issue", "patch"}:
        from cachesim.export.case import case_of
        from cachesim.export.issue import issue_of, patch_of

        case = case_of(loaded[0][1], release)
        text = issue_of(case) if to == "issue" else patch_of(case)
    else:
        from cachesim.export.forms import exported

        test = exported(loaded[0][1], release, to=to, runs=prove)
        text, said = test.text, test.said
        status = AS_EXPECTED if test.as_said else NOT_AS_EXPECTED
    if output is None:
        sys.stdout.write(text)
    else:
        Output.at(output, "--output").write(text)
    if said:
        show(notes(), Text(said))
    return status
