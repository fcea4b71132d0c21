"""What a limit in bytes counts of a replay, and the sentence that says it."""

from collections.abc import Mapping
from typing import Any, Final

from cachesim.engines.family import Profile, family_of
from cachesim.engines.held import sizes_of
from cachesim.engines.words import counted
from cachesim.model.spec import ModelSpec

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
    found: dict[str, Any] = {
        "of": "options" if own else "given" if by else "small network",
        "by": ", ".join(own) if own else by or "",
    }
    if not own:  # for a token of the trace
        found |= {"token": token / scale, "window": window / scale, "state": state}
    return {**found, "limits": dict(limits)}


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
    return (
        f"{flags} counts what a small network takes, {rates}; {ends}. For the bytes of your model "
        f"write --sizes MODEL, --gguf FILE or {_flags(entry)}; in a plan gguf or sizes"
    )


def _flags(entry: Mapping[str, Any]) -> str:
    return " ".join(f"--{name}-bytes N" for name in KINDS if entry[name])
