"""Flags of a server: those that a release has, as the wheel's parameters, and random ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias, get_args

from cachesim.engines.llamacpp.options import TRAINED_CONTEXT, Ngrams, Pooling
from cachesim.errors import OptionError
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.typed import JsonObject, Value

PARAMETERS: Final[Mapping[str, str]] = {
    "parallel": "n_parallel",
    "ctx_size": "n_ctx",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "kv_unified": "kv_unified",
    "kv_unified_per_slot": "kv_unified_per_slot",
    "ctx_checkpoints": "n_ctx_checkpoints",
    "checkpoint_min_step": "checkpoint_min_step",
    "checkpoint_every_nt": "checkpoint_every_nt",
    "cache_ram": "cache_ram_mib",
    "cache_reuse": "n_cache_reuse",
    "cache_idle_slots": "cache_idle_slots|clear_idle",
    "cache_prompt": "cache_prompt",
    "context_shift": "ctx_shift",
    "slot_prompt_similarity": "slot_prompt_similarity",
    "swa_full": "swa_full",
    "keep": "n_keep",
    "predict": "n_predict",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "flash_attn": "flash_attn_type",
    "spec_type": "speculative.types",
    "spec_draft_n_max": "speculative.draft.n_max",
    "spec_draft_n_min": "speculative.draft.n_min",
    "spec_draft_p_min": "speculative.draft.p_min",
    "spec_draft_model": "speculative.draft.mparams.path",
    "lora": "lora_adapters",
    "model_draft": "speculative.draft.mparams.path",
    "embedding": "embedding",
    "pooling": "pooling_type",
    "sleep_idle_seconds": "sleep_idle_seconds",
    "models_max": "models_max",
}
"""Flag -> the wheel's parameter; older names, for older wheels, follow a bar."""

SPECULATION: Final[Mapping[str, str]] = {
    "none": "NONE",
    "draft-simple": "DRAFT_SIMPLE",
    "draft-mtp": "DRAFT_MTP",
    **{arg: arg.upper().replace("-", "_") for arg in get_args(Ngrams)},
}

SURROUNDINGS: Final[Mapping[str, Any]] = {
    "n_ctx": 4096,
    "n_batch": 2048,
    "n_ubatch": 512,
    "warmup": False,
    "fit_params": False,
    "n_gpu_layers": 0,
    "n_threads_http": 2,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
}
"""Flags that no workload sets: no warm-up, no fitting, one thread."""


ON_THE_LINE: Final = (
    "--no-warmup", "--fit", "off", "--gpu-layers", "0", "--device", "none", "--threads", "1",
    "--threads-http", "8",
)  # fmt: skip
"""Arguments of a router, whose children need a thread for each waiting request."""


def arguments(options: Mapping[str, Any]) -> list[str]:
    """A command line with these flags."""
    line = list(ON_THE_LINE)
    for flag, value in ({"ctx_size": 4096, "parallel": 1} | dict(options)).items():
        name = flag.replace("_", "-")
        if flag == "flash_attn":
            line += ["--flash-attn", "on" if value else "off"]
        elif isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no-{name}")
        else:
            line += [f"--{name}", str(value)]
    return line


NO_FLAGS: Final[Mapping[str, Any]] = {"parallel": -1, "ctx_size": 0}
"""Flags of a server that is started with its model alone, where these tools set other values."""


def parameters(options: Mapping[str, Any], folder: Path = Path()) -> JsonObject:
    """The wheel's parameters for a server's flags; files of adapters are in a folder."""
    values: JsonObject = dict(SURROUNDINGS)
    for flag, value in options.items():
        if flag not in PARAMETERS:
            msg = f"the real server is not driven with {flag!r}; there are {', '.join(PARAMETERS)}"
            raise OptionError(msg)
        values[PARAMETERS[flag]] = _as_parameter(flag, value, folder)
    return values


def adapter_names(options: Mapping[str, Any]) -> list[str]:
    """The adapters that a server is started with."""
    return [part.strip() for part in str(options.get("lora", "")).split(",") if part.strip()]


def adapter_file(folder: Path, name: str) -> Path:
    """The path of an adapter's file."""
    return folder / f"adapter-{name}.gguf"


