"""Random workloads of a router: requests and slot files for several models, on both servers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import FIRST, Played, RealServer
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model, Scenario, Step
from conformance.real.llama_cpp.compare import Difference, first_difference
from conformance.real.llama_cpp.workloads import draw_setting, grow

FURTHER: Final = {
    "b": Model(preset="dense", seed=1),
    "c": Model(preset="hybrid-delta"),
    "d": Model(preset="swa"),
}
PRESETS: Final = ("dense", "swa", "hybrid", "hybrid-delta", "recurrent")
STAYS: Final = 0.4
"""Frequency of a request for the model of the one before it."""


class Asked:
    """A router whose requests are for models drawn at random; a file is restored where it is of."""

    def __init__(self, played: Played, rng: Random, models: Sequence[str]) -> None:
        self._played, self._rng, self._models = played, rng, models
        self._model = ""
        self._files: dict[str, str] = {}
        self.sent: list[Step] = []

    @property
    def lost(self) -> bool:
        """True if no further request can be sent."""
        return self._played.lost

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        if self._rng.random() >= STAYS:
            self._model = self._rng.choice(self._models)
        [file] = {step.file for step in group}
        model = self._model
        if file is not None:
            model = self._files.setdefault(file, model)
        named = [replace(step, model=model) for step in group]
        self.sent += named
        return self._played.send(named)


def play_routed(
    real: RealServer, seed: int, number: int, folder: Path
) -> tuple[Scenario, Difference | None]:
    """A workload of a router with two to four models, and the first difference."""
    setting = draw_setting(seed, number, release=real.release, presets=PRESETS)
    rng = Random(f"models {seed} {number}")
    names = rng.sample(sorted(FURTHER), rng.randint(1, len(FURTHER)))
    setting.options["models_max"] = rng.choice((0, 1, 1, 2, 2, 3))
    drawn = replace(setting.workload(), models={name: FURTHER[name] for name in names})
    for name, network in drawn.networks.items():
        write_model(spec_of(network), folder / f"{name or FIRST}.gguf")
    with real.started(setting.options, folder / f"{FIRST}.gguf") as server:
        asked = Asked(server, rng, ["", *names])
        _, outcomes = grow(setting, asked)
    workload = replace(drawn, step=tuple(asked.sent))
    return workload, first_difference(workload, outcomes)
