"""`python -m conformance.real_engines`: the real engines beside the simulator, one line per check.

Each engine's release is set up in an environment of its own the first time. One that cannot be
installed is skipped, loudly; one disagreement is a failure.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console

from cachesim.engines.llama_cpp_python.family import FAMILY as BINDING
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.prove.environment import Environment, EnvironmentUnavailableError
from cachesim.prove.llama_cpp.fitting import PRESETS, Abilities, Release
from cachesim.prove.llama_cpp.server import (
    ROUTERS,
    RealServer,
    environment_for,
    router_environment,
)
from cachesim.prove.llama_cpp_python.scenarios import DRAWN, RealInstances
from cachesim.prove.llama_cpp_python.scenarios import environment_for as binding_environment_for
from cachesim.prove.mlx_lm.process import environment_for as mlx_environment_for
from cachesim.prove.mlx_lm.scenarios import play_mlx_scenario
from cachesim.scenario.shipped import load_all
from conformance.real.llama_cpp.compare import PlayDrawn, SideBySide, Tally, show_difference
from conformance.real.llama_cpp.logits import compare_logits
from conformance.real.llama_cpp_python.compare import draw as draw_binding
from conformance.real.mlx_lm.classes import compare_classes
from conformance.real.mlx_lm.compare import compare_server
from conformance.real.mlx_lm.logits import compare_mlx_logits
from conformance.real.mlx_lm.server_workloads import draw_agents as draw_mlx_agents
from conformance.real.mlx_lm.server_workloads import draw_models as draw_mlx_models
from conformance.real.mlx_lm.vllm_mlx import ENGINES, RAPID_MLX, compare_images, compare_vllm_mlx
from conformance.real.mlx_lm.vllm_mlx import RELEASE as UNDER_VLLM_MLX
from conformance.real.schedules import RealScheduler
from conformance.real.sglang.scheduler import AGENTS as SGLANG_AGENTS
from conformance.real.sglang.scheduler import MIXED as SGLANG_MIXED
from conformance.real.sglang.scheduler import SCHEDULER as SGLANG_SCHEDULER
from conformance.real.sglang.scheduler import configuration_of, features_of, with_rust
from conformance.real.transformers.environments import NEWEST as TRANSFORMERS
from conformance.real.transformers.environments import (
    environment_for as transformers_environment_for,
)
from conformance.real.vllm.scheduler import AGENTS as VLLM_AGENTS
from conformance.real.vllm.scheduler import COMPRESSED as VLLM_COMPRESSED
from conformance.real.vllm.scheduler import LOADS as VLLM_LOADS
from conformance.real.vllm.scheduler import OFFLOADING as VLLM_OFFLOADING
from conformance.real.vllm.scheduler import SCHEDULER as VLLM_SCHEDULER
from conformance.real.vllm.scheduler import SYNCHRONOUS as VLLM_SYNCHRONOUS
from conformance.real.vllm.steps import KERNELS
from conformance.real_router import play_routed
from conformance.wrong_answers import FOUR_SLOTS, STALE_NEIGHBOUR, THREE_REQUESTS, verdict_on

SEED: Final = 20261120
WORKLOADS: Final = 10  # per release of llama.cpp that is looked at closely
ROUTED: Final = 6  # of a router
WORKLOADS_BETWEEN: Final = 3  # per release between them; `cachesim real llama.cpp` plays more
TIMES: Final = 4
"""So many times as many drawn workloads in `make nightly`."""

PATIENCE: Final = 20.0
"""Seconds until a server that never answers is given up: a prompt of these workloads takes one."""
BINDING_WORKLOADS: Final = 10  # per preset
PROMPTS: Final = 10  # per preset
MLX_SEQUENCES: Final = 15  # per release of mlx-lm that is looked at closely
MLX_SEQUENCES_BETWEEN: Final = 5  # per release between them
SCHEDULED: Final = 16  # on the oldest and the newest scheduler of vLLM and SGLang
AT_ONCE: Final = 4
"""Workloads of agents, of asynchronous scheduling and of mixed chunks."""

BETWEEN: Final = 4
"""Fewer by so much on the schedulers between; `cachesim real vllm --release` plays more."""

ONE_OF: Final = 8
"""Releases of an engine of which one is compared; `make nightly` compares all."""

AGENTS: Final = 3
"""Workloads of agents on a release of llama.cpp or mlx-lm that is looked at closely."""

MLX_WORKLOADS: Final = 11  # one of each family
MLX_WORKLOADS_BETWEEN: Final = 2
MLX_CLOSELY: Final = ("0.30.6", "0.31.3", "0.32.2")
"""Releases of mlx-lm whose logits and wrong batches are looked at too."""

MLX_FAMILIES: Final = {
    "qwen3_5": "mlx-lm-1072-padding-in-the-convolution",
    "granitemoehybrid": "mlx-lm-1908-tokens-lost",
    "mamba2": "mlx-lm-padding-decays-the-state",
    "nemotron_h": "mlx-lm-nemotron-tokens-lost",
    "a draft model": "mlx-lm-draft-last-token-unfed",
    "llama4": "mlx-lm-1673-chunk-dropped",
    "gemma3n": "mlx-lm-1699-gemma3n-in-batches",
}
"""The everyday case of each family: two chats whose second turns run together; and a second turn
with a draft model."""

CLOSELY: Final = ("b9093", "b9538", "b11549")
"""Releases of llama.cpp whose weights and wrong answers are looked at too."""

OUT: Final = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something to hold against a real engine; it says what it found, and whether that is well."""

    name: str
    environment: Environment
    run: Callable[[], tuple[bool, str]]


