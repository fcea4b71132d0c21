"""The `Family` of Ollama's own runner, which its releases until 0.24 have."""

from typing import Final

from cachesim.engines.family import READ, Family
from cachesim.engines.ollama_runner.options import RunnerOptions
from cachesim.engines.ollama_runner.releases import PATCHES, RELEASES
from cachesim.engines.ollama_runner.rules import RunnerRules

FAMILY: Final[Family[RunnerRules, RunnerOptions]] = Family(
    name="ollama-runner",
    about="Ollama's own runner until 0.24: slots, windows, checkpoints; see ollama for MLX models",
    repository="ollama/ollama",
    evidence=READ,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:Ollama",
    releases=RELEASES,
    patches=PATCHES,
    options=RunnerOptions,
    kin=("llama.cpp", "llama-cpp-python"),
    has_slots=False,
)
