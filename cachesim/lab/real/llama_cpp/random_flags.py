"""Random flags for a server: what people set, and the corners that rules turn on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, get_args

from cachesim.engines.llamacpp.options import Ngrams, Pooling
from cachesim.lab.real.llama_cpp.abilities import Abilities

WINDOWED: Final = frozenset({"swa", "hybrid-swa"})
WINDOWS: Final = (32, 32, 32, 8, 17, 64, 100)

DRAFTED: Final = ("dense", "swa", "recurrent", "hybrid")
"""Models that a second one drafts for."""

SLEEPS: Final = 2
"""Seconds until an idle server sleeps: longer than a crowded machine needs between two requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Values that one flag may take, and how often a workload names the flag at all."""

    values: tuple[Any, ...]
    often: float


CHOICES: Final[Mapping[str, Choice]] = {
    "batch_size": Choice(values=(32, 48, 64, 100, 256, 1024), often=0.65),
    "ubatch_size": Choice(values=(8, 12, 16, 32, 64, 100, 256), often=0.65),
    "ctx_checkpoints": Choice(values=(0, 0, 1, 2, 3, 4, 5, 8), often=0.5),
    "checkpoint_min_step": Choice(values=(0, 1, 16, 64, 200, 256), often=0.5),
    "checkpoint_every_nt": Choice(values=(-1, 16, 40, 100), often=0.3),
    "slot_prompt_similarity": Choice(values=(0.0, 0.0, 0.5, 0.9, 1.0), often=0.5),
    "cache_ram": Choice(values=(0, 0, 1, 2, 3, -1), often=0.3),
    "cache_reuse": Choice(values=(1, 4, 16), often=0.2),
    "cache_idle_slots": Choice(values=(False,), often=0.1),
    "context_shift": Choice(values=(True,), often=0.2),
    "keep": Choice(values=(5, 64, -1), often=0.08),
}
"""Flag -> its choices; those that depend on the model or on one another are drawn apart."""


def draw_options(rng: Random, *, abilities: Abilities, preset: str) -> dict[str, Any]:
    """Flags for one server."""
    options: dict[str, Any] = {
        "parallel": rng.choices((1, 2, 3, 4), (60, 17, 17, 6))[0],
        "ctx_size": rng.choice((256, 256, 512, 700, 1024, 1024, 2048, 2048, 4096)),
    }
    if rng.random() < (0.1 if options["parallel"] == 1 else 0.45):
        options["kv_unified"] = True
        if abilities.has("kv_unified_per_slot") and rng.random() < 0.15:
            options["kv_unified_per_slot"] = rng.choice((200, 256, 300))
    for flag, choice in CHOICES.items():
        if abilities.has(flag) and rng.random() < choice.often:
            options[flag] = rng.choice(choice.values)
    if preset in WINDOWED and rng.random() < 0.2:
        options["swa_full"] = True
    if preset == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
        if rng.random() < 0.5:
            options["spec_draft_n_max"] = rng.choice((1, 2, 4, 5))
    return options


def draw_more(rng: Random, *, abilities: Abilities, preset: str) -> dict[str, Any]:
    """Flags that change what a server is for, or the sizes of things."""
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options["cache_type_k"] = rng.choice(("f32", "f32", "bf16"))
        options["cache_type_v"] = rng.choice(("f32", options["cache_type_k"]))
        options["cache_ram"] = rng.choice((1, 1, 2))
    embeds = rng.random() < 0.12 and preset != "hybrid-mtp"
    if embeds:
        options["embedding"] = True
        pooling = rng.choice(("", "", *get_args(Pooling)))
        # Outside of the cache: since b9873 a hybrid with windows whose embeddings are those of one
        # token ends at the first completion, unless its outputs lie where others have lain.
        ends = preset == "hybrid-swa" and pooling in {"cls", "last", "rank"}
        options |= {"pooling": pooling} if pooling and not ends else {}
    if rng.random() < 0.02:
        options["sleep_idle_seconds"] = SLEEPS
    if rng.random() < 0.03:
        options["ctx_size"] = 0
    if rng.random() < 0.07:
        options["cache_prompt"] = False
    if embeds or not abilities.has("spec_type") or preset == "hybrid-mtp":
        return options
    if rng.random() < 0.1:
        options["spec_type"] = rng.choice(get_args(Ngrams))
    elif preset in DRAFTED and rng.random() < 0.05:
        options |= {"spec_type": "draft-simple", "model_draft": "dense"}
    return options


def draw_preset(
    rng: Random, *, abilities: Abilities, presets: Sequence[str] = ()
) -> tuple[str, int]:
    """A preset that the release can load, and the window to build it with (0: its own)."""
    loadable = [each for each in presets or abilities.presets if each in abilities.presets]
    preset = rng.choice(loadable)
    return preset, rng.choice(WINDOWS) if preset in WINDOWED else 0
