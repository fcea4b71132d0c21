"""`cachesim sweep`: a grid of traces, servers and flags, over processes or machines."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED
from cachesim.cli.jobs import cluster, processes, processes_wanted, processors
from cachesim.cli.options import AnyFormat, Dask, Jobs, Page, Slice, StatesAt
from cachesim.cli.outputs import output_at, page_at, print_report, progress, write_page
from cachesim.errors import InputError
from cachesim.files import PARQUET, TABLE, Output
from cachesim.report.consoles import notes, show
from cachesim.report.sweep import as_csv, sweep_report
from cachesim.traces.plan import read_plan
from cachesim.traces.replay import require_answers, row_of
from cachesim.traces.slices import states_at
from cachesim.traces.sweep import Workers, count_parts, flat, open_store, play_cells


def sweep_command(
    plan: Annotated[Path, Parameter(help="A TOML file.")],
    *,
    traces: Annotated[
        Path | None, Parameter(help="Where the plan's files are; next to the plan if left out.")
    ] = None,
    store: Annotated[
        Path | None, Parameter(help="Keep results here; next to the plan if left out.")
    ] = None,
    states: StatesAt = None,
    slice: Slice = None,
    jobs: Jobs = None,
    dask: Dask = None,
    csv: Annotated[Path | None, Parameter(help="Write the table for a notebook.")] = None,
    parquet: Annotated[Path | None, Parameter(help="The same as Parquet.")] = None,
    format: AnyFormat = "text",
    report: Page = None,
) -> int:
    """Replay traces on a grid of servers and flags.

    Results are stored: an interrupted sweep resumes, and an extended plan runs only new cells. The
    results do not depend on the number of processes or machines.

    Example: cachesim sweep plan.toml --report sweep.html
    """
    if parquet is not None and find_spec("pyarrow") is None:
        msg = "--parquet needs pyarrow, which is not installed: pip install 'cachesim[parquet]'"
        raise InputError(msg)
    table = output_at(csv, "--csv", TABLE)
    columns = output_at(parquet, "--parquet", PARQUET)
    page, seams = page_at(report), states_at(states, slice)
    cells = read_plan(plan, traces)
    workers: Workers
    if dask is None:
        workers = partial(
            processes, min(processes_wanted(jobs) or processors(), count_parts(cells))
        )
    else:
        workers = partial(cluster, dask)
    path = store or plan.with_suffix(".results")
    with open_store(path) as known, progress("running", count_parts(cells), "cells") as advance:
        outcomes = play_cells(cells, known, workers, advance, seams)
    found = [row_of(*outcome) for outcome in zip(cells, outcomes, strict=True)]
    parts = sweep_report(found, f"cachesim sweep {plan.name}")
    print_report(parts, found, format=format, indent=2)
    if table is not None:
        table.write(as_csv([flat(row) for row in found]))
    if columns is not None:
        write_parquet(columns, found)
    write_page(page, plan.name, parts)
    show(notes(), Text(f"results: {path}"))
    require_answers(found)
    return AS_EXPECTED


def write_parquet(output: Output, found: list[dict[str, Any]]) -> None:
    """The flat table as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = pa.Table.from_pylist([flat(row) for row in found])
    output.fill(lambda path: parquet.write_table(columns, path))
