"""`cachesim compare TRACE`: a production trace on several designs, counts only."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, Format
from cachesim.cli.inputs import STANDARD_INPUT
from cachesim.cli.jobs import processes, processes_wanted, processors, workers
from cachesim.cli.options import Gguf, ModelSizes, Slice, StatesAt
from cachesim.cli.outputs import output_at, print_report, progress, write_page
from cachesim.errors import InputError
from cachesim.files import Output, readable
from cachesim.model.spec import Sizes
from cachesim.play.comparing import Row
from cachesim.report.sweep import sweep_report
from cachesim.scenario.shipped import STDIN
from cachesim.traces.fleet.fleet import ROUTERS, Fleet
from cachesim.traces.fleet.serving import record_events
from cachesim.traces.playing import check, play
from cachesim.traces.reading import Clock
from cachesim.traces.replay import BOUND, Cell, Measured, Seams, require_answers, row_of
from cachesim.traces.slices import states_at
from cachesim.traces.source import Source
from cachesim.traces.sweep import count_parts, open_store, play_cells
from cachesim.traces.verifying import Verified, verified

MOST_WRONG: Final = 5
"""Most wrong answers that are printed."""


@Parameter(name="*", group="Of a trace")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFlags:
    """Options of a trace: model, part, scale, clock, and bytes of the user's model."""

    model: Annotated[
        str | None,
        Parameter(
            help="A preset of `cachesim list presets`; a scenario has its own. By default one with "
            "the layers of --sizes or --gguf, or hybrid."
        ),
    ] = None
    scale: Annotated[
        int, Parameter(help="Trace tokens per simulated one: a first look, with other shares.")
    ] = 1
    unit: Annotated[int, Parameter(help="Tokens per block; 0: as in the first request.")] = 0
    first: Annotated[int | None, Parameter(help="Replay this many requests; all by default.")] = (
        None
    )
    replies: Annotated[
        int | None, Parameter(help="Tokens of every reply; by default as in the trace.")
    ] = None
    turn: Annotated[
        int, Parameter(help="Milliseconds per turn of the server; 0: only the order counts.")
    ] = 0
    remember: Annotated[
        int | None, Parameter(help="Count this many recent blocks as seen before; all by default.")
    ] = None
    timestamps: Annotated[
        Clock | None, Parameter(help="Unit of timestamps; by default that of the trace's form.")
    ] = None
    rank: Annotated[
        int | None, Parameter(help="Of KV events, one data-parallel rank; all by default.")
    ] = None
    sizes: ModelSizes = None
    gguf: Gguf = None
    token_bytes: Annotated[
        int | None, Parameter(help="Bytes of a token in all layers with full attention.")
    ] = None
    window_bytes: Annotated[
        int | None, Parameter(help="Bytes of a token in all layers with a window.")
    ] = None
    state_bytes: Annotated[
        int | None, Parameter(help="Bytes of a sequence's recurrent state, all layers.")
    ] = None
    events: Annotated[
        Path | None,
        Parameter(help="Write the KV events of the servers, as JSON Lines; replicas are ranks."),
    ] = None
    verify: Annotated[
        int | None, Parameter(help="Compute this many answers, with the cache and without.")
    ] = None

    replicas: Annotated[
        int | None, Parameter(help="Simulate this many servers of each profile, with a router.")
    ] = None
    router: Annotated[
        list[str] | None,
        Parameter(
            help=f"Of {', '.join(ROUTERS)}; rules after commas, as "
            "cache-aware,cache_threshold=0.5. May be repeated. [default: round-robin]"
        ),
    ] = None
    change: Annotated[
        list[str] | None,
        Parameter(help="die:2@600, drain:2@600 or join:2@600: replica 2 at 600 s of the trace."),
    ] = None

    other: Annotated[
        list[str] | None,
        Parameter(
            help="Replicas that differ: 2:num_gpu_blocks_override=150 or "
            "4-7:sglang@0.5.23,max_total_tokens=32000. May be repeated."
        ),
    ] = None

    parts: Annotated[
        int,
        Parameter(help="Divide the replicas among this many processes; the result is the same."),
    ] = 1
    states: StatesAt = None
    slice: Slice = None

    def fleets(self) -> list[Fleet | None]:
        """A fleet with each router; one server if none is asked for."""
        if self.replicas is None:
            given = {
                "--router": self.router,
                "--change": self.change,
                "--other": self.other,
                "--parts": self.parts > 1,
            }
            if name := next((name for name, value in given.items() if value), None):
                raise InputError(f"{name} is for a fleet: write --replicas N as well")
            return [None]
        if self.verify is not None:
            raise InputError("--verify computes the answers of one server; leave out --replicas")
        routers = self.router or ["round-robin"]
        return [
            Fleet.of(self.replicas, router, self.change or (), self.other or (), self.parts)
            for router in routers
        ]

    def given(self) -> list[str]:
        """Options with another value than the default, as written on the command line."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]

    def source(self, trace: str, file: str = "") -> Source:
        """The trace, read with these options."""
        names = ("scale", "unit", "first", "replies", "turn", "remember", "timestamps", "rank")
        return Source(name=trace, file=file, **{name: getattr(self, name) for name in names})

    def measured(self) -> Measured | None:
        """Sizes of the user's model, if given."""
        given = {"token": self.token_bytes, "window": self.window_bytes, "state": self.state_bytes}
        flags = {name: value for name, value in given.items() if value is not None}
        by = " ".join(f"--{name}-bytes {value}" for name, value in flags.items())
        files = [
            *([f"--sizes {self.sizes}"] if self.sizes is not None else ()),
            *([f"--gguf {self.gguf}"] if self.gguf is not None else ()),
            *([by] if by else ()),
        ]
        if len(files) > 1:
            msg = f"{' and '.join(files)}: the sizes of one model; leave one of the two out"
            raise InputError(msg)
        if self.sizes is not None:
            return Measured.of_model(self.sizes)
        if self.gguf is not None:
            return Measured.of_gguf(self.gguf)
        return Measured(sizes=Sizes(**flags), by=by) if flags else None