def model_file(folder: Path, preset: str, window: int = 0) -> Path:
    """The path of a model's file."""
    return folder / f"{preset}-{window}.gguf"


WORDS: Final[Mapping[str, Callable[[Value], Value]]] = {
    "pooling": lambda value: f"enum:llama_pooling_type.LLAMA_POOLING_TYPE_{value.upper()}",
    "cache_type_k": lambda value: f"enum:ggml_type.GGML_TYPE_{value.upper()}",
    "cache_type_v": lambda value: f"enum:ggml_type.GGML_TYPE_{value.upper()}",
    "flash_attn": lambda value: (
        f"enum:llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_{'EN' if value else 'DIS'}ABLED"
    ),
}
"""Flags whose values have names of their own in the wheel."""


def _as_parameter(flag: str, value: Value, folder: Path) -> Value:
    if flag == "lora":
        return [
            {"adapter": str(adapter_file(folder, adapter_name))}
            for adapter_name in adapter_names({flag: value})
        ]
    if flag == "spec_type":
        name = f"COMMON_SPECULATIVE_TYPE_{SPECULATION[value]}"
        return [f"enum:common_speculative_type.{name}"]
    if flag == "model_draft":
        return str(model_file(folder, value))
    return WORDS[flag](value) if flag in WORDS else value


def effective_ubatch(values: Mapping[str, Any]) -> int:
    """The ubatch size that a server started with these parameters works with."""
    context = int(values["n_ctx"]) or TRAINED_CONTEXT
    return min(context, *(int(values[name]) for name in ("n_batch", "n_ubatch")))


WINDOWED: Final = frozenset({"swa", "hybrid-swa"})
WINDOWS: Final = (32, 32, 32, 8, 17, 64, 100)

DRAFTED: Final = ("dense", "swa", "recurrent", "hybrid")
"""Models that a second one drafts for."""

SLEEPS: Final = 2
"""Seconds until an idle server sleeps: longer than a crowded machine needs between two requests."""


Choices: TypeAlias = tuple[tuple[str, tuple[Any, ...], float], ...]
"""Flags, their values, and how often a workload names each at all."""

CHOICES: Final[Choices] = (
    ("batch_size", (32, 48, 64, 100, 256, 1024), 0.65),
    ("ubatch_size", (8, 12, 16, 32, 64, 100, 256), 0.65),
    ("ctx_checkpoints", (0, 0, 1, 2, 3, 4, 5, 8), 0.5),
    ("checkpoint_min_step", (0, 1, 16, 64, 200, 256), 0.5),
    ("checkpoint_every_nt", (-1, 16, 40, 100), 0.3),
    ("slot_prompt_similarity", (0.0, 0.0, 0.5, 0.9, 1.0), 0.5),
    ("cache_ram", (0, 0, 1, 2, 3, -1), 0.3),
    ("cache_reuse", (1, 4, 16), 0.2),
    ("cache_idle_slots", (False,), 0.1),
    ("context_shift", (True,), 0.2),
    ("keep", (5, 64, -1), 0.08),
)
"""Those that depend on the model or on one another are drawn apart."""


def draw_choices(rng: Random, abilities: Abilities, choices: Choices) -> dict[str, Any]:
    """Values of some of the flags that the server has."""
    return {
        flag: rng.choice(values)
        for flag, values, often in choices
        if abilities.has(flag) and rng.random() < often
    }


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
    options |= draw_choices(rng, abilities, CHOICES)
    if preset in WINDOWED and rng.random() < 0.2:
        options["swa_full"] = True
    if preset == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
        if rng.random() < 0.5:
            options["spec_draft_n_max"] = rng.choice((1, 2, 4, 5))
    return options


def draw_more(rng: Random, *, abilities: Abilities, preset: str) -> dict[str, Any]:
    """Flags that change a server's endpoints, or its sizes."""
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
        # token ends at the first completion, unless its outputs take the memory of earlier ones.
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
    loadable = [name for name in presets or abilities.presets if name in abilities.presets]
    preset = rng.choice(loadable)
    return preset, rng.choice(WINDOWS) if preset in WINDOWED else 0
