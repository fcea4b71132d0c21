"""`cachesim why --tune`: a workload under other settings, on all cores."""

from collections.abc import Sequence
from pathlib import Path

from cachesim.cli import AS_EXPECTED
from cachesim.cli.inputs import given, requests_in
from cachesim.cli.outputs import print_report, write_page
from cachesim.cli.progress import tracked
from cachesim.cli.workers import workers
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.lab.logs.other_settings import swept
from cachesim.lab.logs.sizes import ASSUMED, WHOSE, sizes_of_gguf
from cachesim.lab.logs.tuning import (
    Trial,
    TrialResult,
    Tuned,
    of_dump,
    of_log,
    of_scenario,
    run_trial,
    summary,
)
from cachesim.lab.logs.whole import UserSettings, read_files, replays_of
from cachesim.model.spec import Sizes
from cachesim.report.tune import tune_report
from cachesim.scenario.shipped import STDIN, load_all, shipped_files


def tune_command(
    files: Sequence[str],
    wanted: UserSettings,
    gguf: Path | None,
    *,
    format: str,
    page: Output | None,
) -> int:
    """Play requests with other settings, and recommend those that process the fewest tokens."""
    tuned = _tuned_of(files, wanted, None if gguf is None else sizes_of_gguf(gguf)[0])
    found = swept(tuned.runs, on_all_cores)
    source = ", ".join(files)
    run = tuned.runs[0]
    result = {
        "format": 1,
        "source": source,
        "requests": tuned.requests,
        "assumed": list(tuned.assumed),
        "small_network": tuned.sizes == ASSUMED,
        "sizes": tuned.sizes,
        "bytes_say": WHOSE.get(tuned.sizes, ""),
        "options": dict(run.options),
    } | summary(found, run)
    parts = tune_report(result)
    write_page(page, "cachesim why --tune", parts)
    print_report(parts, result, format=format)
    return AS_EXPECTED


def _tuned_of(files: Sequence[str], wanted: UserSettings, sizes: Sizes | None) -> Tuned:
    if len(files) == 1 and _is_scenario(files[0]):
        ((_, scenario), *rest) = load_all(files)
        if rest:
            msg = f"{files[0]}: tune takes one scenario, and these are {len(rest) + 1}"
            raise InputError(msg)
        if wanted.model or wanted.window:
            msg = f"{files[0]}: --model and --window are for logs; a scenario has its own model"
            raise InputError(msg)
        return of_scenario(scenario, wanted, sizes)
    with given(files, example="cachesim why --tune server.log") as inputs:
        requests = requests_in(inputs)
        if requests:
            return of_dump(requests, wanted, sizes)
        read = read_files([(each.name, each.file) for each in inputs])
    found = replays_of(read, wanted)
    replays = [each for each in found if each.settings.is_played]
    if not replays:
        engine = found[0].settings.engine
        msg = f"{', '.join(files)}: a log of {engine} cannot be played with other settings"
        raise InputError(msg)
    return of_log(replays, sizes)


def _is_scenario(name: str) -> bool:
    """True for a scenario's file or a shipped name; other files are logs or recordings."""
    path = Path(name)
    if name in {"-", STDIN} or path.is_dir():
        return False
    return path.suffix == ".toml" or (
        not path.exists() and name in {each.stem for each in shipped_files()}
    )


def on_all_cores(trials: Sequence[Trial]) -> list[TrialResult]:
    """Trials played by worker processes, with a progress line."""
    with workers(len(trials)) as do:
        done = tracked(do(run_trial, trials), len(trials), "trying", "settings")
        return [each for each in done if each is not None]
