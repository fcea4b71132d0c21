"""`cachesim real ...`: results of the real engines beside those of the simulator.

Plain functions that print to stdout, complain to stderr and return an exit status: 0 all agree,
1 something differs, 2 wrong use, 4 nothing was compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclopts import Parameter
from rich.table import Table

from cachesim.errors import OptionError, ScenarioError
from cachesim.prove import playing
from cachesim.prove.commands import ON_LLAMA_CPP
from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.fitting import PRESETS
from cachesim.prove.llama_cpp.server import as_release, environment_for, overrides
from conformance.real import agreement as agreeing
from conformance.real.ik_llama.commands import real_ik_llama_cpp
from conformance.real.llama_cpp.compare import (
    PlayDrawn,
    SideBySide,
    Tally,
    show_difference,
    title_of,
)
from conformance.real.llama_cpp.library import real_library
from conformance.real.llama_cpp.logits import real_logits
from conformance.real.llama_cpp.logs import COLUMNS, HEADS, agreements, columns_of
from conformance.real.llama_cpp.wheels import real_fit, real_newest
from conformance.real.llama_cpp_python.commands import real_llama_cpp_python
from conformance.real.marconi.commands import real_marconi
from conformance.real.mlx_lm.commands import real_mlx_lm
from conformance.real.sglang.commands import real_sglang
from conformance.real.transformers.commands import real_transformers
from conformance.real.vectors.replay import replay
from conformance.real.vllm.commands import real_vllm

USUAL: Final = "b9538"
"""The release that is run where none is named."""


def real_vectors(*files: Path) -> int:
    """Replay recorded results of real engines; print the simulator's first difference.

    Example: cachesim real vectors tests/vectors/*.jsonl.gz

    Parameters
    ----------
    files
        Files in the format of `tests/vectors`: one sequence or workload per line.

    """
    if not files:
        msg = "name at least one file, as in: cachesim real vectors tests/vectors/*.jsonl.gz"
        raise ScenarioError(msg)
    out, all_equal = playing.console(), True
    for path in files:
        summary = replay(path)
        out.print(f"{path}: {summary}")
        if not summary.operations:
            playing.not_compared(f"{path} has no recorded operation")
        for name, race in summary.races:
            out.print(f"  {name}: {race.order}", markup=False, highlight=False)
        if summary.first is not None:
            where, difference = summary.first
            out.print(f"first difference: {where}", markup=False)
            for line in difference.lines():
                out.print(line, markup=False)
        all_equal = all_equal and summary.first is None
    return 0 if all_equal else 1


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppFlags:
    """Options of the comparison with llama.cpp's servers.

    Parameters
    ----------
    release
        A build; b9538 by default, for a scenario every release that it names. With `logs`: whose
        logs. With `newest`: the profile compared with the wheel.
    seed
        The seed of everything drawn at random.
    workloads
        How many: each is a fresh server with random flags and 4 to 12 requests, or 70.
    model
        A preset of `cachesim list presets`; may be repeated. By default all that the release can
        load.
    first
        The number of the first workload.
    scenario
        A scenario to run instead: a file, a folder, or the name of a shipped one.
    logits
        Compare logits and greedy tokens of cold prompts instead.
    arrivals
        Workloads in which a request arrives while the server reads another one's prompt.
    agents
        Workloads of coding agents: long prompts, tool results, edits, compaction, sub-agents.
    logs
        Make logs of every release instead, rebuild their workloads as `cachesim why` does, and
        count how often the replay reuses what the server did.
    requests
        With `logs`: how many requests of each kind of log.
    fit
        A build or a version of its package: search the rules that come nearest to it.
    settings
        Print the settings that differ from those of `llama-server -m model`, with the reasons.
    newest
        Compare the newest wheel with the newest release known here; fit the rules that differ.
    wheel
        With `newest`: another wheel, as b11063 or 2026.9.11063.
    library
        A version of the wheel llama-cpp-py-sync, as 0.11739: compare the memory calls of its
        libllama instead, each workload a context and 8 to 40 calls.

    """

    release: str = ""
    seed: int = 0
    workloads: int = 100
    model: Sequence[str] = ()
    first: int = 0
    scenario: str | None = None
    logits: bool = False
    arrivals: bool = False
    agents: bool = False
    logs: bool = False
    requests: int = 2500
    fit: str | None = None
    settings: bool = False
    newest: bool = False
    wheel: str = ""
    library: str = ""


AS_IT_IS: Final = LlamaCppFlags()
"""The default: random workloads on the usual release."""


@playing.comparing
def real_llama_cpp(*, flags: LlamaCppFlags = AS_IT_IS) -> int:
    """Run random workloads, or a scenario, on a real llama.cpp server and on the simulator.

    Example: cachesim real llama.cpp --release b9538 --seed 1 --workloads 100
    """
    if flags.newest or flags.wheel:
        return real_newest(
            flags.wheel, release=flags.release, workloads=flags.workloads, seed=flags.seed
        )
    if flags.library:
        return real_library(
            flags.library, seed=flags.seed, sequences=flags.workloads, presets=presets_of(flags)
        )
    if flags.settings:
        release = flags.release or USUAL
        title = f"llama.cpp {release}: settings that differ from a server's start"
        return agreeing.show_overrides(title, overrides(release))
    if flags.fit is not None:
        return real_fit(flags.fit, workloads=flags.workloads, seed=flags.seed)
    if flags.logs:
        return _real_logs(flags.release, seed=flags.seed, requests=flags.requests)
    if flags.scenario is not None:
        return ON_LLAMA_CPP.play_named(flags.scenario, flags.release)
    release = flags.release or USUAL
    return real_logits(release, flags.seed) if flags.logits else _random(release, flags)


def _real_logs(release: str, *, seed: int, requests: int) -> int:
    columns = columns_of(as_release(release)) if release else COLUMNS
    for name in sorted({name for one, _, other in columns for name in (one, other)}):
        environment_for(as_release(name)).ready()
    table = Table(title=f"logs of the real servers, replayed, seed {seed}", title_style="")
    for head in HEADS:
        table.add_column(head, justify="left" if head in {"log", "other release"} else "right")
    wrong: list[str] = []
    for agreement in agreements(columns, seed=seed, requests=requests):
        table.add_row(*agreement.row())
        wrong += agreement.wrong
    playing.console().print(table)
    if wrong:
        playing.console().print(f"differing: {', '.join(wrong[:20])}")
    return 0


def presets_of(flags: LlamaCppFlags) -> tuple[str, ...]:
    """The presets that are asked for, or all that llama.cpp loads."""
    presets = tuple(flags.model) or tuple(PRESETS)
    unknown = [preset for preset in presets if preset not in PRESETS]
    if unknown:
        raise OptionError(f"there is no preset {unknown[0]!r}; there are {', '.join(PRESETS)}")
    return presets


def _random(release: str, flags: LlamaCppFlags) -> int:
    presets, out = presets_of(flags), playing.console()
    wheel = as_release(release)
    environment_for(wheel).ready()
    tally, shown = Tally(title=title_of(release, flags.seed)), None
    unstarted: list[str] = []
    with SideBySide(wheel) as pair:
        play: PlayDrawn = pair.play_arrival if flags.arrivals else pair.play_random
        play = pair.play_agents if flags.agents else play
        for number in playing.watched(range(flags.first, flags.first + flags.workloads)):
            try:
                played = play(seed=flags.seed, number=number, presets=presets)
            except RealServerError as error:  # the simulated server did start
                unstarted.append(f"workload {number}: {error}")
                continue
            tally.count(played)
            if played.difference is not None and shown is None:
                shown = pair.shrunk(played.difference)
    out.print(tally.table())
    if not flags.arrivals:
        heads = ("workloads", "requests", "agreeing", "share")
        table = agreeing.table_of_numbers("by what a workload uses", "feature", *heads)
        counts = tally.features.counts
        for name in sorted(counts["workloads"]):
            numbers = [counts[head][name] for head in heads[:-1]]
            part = f"{100 * numbers[2] / max(1, numbers[1]):.2f} %"
            table.add_row(name, *(f"{number:,}" for number in numbers), part)
        out.print(table)
        out.print(f"races, by another run of the same: {tally.races}")
    for each in unstarted:
        out.print(each, markup=False)
    if shown is not None:
        show_difference(out, shown)
    tally.require()
    return 0 if tally.all_agree and not unstarted else 1


__all__ = [
    "real_ik_llama_cpp", "real_llama_cpp", "real_llama_cpp_python", "real_marconi",
    "real_mlx_lm", "real_sglang", "real_transformers", "real_vllm",
]  # fmt: skip