def workloads_agree(release: Release, *, times: int = 1) -> tuple[bool, str]:
    """Random workloads: every request has the same counts on both."""
    tally = Tally()
    with SideBySide(release, patience=PATIENCE) as pair:
        for number in range(times * (WORKLOADS if release in CLOSELY else WORKLOADS_BETWEEN)):
            if not _agrees(tally, pair.play_random, number):
                break
        for number in range(AGENTS if release in CLOSELY else 0):
            if not _agrees(tally, pair.play_agents, number):
                break
    requests, agreeing = tally.total("requests"), tally.total("agreeing")
    return tally.all_agree, f"{agreeing} of {requests} requests agree"


def _agrees(tally: Tally, play: PlayDrawn, number: int) -> bool:
    """Play one more; a difference is shown, and shrunk by `cachesim real`, in minutes."""
    played = play(seed=SEED, number=number, presets=tuple(PRESETS))
    tally.count(played)
    if played.difference is not None:
        show_difference(OUT, played.difference)
    return played.difference is None


def router_agrees(release: Release, *, times: int = 1) -> tuple[bool, str]:
    """Random requests for several models of a router."""
    requests, differing = 0, list[str]()
    for number in range(times * ROUTED):
        with TemporaryDirectory() as folder, RealServer(release, routes=True) as real:
            workload, difference = play_routed(real, SEED, number, Path(folder))
        requests += workload.requests
        differing += [] if difference is None else [workload.name]
    return not differing, f"{requests} requests; differing: {', '.join(differing) or 'none'}"


def binding_agrees(release: str) -> tuple[bool, str]:
    """Drawn calls of `Llama`: counts, replies and logits."""
    with RealInstances(release) as real:
        steps = [
            step
            for name in DRAWN
            for number in range(BINDING_WORKLOADS)
            for step in real.play(draw_binding(release, name, SEED, number))
        ]
    agreeing = sum(step.agrees for step in steps)
    return agreeing == len(steps), f"{agreeing} of {len(steps)} calls agree"


def weights_agree(release: Release) -> tuple[bool, str]:
    """Cold prompts on the same weights: the same tokens, and close log probabilities."""
    names = Abilities(release).presets
    found = compare_logits(release, names, prompts=PROMPTS, seed=SEED)
    said = ", ".join(f"{agreement.preset} {max(agreement.distances):.0e}" for agreement in found)
    return all(agreement.agrees for agreement in found), said


