"""`cachesim real sglang`: SGLang's own scheduler beside the simulated one, decision by decision."""

from typing import Literal

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.rules import Rules
from cachesim.prove.playing import comparing, named
from conformance.real.agreement import play_on_runner, show_overrides
from conformance.real.schedules import RealScheduler
from conformance.real.sglang.rows import compare_rows, differs_in
from conformance.real.sglang.scheduler import (
    AGENTS,
    MIXED,
    SCHEDULER,
    features_of,
    overrides,
    with_rust,
)
from conformance.real.sglang.workloads import KINDS


@comparing
def real_sglang(
    *,
    release: str = "",
    seed: int = 0,
    workloads: int = 100,
    first: int = 0,
    kind: str = "",
    agents: bool = False,
    mixed_chunk: bool = False,
    feature: str = "",
    tree_core: Literal["python", "rust"] = "python",
    guided: bool = False,
    scenario: str | None = None,
    runner: bool = False,
    settings: bool = False,
    newest: bool = False,
    wheel: str = "",
) -> int:
    """Run random workloads on SGLang's own scheduler and on the simulated one.

    Hits, chunks, branching points, retractions, evictions, every node of the tree and the free
    slots must be the same. Only decisions are compared: no kernel runs. The configuration is made
    of a workload's flags by the release's own `ServerArgs`; `--settings` prints the exceptions.

    Example: cachesim real sglang --release 0.5.23 --workloads 1000

    Parameters
    ----------
    release
        0.5.9, 0.5.22 or 0.5.23; the newest if left out.
    seed
        The seed of everything drawn at random.
    workloads
        How many: each is a fresh scheduler and 3 to 10 groups of requests.
    first
        The number of the first workload, to come back to one of a longer run.
    kind
        Only workloads of this kind, as `storage`; all kinds take turns if empty.
    agents
        Workloads of coding agents: long prompts, sub-agents, several users at once.
    mixed_chunk
        Workloads with `--enable-mixed-chunk`; some of the agents' are so in any case.
    feature
        Workloads of one feature: priorities, policies, adapters, sessions, streaming, drafts,
        thinking, limits.
    tree_core
        The tree core in Python, or that in Rust, the default of servers from 0.5.19 on.
    guided
        Workloads of a guided search, as many of each model.
    scenario
        A scenario to run instead, on every release that it names or on `--release` alone: a file,
        a folder, or the name of a shipped one. With `--runner` on the model runner.
    runner
        Compare the states that each row of a batch reads and tracks, by the model runner's own
        metadata, instead.
    settings
        Print the settings that differ from those of a started server, with the reasons.
    newest
        Look up the newest version and say whether it still is as the newest release known here; if
        not, fit the rule fields that explain it.
    wheel
        With `newest`: another version, as 0.5.22.

    """
    numbers = numbers_of(kind, first, workloads)
    if newest or wheel:
        return _played(SCHEDULER, tree_core).compare_newest(seed, numbers, wheel)
    if runner and scenario is not None:
        return play_on_runner(FAMILY, scenario, release, differs_in)
    if scenario is not None:
        return _played(SCHEDULER, tree_core).play_named(scenario, release)
    own = release or FAMILY.real()[-1]
    if guided:
        return _played(SCHEDULER, tree_core).compare_guided(own, seed, numbers).show()
    if runner:
        return compare_rows(own, seed, numbers)
    if settings:
        title = f"sglang {own}: settings that differ from a server's start"
        return show_overrides(title, overrides(own, seed, numbers))
    usual = MIXED if mixed_chunk else SCHEDULER
    usual = named("feature", feature, features_of(own)) if feature else usual
    return _played(AGENTS if agents else usual, tree_core).compare(own, seed, numbers).show()


def _played(scheduler: RealScheduler[Rules], tree_core: str) -> RealScheduler[Rules]:
    return with_rust(scheduler) if tree_core == "rust" else scheduler


def numbers_of(kind: str, first: int, count: int) -> range:
    """The numbers of `count` workloads, of one kind or of all in turn."""
    if not kind:
        return range(first, first + count)
    place = named("kind", kind, {each: at for at, each in enumerate(KINDS)})
    begin = first + (place - first) % len(KINDS)
    return range(begin, begin + count * len(KINDS), len(KINDS))
