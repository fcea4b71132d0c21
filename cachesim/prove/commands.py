"""`cachesim real ...` without the workbench: a scenario on a real server that answers here.

Plain functions that print to stdout, complain to stderr and return an exit status: 0 all agree,
1 something differs, 2 wrong use, 4 nothing was compared.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final

from cachesim.engines.family import family_of
from cachesim.engines.llama_cpp_python.family import FAMILY as LLAMA_CPP_PYTHON
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.files import GGUF, Output
from cachesim.model.presets import preset as preset_of
from cachesim.prove import playing
from cachesim.prove.hunt.report import commands
from cachesim.prove.llama_cpp import scenarios as on_llama_cpp
from cachesim.prove.llama_cpp import server
from cachesim.prove.llama_cpp.gguf import exact_spec, write_adapter, write_model
from cachesim.prove.llama_cpp_python import scenarios as on_llama_cpp_python
from cachesim.prove.mlx_lm import process
from cachesim.prove.mlx_lm import scenarios as on_mlx_lm

ON_LLAMA_CPP: Final = playing.Stage(
    family=LLAMA_CPP,
    environment_for=server.environment_for,
    play=on_llama_cpp.play_scenario,
    heads=("cached", "prefilled", "simulated", "answer", "real answer", "noise"),
    shell=commands,
)

ON_LLAMA_CPP_PYTHON: Final = playing.Stage(
    family=LLAMA_CPP_PYTHON,
    environment_for=on_llama_cpp_python.environment_for,
    play=on_llama_cpp_python.play_scenario,
    heads=("cached", "real answer", "simulated", "logits apart"),
)

ON_MLX_LM: Final = playing.Stage(
    family=MLX_LM,
    environment_for=process.environment_for,
    play=on_mlx_lm.play_mlx_scenario,
    heads=("real: cached", "answer", "simulated: cached", "answer"),
)


def real_gguf(
    preset: str,
    *,
    output: Path,
    seed: int = 0,
    window: int = 0,
    adapter: str = "",
    engine: str = "",
) -> int:
    """Write the network of a preset, or an adapter of it, as a file that the real server loads.

    An engine whose server loads some presets alone has sizes that it computes exactly.
    """
    changes: dict[str, Any] = {"seed": seed} | ({"window": window} if window else {})
    spec = preset_of(preset, **changes)
    if engine and family_of(engine).loads:
        spec = exact_spec(spec)
    write = partial(write_adapter, spec, adapter) if adapter else partial(write_model, spec)
    Output.at(output, "--output", GGUF).fill(write)
    playing.console().print(f"{output}: {output.stat().st_size} bytes")
    return 0


@playing.comparing
def real_llama_cpp(*, scenario: str, release: str = "") -> int:
    """Run a scenario on a real llama.cpp server, and on the simulator.

    Example: cachesim real llama.cpp --scenario llama.cpp-two-codes

    Parameters
    ----------
    scenario
        A scenario: a file, a folder, or the name of a shipped one.
    release
        A build; by default every release that the scenario names.

    """
    return ON_LLAMA_CPP.play_named(scenario, release)


@playing.comparing
def real_llama_cpp_python(*, scenario: str, release: str = "") -> int:
    """Run a scenario on the real `Llama` class, and on the simulator.

    Example: cachesim real llama-cpp-python --scenario SCENARIO.toml

    Parameters
    ----------
    scenario
        A scenario: a file, a folder, or the name of a shipped one.
    release
        A version; by default every release that the scenario names.

    """
    return ON_LLAMA_CPP_PYTHON.play_named(scenario, release)


@playing.comparing
def real_mlx_lm(*, scenario: str, release: str = "") -> int:
    """Run a scenario on mlx-lm's own server, and on the simulator.

    Example: cachesim real mlx-lm --scenario SCENARIO.toml

    Parameters
    ----------
    scenario
        A scenario: a file, a folder, or the name of a shipped one.
    release
        A version; by default every release that the scenario names.

    """
    return ON_MLX_LM.play_named(scenario, release)


__all__ = [
    "ON_LLAMA_CPP", "ON_LLAMA_CPP_PYTHON", "ON_MLX_LM", "real_gguf", "real_llama_cpp",
    "real_llama_cpp_python", "real_mlx_lm",
]  # fmt: skip
