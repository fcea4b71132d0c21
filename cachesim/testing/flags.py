"""The flags that a search turns, per engine: upstream's names, the default first."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from cachesim.engines import Engine, Profile
from cachesim.errors import InputError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.testing.draws import Draws

Candidates: TypeAlias = Mapping[str, Sequence[Any]]

_LLAMA_CPP: Final[Candidates] = {
    "parallel": (1, 1, 2, 3),
    "kv_unified": (False, True),
    "ctx_size": (4096, 1024, 512, 256),
    "batch_size": (2048, 256, 64, 32),
    "ubatch_size": (512, 64, 32, 16),
    "ctx_checkpoints": (32, 8, 3, 1, 0),
    "checkpoint_min_step": (256, 64, 16, 0),
    "checkpoint_every_nt": (8192, 64),
    "slot_prompt_similarity": (0.1, 0.0, 0.5, 0.9),
    "cache_ram": (8192, 1, 0, -1),
    "cache_reuse": (0, 4, 16),
    "context_shift": (False, True),
    "cache_idle_slots": (True, False),
    "swa_full": (False, True),
}

_IK_LLAMA: Final[Candidates] = {
    "parallel": (1, 1, 2),
    "ctx_size": (4096, 1024),
    "batch_size": (2048, 256, 64, 32),
    "ubatch_size": (512, 64, 32, 16),
    "ctx_checkpoints": (32, 8, 3, 1, 0),
    "ctx_checkpoints_interval": (512, 64, 16),
    "ctx_checkpoints_tolerance": (5, 8, 1, 0),
    "slot_prompt_similarity": (0.1, 0.0, 0.5),
    "cache_ram": (8192, 1, 0),
    "cache_ram_similarity": (0.5, 0.2, 0.8),
}

_MLX_LM: Final[Candidates] = {
    "prompt_cache_size": (10, 3, 1),
    "prefill_step_size": (2048, 64, 16),
    "prompt_concurrency": (8, 2, 1),
    "decode_concurrency": (32, 2, 1),
}

CANDIDATES: Final[Mapping[str, Candidates]] = {
    "llama.cpp": _LLAMA_CPP,
    "ik_llama.cpp": _IK_LLAMA,
    "mlx-lm": _MLX_LM,
}


@cache
def flags_of(profile: Profile) -> Mapping[str, tuple[Any, ...]]:
    """The flags and values that a profile accepts, found by asking it."""
    found = {}
    for name, values in CANDIDATES.get(profile.engine, {}).items():
        kept = tuple(value for value in values if _accepts(profile, "dense", {name: value}))
        if kept:
            found[name] = kept
    return found


def try_flags(profile: Profile, model: str, options: Mapping[str, Any]) -> None:
    """Start a server with these flags, or say why it does not take them."""
    Engine.create(profile, model=build(preset(model), "ring"), options=options)


def _accepts(profile: Profile, model: str, options: Mapping[str, Any]) -> bool:
    try:
        try_flags(profile, model, options)
    except InputError:
        return False
    return True


_MTP: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama.cpp": {"spec_type": "draft-mtp"},
    "ik_llama.cpp": {"companion": "attn", "draft_max": 3, "recurrent_ckpt_mode": "cpu"},
}
"""What makes a model with an MTP head draft."""


@cache
def drafting(profile: Profile, model: str) -> Mapping[str, Any]:
    """The flags that make a model draft; none where it has no MTP head or the release no drafts."""
    flags = _MTP.get(profile.engine, {}) if preset(model).mtp_depth else {}
    return flags if _accepts(profile, model, flags) else {}


def draw_flags(draws: Draws, profile: Profile, model: str) -> dict[str, Any]:
    """Some flags with values other than the default; often none at all."""
    chosen: dict[str, Any] = {}
    if preset(model).mtp_depth and draws.integer(0, 1):
        chosen |= drafting(profile, model)
    if draws.integer(0, 3) == 0:
        return chosen
    for name, values in flags_of(profile).items():
        value = draws.one_of(values) if draws.integer(0, 2) == 2 else values[0]
        if value != values[0]:
            chosen[name] = value
    if "companion" in chosen:
        chosen.pop("parallel", None)  # the server refuses drafts beside further slots
    return chosen
