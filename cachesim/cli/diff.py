"""`cachesim diff`: two profiles on one scenario, and where they part."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from cachesim.cli.run import jobs_of, play
from cachesim.cli.status import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.model.arithmetic import ArithmeticName
from cachesim.report.consoles import results, show
from cachesim.report.events import event_line
from cachesim.report.findings import one_scenario

SHOWN = ("cached", "processed", "answer", "error", "generated", "checkpoints")


def diff_command(
    one: str,
    other: str,
    name: str,
    *,
    seed: int | None = None,
    arithmetic: ArithmeticName = "float",
) -> int:
    """Run both and say where they differ; 0 if they do not, 1 if they do."""
    screen = results()
    jobs = jobs_of([name], [one, other], seed)
    runs = list(play(jobs, arithmetic, verify=True))
    report = one_scenario(jobs[0].scenario, runs, source=jobs[0].source, width=screen.width)
    show(screen, report)
    differing = [i for i in range(len(runs[0]["steps"])) if _differ(runs, i)]
    if not differing:
        screen.print("no difference in any step")
        return AS_EXPECTED
    first = runs[0]["steps"][differing[0]]["name"]
    screen.print(f"{len(differing)} of {len(runs[0]['steps'])} steps differ; the first is {first}")
    for line in _parting(runs, differing[0]):
        show(screen, line)
    return NOT_AS_EXPECTED


def _differ(runs: list[dict[str, Any]], index: int) -> bool:
    one, other = (run["steps"][index] for run in runs)
    parked = [[entry["n_tokens"] for entry in each["prompt_cache"]] for each in (one, other)]
    return parked[0] != parked[1] or any(one[key] != other[key] for key in SHOWN)


def _parting(runs: list[dict[str, Any]], index: int) -> list[Text]:
    """The first event that one profile has and the other has not."""
    for step in range(index + 1):
        pair = [run["steps"][step]["events"] for run in runs]
        for at in range(max(map(len, pair))):
            events = [each[at] if at < len(each) else None for each in pair]
            if events[0] != events[1]:
                where = f"they part in step {runs[0]['steps'][step]['name']}:"
                return [Text(where), *(_event(r, e) for r, e in zip(runs, events, strict=True))]
    return []


def _event(run: Mapping[str, Any], event: Mapping[str, Any] | None) -> Text:
    text = Text(f"  {run['profile']}: ", style="quiet")
    return text + (Text("nothing more") if event is None else event_line(event))
