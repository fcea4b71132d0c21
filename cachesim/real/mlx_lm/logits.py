"""The float network beside mlx-lm's own models: same weights, same prompts, the same logits.

mlx-lm computes in float32 here; what is left is rounding. Prompts go in as pieces of random
lengths, so its caches are in it too.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.real.mlx_lm.families import FAMILIES, tensors_of
from cachesim.real.mlx_lm.process import environment_for
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits

WORKER: Final = Path(__file__).parent / "logits_worker.py"
TOLERANCE: Final = 1e-3
"""How far logits may lie apart."""

FIRST_WORD: Final = 265


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsAgreement:
    """How a preset's logits compare over some prompts."""

    preset: str
    model: str
    prompts: int
    tokens: int
    largest: float  # distance of two logits
    spread: float  # standard deviation of the logits, to hold the distance against

    @property
    def agrees(self) -> bool:
        """Whether no logit is too far off."""
        return self.largest <= TOLERANCE


def compare_mlx_logits(
    release: str, names: tuple[str, ...] = (), *, prompts: int = 5, length: int = 100, seed: int = 0
) -> list[LogitsAgreement]:
    """Play the same prompts on mlx-lm's models and on the network, for each preset."""
    return [_compare(release, name, prompts, length, seed) for name in names or tuple(FAMILIES)]


def _compare(release: str, name: str, prompts: int, length: int, seed: int) -> LogitsAgreement:
    family = FAMILIES[name]
    spec = preset(name, seed=seed, **family.changes)
    random = Random(f"{name}/{seed}")  # noqa: S311 - not for secrets
    cut = [_pieces(random, length, spec.vocabulary) for _ in range(prompts)]
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        tensors: dict[str, Any] = dict(tensors_of(name, spec))
        np.savez(weights, **tensors)
        order = {
            "module": family.module,
            "arguments": family.arguments(spec),
            "weights": str(weights),
            "prompts": cut,
        }
        real = _answer(release, order)
    network = build(spec)
    largest, spreads = 0.0, []
    for pieces, rows in zip(cut, real, strict=True):
        tokens = as_tokens([token for piece in pieces for token in piece])
        ours = cold_logits(network, tokens)
        largest = max(largest, float(np.abs(ours - np.array(rows)).max()))
        spreads.append(float(ours[:, FIRST_WORD:].std()))
    return LogitsAgreement(
        preset=name,
        model=family.module,
        prompts=prompts,
        tokens=prompts * length,
        largest=largest,
        spread=float(np.mean(spreads)),
    )


def _pieces(random: Random, length: int, vocabulary: int) -> list[list[int]]:
    tokens = [random.randrange(FIRST_WORD, vocabulary) for _ in range(length)]
    pieces = []
    while tokens:
        count = random.choice((1, 1, 5, 17, 40))
        pieces.append(tokens[:count])
        tokens = tokens[count:]
    return pieces


def _answer(release: str, order: dict[str, Any]) -> list[list[list[float]]]:
    python = environment_for(release).ready()
    done = subprocess.run(  # noqa: S603 - our own worker
        [str(python), "-I", str(WORKER)],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[list[list[float]]] = json.loads(done.stdout)
    return answer
