"""The pools of a server from the bytes of its device, by each engine's own rule.

    vLLM       blocks = memory // (page x layers of the largest group); a page is the largest of all
    SGLang     | states: 0.9 parts | tokens: 1 part, windows by their ratio |
    llama.cpp  | a state for each slot | cells of the context |

Upstream: `get_kv_cache_config_from_groups`; `mamba_full_memory_ratio` of SGLang's configurator,
with the pool's padding slot; llama.cpp allocates its context as a whole.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from cachesim.engines.base import Engine
from cachesim.engines.held import sizes_of
from cachesim.engines.option import bytes_of_text
from cachesim.errors import InputError
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec

if TYPE_CHECKING:  # `why` on a log of one engine loads no other
    from cachesim.engines.sglang.server import Sglang
    from cachesim.engines.vllm.server import Vllm

MEMORY: Final = "memory"
"""The name beside a server's flags that gives the bytes of its pools."""

STATES: Final = 0.9
"""SGLang's `mamba_full_memory_ratio`: bytes of states for each byte of keys and values."""

CELLS: Final = 256
"""llama.cpp's granularity of a context."""

SET: Final = frozenset(
    {"num_gpu_blocks_override", "max_total_tokens", "max_mamba_cache_size", "ctx_size"}
)
"""Flags that the memory decides."""

LONGEST: Final[Mapping[str, int]] = {"max_model_len": -1, "context_length": 1 << 24}
"""Flags that are checked against the pools, and do not size them, with their values for a trace
whose model is not known: no limit beside the pool.
"""


def memory_in(options: Mapping[str, Any]) -> int | None:
    """The bytes that are given, if any."""
    given = options.get(MEMORY)
    if given is None:
        return None
    value = bytes_of_text(given)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"memory is {str(given)[:40]}; write a number of bytes, or a text such as 40GB"
        raise InputError(msg)
    both = SET & options.keys()
    if both:
        msg = f"memory and {' and '.join(sorted(both))} both size the pools; leave one out"
        raise InputError(msg)
    return value


def longest_of(engine: Engine) -> dict[str, int]:
    """The flags that limit a request, with the values that the pools leave."""
    if engine.profile.engine not in {"vllm", "sglang"}:
        return {}
    options = cast("Vllm | Sglang", engine).options
    return {name: getattr(options, name) for name in LONGEST if hasattr(options, name)}


def pools(engine: Engine, memory: int) -> dict[str, int]:
    """The flags that size the pools of a server with so much memory."""
    name, spec = engine.profile.engine, engine.network.spec
    match name:
        case "vllm":
            found = _vllm(cast("Vllm", engine), spec, memory)
        case "sglang":
            found = _sglang(cast("Sglang", engine), spec, memory)
        case "llama.cpp":
            found = _llamacpp(len(engine.held().slots), spec, memory)
        case _:
            msg = (
                "memory sizes the pools of vllm, sglang and llama.cpp; "
                f"{name} takes the limits of its own flags"
            )
            raise InputError(msg)
    small = next((flag for flag, value in found.items() if value < 2), None)
    if small is not None:
        msg = f"memory = {memory:,} bytes is too little for {name}: {small} would be {found[small]}"
        raise InputError(msg)
    return found


def _vllm(engine: "Vllm", spec: ModelSpec, memory: int) -> dict[str, int]:
    """Every layer of a group has a page in each block."""
    groups, layers = engine.manager.groups, Counter(spec.layers)
    token, window, state = sizes_of(spec)
    states = sum(layers[kind] for kind in RECURRENT_KINDS)
    page = max(
        state / states
        if group.kind == "mamba"
        else group.block * token / layers["attention"]
        if group.kind == "full"
        else group.block * window / layers["window"]
        for group in groups
    )
    return {"num_gpu_blocks_override": int(memory // (page * max(len(g.layers) for g in groups)))}


def _sglang(engine: "Sglang", spec: ModelSpec, memory: int) -> dict[str, int]:
    token, window, state = sizes_of(spec)
    found, left = {}, memory
    if state:
        found["max_mamba_cache_size"] = int((memory * STATES / (1 + STATES) - state) // state)
        left -= (found["max_mamba_cache_size"] + 1) * state
    each = token + engine.options.swa_full_tokens_ratio * window
    return found | ({"max_total_tokens": int(left // each)} if each else {})


def _llamacpp(slots: int, spec: ModelSpec, memory: int) -> dict[str, int]:
    token, window, state = sizes_of(spec)
    if window or not token:
        what = "windows" if window else "no attention"
        msg = f"memory sizes a context of full attention, and the model has {what}"
        raise InputError(msg)
    left = memory - slots * state
    return {"ctx_size": left // token // CELLS * CELLS}