WHOLE: Final = TraceFlags()
"""The whole trace at its own scale."""


def replay(
    trace: str,
    *,
    servers: Sequence[Row],
    flags: TraceFlags,
    settings: Mapping[str, Any],
    jobs: int | None,
    format: Format,
    page: Output | None,
) -> int:
    """Replay a trace on servers; 1 if an answer is wrong or a server ends before the trace does.

    `settings` are for all servers; the options of one replace them.
    """
    if not servers:
        msg = f"{trace} is a trace: name a profile to replay it on, as in: --profile vllm@0.33.0"
        raise InputError(msg)
    measured = flags.measured()
    events = output_at(flags.events, "--events")
    seams = states_at(flags.states, flags.slice)
    with _kept(trace) as (name, file):
        source = flags.source(name, file)
        model = flags.model or ("hybrid" if measured is None else measured.preset())
        bound = Cell(source=source, profile=BOUND, model=model)
        cells = [bound]
        for server, fleet in product(servers, flags.fleets()):
            options = tuple({**settings, **server.options}.items())
            cell = replace(bound, profile=server.profile, options=options, measured=measured)
            cells.append(replace(cell, fleet=fleet))
        for cell in cells:
            check(cell)
        if events is not None and len(cells) > 2:
            msg = f"--events {flags.events}: the events of one server or fleet; name one profile"
            raise InputError(msg)
        count = min(processes_wanted(jobs) or processors(), count_parts(cells))
        found = [
            row_of(*played) for played in zip(cells, _played(cells, count, seams), strict=True)
        ]
        held = [] if flags.verify is None else _verified(cells[1:], flags.verify, jobs)
        if events is not None:
            events.fill(partial(record_events, cells[1]))
    parts = [*sweep_report(found, f"cachesim compare {trace}"), *_notes(cells[1:], held)]
    write_page(page, f"cachesim compare {trace}", parts)
    for row, checked in zip(found[1:], held, strict=False):
        row["verified"] = asdict(checked)
    print_report(parts, found, format=format, indent=2)
    whole = not any(row["ended"] for row in found)
    if whole:
        require_answers(found)
    return AS_EXPECTED if whole and all(verified.right for verified in held) else NOT_AS_EXPECTED


@contextmanager
def _kept(trace: str) -> Iterator[tuple[str, str]]:
    """A trace's name; a stream is copied to a file, since each server reads it again."""
    piped = trace in {"-", STDIN}
    path = Path(trace)
    if not piped and not (path.is_fifo() or path.is_char_device()):
        yield trace, ""
        return
    with NamedTemporaryFile(prefix="cachesim-") as copy:
        with readable(trace):
            with nullcontext(sys.stdin.buffer) if piped else path.open("rb") as stream:
                copyfileobj(stream, copy)
            copy.flush()
        yield STANDARD_INPUT if piped else trace, copy.name


def _verified(cells: Sequence[Cell], count: int, jobs: int | None) -> list[Verified]:
    with workers(len(cells), processes_wanted(jobs)) as do:
        return list(do(partial(verified, count=count), cells))


def _notes(cells: Sequence[Cell], held: Sequence[Verified]) -> Iterator[Text]:
    for cell, checked in zip(cells, held, strict=False):
        flags = f", {cell.settings}" if cell.options else ""
        yield Text(f"{cell.profile}, {cell.model}{flags}: {checked.sentence}")
        for wrong in checked.wrong[:MOST_WRONG]:
            yield Text(f"  {wrong.sentence}")
        if len(checked.wrong) > MOST_WRONG:
            yield Text(f"  {len(checked.wrong) - MOST_WRONG} more, in --format json")
        if checked.evidence:
            yield Text(f"  evidence: {checked.evidence}")


def _played(cells: Sequence[Cell], count: int, seams: Seams | None) -> list[dict[str, Any]]:
    if count == 1:
        outcomes = []
        for cell in cells:
            with progress(cell.profile, cell.source.first, "requests") as advance:
                outcomes.append(play(cell, advance, seams))
        return outcomes
    with open_store(None) as store, progress("running", count_parts(cells), "servers") as advance:
        return play_cells(cells, store, lambda: processes(count), advance, seams)
