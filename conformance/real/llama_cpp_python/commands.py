"""`cachesim real llama-cpp-python`: the real class beside the simulated one, call by call."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from cachesim.engines.llama_cpp_python.family import FAMILY
from cachesim.engines.llama_cpp_python.rules import Rules
from cachesim.model.presets import preset
from cachesim.prove import playing
from cachesim.prove.commands import ON_LLAMA_CPP_PYTHON
from cachesim.prove.environment import versions_of
from cachesim.prove.llama_cpp_python.scenarios import (
    DRAWN,
    WRONG,
    RealInstances,
    environment_for,
)
from cachesim.prove.worker_side import differences
from conformance.real import agreement as agreeing
from conformance.real.fields import judge_fields
from conformance.real.fit import Played, judge_newest
from conformance.real.llama_cpp_python.compare import difference_under, draw

LOGITS: Final = (
    "logits are compared more closely; rules know sizes alone, and scenarios are run with f16"
)
OVERRIDES: Final[Mapping[str, str]] = {
    "temperature": "the likeliest token is the same in each run; rules know tokens alone",
    "n_threads": "sums in one order: logits are the same in each run",
    "n_threads_batch": "as n_threads",
    "type_k": LOGITS,
    "type_v": LOGITS,
    "verbose": "lines on standard error; `cachesim why` reads them",
    "swa_full": "None leaves llama.cpp's default, which is True",
    "simulator: swa_full": "None leaves llama.cpp's default, which is True",
    "simulator: draft_model": "none is None",
    "simulator: type_k": "None leaves llama.cpp's default, which is f16",
    "simulator: type_v": "None leaves llama.cpp's default, which is f16",
}
"""Arguments, and defaults of the simulator's options, that differ -> why no result does."""

PRETENDED: Final = {
    "model_path": (
        "a model",
        "a tiny one of the same layers",
        "caches know shapes and tokens alone",
    ),
    "input_ids": ("uninitialised memory", "-1", "a draft's lookup would read chance"),
    "sample": ("the sampled token", "the workload's, where it has one", "half of the calls sample"),
    "cache_dir": (
        ".cache/llama_cache",
        "an empty folder",
        "states of other models would be loaded",
    ),
}
"""Settings without an argument: the package's, ours, why no result depends on it."""


@playing.comparing
def real_llama_cpp_python(
    *,
    release: str = "",
    seed: int = 0,
    workloads: int = 100,
    model: Sequence[str] = (),
    first: int = 0,
    scenario: str | None = None,
    settings: bool = False,
    newest: bool = False,
    wheel: str = "",
) -> int:
    """Run drawn calls on the real `Llama`, and on the simulated one: counts, replies, logits.

    The package is built from its source the first time, in some minutes; that takes a C++ compiler.

    Example: cachesim real llama-cpp-python --release 0.3.36 --workloads 100

    Parameters
    ----------
    release
        0.3.23, 0.3.31, 0.3.35 or 0.3.36; the newest if left out.
    seed
        The seed of everything drawn at random.
    workloads
        How many on each preset: an instance with random arguments, a cache or none, a draft model
        or none, and 2 to 5 prompts or chats; between them states are saved and loaded, texts
        embedded, new instances made with the same or other arguments.
    model
        A preset of `cachesim list presets`; may be repeated. By default all.
    first
        The number of the first workload, to come back to one of a longer run.
    scenario
        A scenario to run instead, on every release that it names or on `--release` alone: a file,
        a folder, or the name of a shipped one.
    settings
        Print in which arguments the comparison differs from `Llama(model_path)`, by the release's
        own signature, and why no result depends on them, instead.
    newest
        Look up the newest version and say whether it still is as the newest release known here; if
        not, fit the rule fields that explain it.
    wheel
        With `newest`: another version, as 0.3.31.

    """
    if scenario is not None:
        return ON_LLAMA_CPP_PYTHON.play_named(scenario, release)
    for name in model:
        preset(name)  # refused before anything is set up
    if newest or wheel:
        release, version = FAMILY.real()[-1], wheel or versions_of(FAMILY.name)[0]
    else:
        release, version = release or FAMILY.real()[-1], ""
    if settings:
        title = f"llama-cpp-python {release}: settings that differ from an instance's defaults"
        return agreeing.show_overrides(title, overrides(release))
    title = f"llama-cpp-python {version or release}, seed {seed}"
    found, played = agreeing.Agreement(title=title, kinds="preset"), list[Played[Rules]]()
    with RealInstances(release, version) as real:
        for name in model or DRAWN:
            for number in playing.watched(range(first, first + workloads)):
                drawn = draw(release, name, seed, number)
                steps = real.play(drawn)
                found.add(
                    name,
                    f"{number} of {name}",
                    agreeing.first_difference(
                        [e.real for e in steps], [e.simulated for e in steps]
                    ),
                    workloads=1,
                    calls=len(steps),
                    agreeing=sum(step.agrees for step in steps),
                    wrong=sum(step.proof > WRONG for step in steps),  # of the real class
                    raised=sum("error" in step.real for step in steps),
                )
                check = partial(difference_under, drawn, release, real.results)
                size = sum(step.prompt_tokens for step in steps)
                played.append(Played(kind=name, requests=len(steps), size=size, check=check))
    status = found.show()
    if not version:
        return status
    status = judge_newest(FAMILY, version, release, status, played)
    return max(status, judge_fields(FAMILY, version, environment_for(release, version).site))


def overrides(release: str) -> list[playing.Override]:
    """Arguments that differ, and defaults of the simulator."""
    with RealInstances(release) as real:
        started, used = real.settings()
    rows = (*differences(started, used), *agreeing.differing_defaults(FAMILY, release, started))
    return playing.overrides_of(rows, OVERRIDES, PRETENDED)