def answers_are_wrong_where_we_say(release: Release) -> tuple[bool, str]:
    """The defects that the simulator shows are there on the real server, and only those."""
    old = release == "b9093"
    expected = {
        ("dense", THREE_REQUESTS): False,
        ("recurrent", THREE_REQUESTS): not old,
        ("hybrid", THREE_REQUESTS): not old,
        ("recurrent", FOUR_SLOTS): False,
        ("hybrid", FOUR_SLOTS): False,
        ("hybrid", STALE_NEIGHBOUR): release == "b11549",
    }
    found = {}
    with SideBySide(release) as pair:
        for preset, talk in expected:
            verdict = verdict_on(pair.real({}), pair.model(preset), talk, preset)
            found[preset, talk] = verdict
    wrong = [
        f"{preset} {talk.name} off by {verdict.distance:.2f}"
        for (preset, talk), verdict in found.items()
        if verdict.wrong
    ]
    as_said = all(found[key].wrong == expected[key] for key in expected)
    return as_said, "; ".join(wrong) or "no wrong answer"


def mlx_classes_agree(release: str, *, times: int = 1) -> tuple[bool, str]:
    """Random operations on mlx-lm's own cache classes."""
    count = times * (MLX_SEQUENCES if release in MLX_CLOSELY else MLX_SEQUENCES_BETWEEN)
    agreement = compare_classes(release, SEED, count)
    return agreement.all_agree, f"{count} sequences"


def mlx_server_agrees(release: str) -> tuple[bool, str]:
    """Random requests on mlx-lm's own server.

    Its thread reads arrivals between two steps, so that a busy machine may move one to the next
    step; what the simulator does otherwise differs in a second play, too.
    """
    count = MLX_WORKLOADS if release in MLX_CLOSELY else MLX_WORKLOADS_BETWEEN
    agents = AGENTS if release in MLX_CLOSELY else 1
    for play in ("", ", in a second play"):
        found = (
            compare_server(release, SEED, count),
            compare_server(release, SEED, agents, draw=draw_mlx_agents),
            compare_server(release, SEED, agents, draw=draw_mlx_models),
        )
        if all(agreement.all_agree for agreement in found):
            return True, f"{count + 2 * agents} workloads{play}"
    return False, f"first differences: {[agreement.difference for agreement in found]}"


def vllm_mlx_agrees(release: str) -> tuple[bool, str]:
    """Random requests on vllm-mlx's own scheduler, over a release of mlx-lm."""
    found = compare_vllm_mlx(SEED, MLX_WORKLOADS)
    return found.all_agree, f"{found.total('requests')} requests, mlx-lm {release}"


def rapid_mlx_agrees(release: str) -> tuple[bool, str]:
    """The same on Rapid-MLX's."""
    found = compare_vllm_mlx(SEED, MLX_WORKLOADS, wheel=RAPID_MLX)
    return found.all_agree, f"{found.total('requests')} requests, mlx-lm {release}"


def images_agree_on_vllm_mlx(release: str) -> tuple[bool, str]:
    """Random requests with images on vllm-mlx's engines for models that read them."""
    found = [
        compare_images(SEED, MLX_WORKLOADS, wheel=wheel, drawing=drawing)
        for wheel, drawing in ENGINES
    ]
    requests = sum(agreement.total("requests") for agreement in found)
    return all(agreement.all_agree for agreement in found), f"{requests} requests, mlx-lm {release}"


def mlx_families_are_wrong_where_we_say(release: str) -> tuple[bool, str]:
    """Two chats that go on at once: the shorter one is right or wrong as on the real server."""
    played = {
        family: play_mlx_scenario(load_all([name])[0][1], release)
        for family, name in MLX_FAMILIES.items()
        if family not in FAMILIES or FAMILIES[family].is_at(release, MLX_LM.names())
    }
    said = ", ".join(
        f"{family} {'wrong' if any(step.real[1] == 'diverged' for step in steps) else 'right'}"
        for family, steps in played.items()
    )
    return all(step.agrees for steps in played.values() for step in steps), said


def mlx_logits_agree(release: str) -> tuple[bool, str]:
    """The toy weights in mlx-lm's own models: logits closer than 1e-3, of wrong batches too."""
    found = compare_mlx_logits(release, prompts=1, batches=4, seed=SEED)
    largest = (
        (agreement, max(agreement.largest, agreement.largest_in_batches)) for agreement in found
    )
    said = ", ".join(f"{agreement.family} {most:.0e}" for agreement, most in largest)
    return all(agreement.agrees for agreement in found), said


