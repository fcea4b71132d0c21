"""The pools of a server from the bytes of its device, by each engine's own rule (`pool_flags`), and
what a limit in bytes counts of a replay.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.family import Family, Profile, family_of
from cachesim.engines.held import sizes_of
from cachesim.engines.option import bytes_of_text
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.spec import ModelSpec
from cachesim.typed import Value

MEMORY: Final = "memory"
"""The name beside a server's flags that gives the bytes of its pools."""

SET: Final = frozenset(
    {"num_gpu_blocks_override", "max_total_tokens", "max_mamba_cache_size", "ctx_size"}
)
"""Flags that the memory decides."""

ROOM: Final = ("num_gpu_blocks_override", "max_total_tokens", "ctx_size", "n_ctx")
"""Flags that decide how long a request may be; of these an engine has one."""

COARSE: Final = 256
"""What such a flag is a multiple of."""

STEP: Final = 1024
"""Tokens to which the room for the longest request is rounded, one step beyond it."""

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
    options = getattr(engine, "options", None)
    return {name: getattr(options, name) for name in LONGEST if hasattr(options, name)}


FIRST_LOOK: Final = (
    "scaled down {}:1, for a first look: what an engine counts in tokens (blocks, ubatches, "
    "chunks, checkpoints) is not divided, so shares differ from those of the whole trace, and "
    "perhaps their order; leave out --scale for exact counts"
)


def longest_in(family: Family[Any, Any]) -> dict[str, int]:
    """`LONGEST`, as far as an engine has the flags."""
    has = {option.name for option in family.table()}
    return {name: value for name, value in LONGEST.items() if name in has}


def room_for(
    tokens: int, profile: Profile, model: ModelSpec, given: Mapping[str, Any]
) -> dict[str, int]:
    """The flag with which a server takes a request of so many tokens; none if it does already."""
    flags = {**longest_in(family_of(profile.engine)), **given}
    return _room_for(tokens, profile, model, tuple(sorted(flags.items())))


@lru_cache(maxsize=256)
def _room_for(
    tokens: int, profile: Profile, model: ModelSpec, given: tuple[tuple[str, Any], ...]
) -> dict[str, int]:
    """The flag, by halves.

    default   2 x   4 x   8 x           the least value that is enough
                        <- halved ->
    """
    family = family_of(profile.engine)
    flag = next((option.name for option in family.table() if option.name in ROOM), None)
    if flag is None or flag in dict(given):
        return {}

    def room(**more: int) -> int:
        flags = {**dict(given), **more}
        options: Value = family.read(profile, flags)
        if hasattr(options, "n_ctx"):  # divided among slots, or one of its own for each
            return int(getattr(options, "n_ctx_slot", options.n_ctx))
        made = Engine.create(profile, model=model, options=flags, arithmetic="counts")
        return made.longest() or tokens + 1

    if room() > tokens:
        return {}
    wanted, low = (tokens // STEP + 2) * STEP, 1
    high = int(getattr(family.read(profile, dict(given)), flag))
    while room(**{flag: high}) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = room(**{flag: middle}) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return {flag: -(-high // COARSE) * COARSE}


def pools(engine: Engine, memory: int) -> dict[str, int]:
    """The flags that size the pools of a server with so much memory."""
    name, flags = engine.profile.engine, engine.pool_flags(memory)
    if flags is None:
        msg = f"memory sizes no pool of {name}: {name} takes the limits of its own flags"
        raise InputError(msg)
    small = next((flag for flag, value in flags.items() if value < 2), None)
    if small is not None:
        msg = f"memory = {memory:,} bytes is too little for {name}: {small} would be {flags[small]}"
        raise InputError(msg)
    return flags


KINDS: Final = {
    "token": "layers with full attention",
    "window": "layers with a window",
    "state": "recurrent layers",
}
"""The fields of `Sizes`, and the layers that they measure."""


def bytes_of(
    profile: str, limits: Mapping[str, int], spec: ModelSpec, scale: int, by: str | None
) -> dict[str, Any]:
    """Source of the counted bytes, as plain data."""
    own = family_of(Profile.parse(profile).engine).describes_model
    token, window, state = sizes_of(spec)
    counted: dict[str, Any] = {
        "of": "options" if own else "given" if by else "small network",
        "by": ", ".join(own) if own else by or "",
    }
    if not own:  # for a token of the trace
        counted |= {"token": token / scale, "window": window / scale, "state": state}
    return {**counted, "limits": dict(limits)}


def sentence_of(entry: Mapping[str, Any], scale: int) -> str:
    """Sentence on a server's limits in bytes; empty without any."""
    if not entry["limits"]:
        return ""
    flags = " and ".join(f"{name} ({size:,} bytes)" for name, size in entry["limits"].items())
    done = counted(entry["evictions"], "eviction")
    ends = f"{done} for it" if entry["evictions"] else "nothing was evicted for it"
    if entry["of"] == "options":
        unit = "a token as simulated" if scale == 1 else f"scaled down {scale}:1"
        model = f"the bytes of the model that its options describe ({entry['by']}), {unit}"
        return f"{flags} counts {model}; {ends}"
    parts = [
        f"{entry[name]:,.10g} {what}"
        for name, what in (
            ("token", "bytes a token of the trace"),
            ("window", "bytes a token in windows"),
            ("state", "bytes a recurrent state"),
        )
        if entry[name]
    ]
    rates = ", ".join(parts)
    if entry["of"] == "given":
        return f"{flags} counts {rates}, by {entry['by']}; {ends}"
    own = " ".join(f"--{name}-bytes N" for name in KINDS if entry[name])
    return (
        f"{flags} counts what a small network takes, {rates}; {ends}. For the bytes of your model "
        f"write --sizes MODEL, --gguf FILE or {own}; in a plan gguf or sizes"
    )
