"""`cachesim replay`: a production trace on one design after the other, counts only."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.progress import Progress
from rich.table import Table

from cachesim.cli import Format
from cachesim.cli.jobs import setting
from cachesim.cli.status import AS_EXPECTED
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.report.consoles import notes, results, show
from cachesim.traces.reading import open_trace
from cachesim.traces.replay import Plan, Replayed, replay


def replay_command(
    trace: Path,
    *,
    profile: Annotated[
        list[str] | None,
        Parameter(name=["--profile", "-p"], negative="", help="As vllm@0.33.0; may be repeated."),
    ] = None,
    model: Annotated[str, Parameter(help="A preset; `cachesim list presets`.")] = "hybrid",
    scale: Annotated[int, Parameter(help="Tokens of the trace that become one.")] = 32,
    unit: Annotated[int, Parameter(help="Tokens of a block; 0: as the first request has it.")] = 0,
    first: Annotated[int | None, Parameter(help="So many requests; all if left out.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter("--set", negative="", help="A flag of the server, as num_gpu_blocks_override=9."),
    ] = None,
    format: Annotated[Format, Parameter(help="How to print.")] = "text",
) -> int:
    """Play a production trace on servers, in order, and count what is reused and what is lost.

    A trace is a file of JSON Lines with `input_length`, `output_length` and `hash_ids`, as Mooncake
    and Bailian publish them. Requests come one after the other; nothing is said about time.

    Example: cachesim replay conversation_trace.jsonl -p vllm@0.33.0 --model dense
    """
    if not profile:
        msg = "name a profile to play the trace on, as in: --profile vllm@0.33.0"
        raise InputError(msg)
    if first is not None and first < 1:
        msg = f"--first is {first}; write a whole number from 1"
        raise InputError(msg)
    options = dict(map(setting, settings or ()))
    plans = [
        Plan(
            profile=Profile.parse(each),
            model=preset(model),
            options=options,
            scale=scale,
            first=first,
        )
        for each in profile
    ]
    found = [_played(plan, trace, unit) for plan in plans]
    if format == "json":
        results().print_json(json.dumps([as_dict(each) for each in found]))
    else:
        title = f"{trace.name}: {model}, {scale} tokens of the trace as one"
        show(results(), table(found, title))
        show(results(), losses(found))
    return AS_EXPECTED


def _played(plan: Plan, path: Path, unit: int) -> Replayed:
    size, requests = open_trace(path, unit)
    found = Replayed(profile=plan.profile)
    with _progress(str(plan.profile)) as advance:
        for found in replay(plan, requests, size):
            advance(found.requests)
    return found


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int], None]]:
    console = notes()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done: shown.update(task, completed=done)


def as_dict(found: Replayed) -> dict[str, Any]:
    """One server's account, for programs."""
    return {
        "profile": str(found.profile),
        "requests": found.requests,
        "refused": found.refused,
        "prompt_tokens": found.prompt_tokens,
        "cached": found.cached,
        "rate": round(found.rate, 6),
        "lost": dict(found.lost),
    }


def table(found: list[Replayed], title: str) -> Table:
    """How much each server reused."""
    shown = Table(title=title, title_style="")
    for head in ("profile", "requests", "refused", "tokens", "reused", "share"):
        shown.add_column(head, justify="left" if head == "profile" else "right")
    for each in found:
        shown.add_row(
            str(each.profile),
            f"{each.requests:,}",
            f"{each.refused:,}",
            f"{each.prompt_tokens:,}",
            f"{each.cached:,}",
            f"{each.rate:.4f}",
        )
    return shown


def losses(found: list[Replayed]) -> Table:
    """The tokens that were computed before and not reused, by cause."""
    shown = Table(title="computed before, and not reused, by cause", title_style="")
    shown.add_column("cause")
    for each in found:
        shown.add_column(str(each.profile), justify="right")
    totals = sorted(
        {rule for each in found for rule in each.lost},
        key=lambda rule: -sum(each.lost[rule] for each in found),
    )
    for rule in totals:
        shown.add_row(rule, *(f"{each.lost[rule]:,}" for each in found))
    return shown