def vllm_scheduler_agrees(release: str, *, times: int = 1) -> tuple[bool, str]:
    """Random workloads on vLLM's own scheduler: the same decisions, block by block."""
    less = 1 if release in {VLLM.real()[0], VLLM.real()[-1]} else BETWEEN
    usual = (VLLM_SCHEDULER, times * SCHEDULED // less)
    more = times * AT_ONCE // less
    others = [(VLLM_SYNCHRONOUS, more), (VLLM_AGENTS, more)]
    if release in VLLM.having(VLLM.option("connector"), "store-async"):
        others.append((VLLM_LOADS, more))
    if release in VLLM.having(VLLM.option("kv_offloading_size")):
        others.append((VLLM_OFFLOADING, more))
    if VLLM.release(release).rules.has_compressed:
        others.append((VLLM_COMPRESSED, more))
    return _decide_alike(release, usual, *others, guided=times)


def sglang_scheduler_agrees(release: str, *, times: int = 1) -> tuple[bool, str]:
    """Random workloads on SGLang's own scheduler: the same decisions, node by node."""
    less = 1 if release in {SGLANG.real()[0], SGLANG.real()[-1]} else BETWEEN
    usual = (SGLANG_SCHEDULER, times * SCHEDULED // less)
    more = times * AT_ONCE // less
    others = (SGLANG_MIXED, SGLANG_AGENTS, *features_of(release).values())
    alike = ((other, more) for other in others)
    return _decide_alike(release, usual, *alike, guided=times)


def sglang_rust_core_agrees(release: str, *, times: int = 1) -> tuple[bool, str]:
    """The same with the tree core in Rust, which its servers use by default."""
    usual = (with_rust(SGLANG_SCHEDULER), times * SCHEDULED)
    return _decide_alike(release, usual, (with_rust(SGLANG_AGENTS), times * AT_ONCE))


def _decide_alike(
    release: str, *schedulers: tuple[RealScheduler[Any], int], guided: int = 0
) -> tuple[bool, str]:
    """So many workloads of each kind; and of a guided search, of each model.

    One process plays all: its imports take longer than the workloads.
    """
    usual, _ = schedulers[0]
    with usual.start(release) as real:
        found = [
            scheduler.compare(release, SEED, range(count), started=real)
            for scheduler, count in schedulers
        ]
        said = f"{sum(n for _, n in schedulers)} workloads"
        if guided:
            found.append(usual.compare_guided(release, SEED, range(guided), started=real))
            said += f", {found[-1].total('agreeing')} of a guided search"
    return all(agreement.all_agree for agreement in found), said


def compared(known: Sequence[str], closely: Sequence[str] = (), *, every: bool) -> list[str]:
    """The newest release, those looked at closely, and one of eight others; with `every`, all."""
    chosen = {known[-1], *closely, *known[:-1:ONE_OF]}
    return [release for release in known if every or release in chosen]


def checks(*, every: bool = False) -> Iterator[Check]:
    """Comparisons with real engines; with `every`, on each release, and four times as many."""
    times = TIMES if every else 1
    for release in compared(LLAMA_CPP.real(), CLOSELY, every=every):
        yield Check(
            name=f"llama.cpp {release}: workloads agree",
            environment=environment_for(release),
            run=partial(workloads_agree, release, times=times),
        )
        closely = (weights_agree, answers_are_wrong_where_we_say) if release in CLOSELY else ()
        for what in closely:
            yield Check(
                name=f"llama.cpp {release}: {what.__name__.replace('_', ' ')}",
                environment=environment_for(release),
                run=partial(what, release),
            )
    for release in ROUTERS:
        yield Check(
            name=f"llama.cpp {release}: requests for models of a router agree",
            environment=router_environment(release),
            run=partial(router_agrees, release, times=times),
        )
    newest_binding = BINDING.real()[-1]
    yield Check(
        name=f"llama-cpp-python {newest_binding}: calls agree",
        environment=binding_environment_for(newest_binding),
        run=partial(binding_agrees, newest_binding),
    )
    for version in compared(MLX_LM.real(), MLX_CLOSELY, every=every):
        yield Check(
            name=f"mlx-lm {version}: mlx classes agree",
            environment=mlx_environment_for(version),
            run=partial(mlx_classes_agree, version, times=times),
        )
        more: tuple[Callable[[str], tuple[bool, str]], ...]
        more = (mlx_logits_agree, mlx_families_are_wrong_where_we_say)
        if version == UNDER_VLLM_MLX:
            more += (vllm_mlx_agrees, rapid_mlx_agrees, images_agree_on_vllm_mlx)
        closest = MLX_CLOSELY if every else (MLX_CLOSELY[-1], UNDER_VLLM_MLX)
        for mlx in (mlx_server_agrees, *(more if version in closest else ())):
            yield Check(
                name=f"mlx-lm {version}: {mlx.__name__.replace('_', ' ')}",
                environment=mlx_environment_for(version),
                run=partial(mlx, version),
            )
    for version in compared(VLLM.real(), every=every):
        yield Check(
            name=f"vllm {version}: scheduler agrees",
            environment=VLLM_SCHEDULER.core_of(version),
            run=partial(vllm_scheduler_agrees, version, times=times),
        )
    for version in compared(SGLANG.real(), every=every):
        yield Check(
            name=f"sglang {version}: scheduler agrees",
            environment=SGLANG_SCHEDULER.core_of(version),
            run=partial(sglang_scheduler_agrees, version, times=times),
        )
    newest = SGLANG.real()[-1]
    yield Check(
        name=f"sglang {newest}: scheduler with the tree core in Rust agrees",
        environment=with_rust(SGLANG_SCHEDULER).core_of(newest),
        run=partial(sglang_rust_core_agrees, newest, times=times),
    )


TO_BUILD: Final = "it is built from its source, in minutes: make nightly does, or a first use"


def beside(*, every: bool = False) -> Iterator[Environment]:
    """Environments of the tests that `pytest -m wheel` runs; torch in nightly runs alone."""
    yield KERNELS
    if every:
        yield transformers_environment_for(TRANSFORMERS)
        yield transformers_environment_for(TRANSFORMERS, serves=True)
        yield transformers_environment_for(TRANSFORMERS, quantises=True)
    for version in compared(SGLANG.real(), every=every):
        yield configuration_of(SGLANG_SCHEDULER.core_of(version))


def set_up(environments: Sequence[Environment]) -> dict[str, str]:
    """Set all environments up, two at a time; why each of the others is not there."""

    def problem(environment: Environment) -> str:
        try:
            environment.ready()
        except EnvironmentUnavailableError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(problem, environments)
    named = zip(environments, found, strict=True)
    return {environment.name: why for environment, why in named if why}


def main(arguments: Sequence[str] = ()) -> int:
    """Run the checks; 1 if one fails. With --set-up, install what they need and no more."""
    every = "--every" in arguments
    wanted = list(checks(every=every))
    checked = [check.environment for check in wanted]
    needed = list(dict.fromkeys([*checked, *beside(every=every)]))
    # A build from source takes a third of the time that the other checks take together.
    to_build = (
        []
        if every
        else [
            environment
            for environment in needed
            if environment.variables and not environment.is_ready()
        ]
    )
    missing = set_up([environment for environment in needed if environment not in to_build])
    missing |= dict.fromkeys((environment.name for environment in to_build), TO_BUILD)
    if "--set-up" in arguments:
        return 0
    for name, why in missing.items():
        OUT.print(f"SKIPPED, NOTHING OF {name} WAS COMPARED: {why}", markup=False)
    fit = [number for number, check in enumerate(wanted) if check.environment.name not in missing]
    failed = 0
    # A server and its simulator take turns, so that a pair alone leaves half the machine idle.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        # The last checks are the longest: they begin first, so that both processes end together.
        begun = [pool.submit(line_of, number, every=every) for number in reversed(fit)]
        for done in as_completed(begun):
            well, line = done.result()
            failed += not well
            OUT.print(line, markup=False)
    return 1 if failed else 0


def line_of(number: int, *, every: bool) -> tuple[bool, str]:
    check = list(checks(every=every))[number]
    start = time.monotonic()
    well, found = check.run()
    seconds = time.monotonic() - start
    return well, f"{'ok    ' if well else 'FAILED'} {check.name} ({found}; {seconds:.0f} s)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
